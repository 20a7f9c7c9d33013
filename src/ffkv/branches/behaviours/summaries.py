"""Sums up a behaviour: whether the model has it, how much of it memories carry, and which ones."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ffkv.base.files.columns import REACHES, Table
from ffkv.base.intervals import mean_interval, wilson
from ffkv.base.multiple_tests import SIGNIFICANT, q_values
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.choose import accuracy_of
from ffkv.branches.behaviours.encode import NO_TOKEN
from ffkv.branches.behaviours.prompt_file import LISTS, PAIRS, PROMPTS
from ffkv.branches.behaviours.tables import (
    BY_LAYER,
    OF_MEMORIES,
    OF_SETS,
    OF_SIDE_EFFECTS,
    OF_STABILITY,
    SUMMARY,
    UNUSED,
)
from ffkv.branches.behaviours.words import ALL, DIRECTIONS, MEMORIES, OWN
from ffkv.model.effects.controls import permutation_p

BOOTSTRAPS = 1000  # of prompts, for intervals of shares


def summarize(
    own: Mapping[str, pd.DataFrame], top_token: Mapping[tuple[int, int], int], vocabulary: Sequence[str], seed: int
) -> dict[Table, pd.DataFrame]:
    """Returns the rows of all tables of the report of one behaviour, without its name. A table may be empty.

    Args:
        own: the tables of the other steps, by the names of the options of `ffkv behaviours summarize`.
        top_token: layer and memory to the id of the top token of its value.
        vocabulary: text of every token.
        seed: the run's seed.
    """
    of_memories = summarize_effects(own["effects"], own["memories"], top_token, vocabulary)
    of_sets = summarize_sets(own["sets"], own["answers"], seed) if len(own["sets"]) else pd.DataFrame()
    row = summarize_behaviour(own["answers"], own["memories"], of_memories, of_sets)
    counts = own["encode"]["unused"].value_counts(sort=False)
    return {
        SUMMARY: pd.DataFrame([{**row, "kind": kind_of(own["encode"]), "lines": len(own["encode"])}]),
        UNUSED: pd.DataFrame({"unused": counts.index, "prompts": counts.to_numpy()}),
        BY_LAYER: summarize_layers(own["memories"]),
        OF_MEMORIES: of_memories,
        OF_SETS: of_sets,
        OF_SIDE_EFFECTS: summarize_side_effects(own["side_effects"]),
        OF_STABILITY: summarize_stability(own["stability"]),
    }


def kind_of(prompts: pd.DataFrame) -> str:
    """Returns what a file of prompts has, from the table `PROMPTS`."""
    if (prompts["patch"].map(len) > 0).any():
        return PAIRS
    return LISTS if (prompts["answer"] == NO_TOKEN).all() and not prompts["positive"].all() else PROMPTS


def summarize_effects(
    effects: pd.DataFrame, memories: pd.DataFrame, top_token: Mapping[tuple[int, int], int], vocabulary: Sequence[str]
) -> pd.DataFrame:
    """Returns the rows of the table `OF_MEMORIES` of one behaviour.

    Args:
        effects: the table `EFFECTS` of all shards; empty if no effect was measured.
        memories: the table `MEMORIES`.
        top_token: layer and memory to the id of the top token of its value.
        vocabulary: text of every token.
    """
    candidates = memories[memories["by_contrast"] | memories["by_screen"]]
    rows = []
    for each in candidates.to_dict("records"):
        own = effects[(effects["layer"] == each["layer"]) & (effects["memory"] == each["memory"])]
        each["token"] = vocabulary[top_token[each["layer"], each["memory"]]]
        for reach in REACHES:
            rows.append(each | {"reach": reach} | _effect(own[own["reach"] == reach]))
    table = pd.DataFrame(rows)
    if not len(table):
        return table
    known = table["effect_p"].notna()
    table["effect_q"] = np.nan
    for _, of_reach in table[known].groupby("reach"):
        table.loc[of_reach.index, "effect_q"] = q_values(of_reach["effect_p"].to_numpy(), len(of_reach))
    total = table[table["reach"] == "total"].set_index(["layer", "memory"])["effect"]
    exact = pd.Index(table.set_index(["layer", "memory"]).index).map(total).to_numpy(float)
    larger = np.maximum(np.abs(exact), np.abs(table["screen_estimate"]))
    table["disagrees"] = np.abs(table["screen_estimate"] - exact) > larger / 2
    return table


def _effect(rows: pd.DataFrame) -> dict:
    """Returns the effect of one candidate by one reach beside its controls; NaN if it was not measured."""
    names = ("effect", "low", "high", "random_memories", "random_directions", "chance", "effect_p")
    if not len(rows):
        return {"prompts": 0} | dict.fromkeys(names, np.nan)
    own = rows.loc[rows["source"] == OWN, "effect"].to_numpy(np.float64)
    by_control = rows[rows["source"] == MEMORIES].groupby("control")["effect"].mean().to_numpy(np.float64)
    directions = rows.loc[rows["source"] == DIRECTIONS, "effect"]
    low, high = mean_interval(own)
    return {
        "prompts": len(own),
        "effect": own.mean(),
        "low": low,
        "high": high,
        "random_memories": by_control.mean() if len(by_control) else np.nan,
        "random_directions": directions.mean() if len(directions) else np.nan,
        "chance": np.quantile(np.abs(by_control), 0.95) if len(by_control) else np.nan,
        "effect_p": permutation_p(float(own.mean()), by_control),
    }


def correlation(of_memories: pd.DataFrame, screen: str) -> float:
    """Returns Pearson's correlation of a screen with the exact total effect over candidates; NaN of fewer than three."""
    if not len(of_memories):
        return np.nan
    known = of_memories[of_memories["reach"] == "total"].dropna(subset=["effect", screen])
    if len(known) < 3 or known[screen].std() == 0 or known["effect"].std() == 0:
        return np.nan
    return float(np.corrcoef(known[screen], known["effect"])[0, 1])


def summarize_sets(sets: pd.DataFrame, answers: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Returns the rows of the table `OF_SETS` of one behaviour.

    The behaviour is by how much the logit difference is above that on the patch prompts; without these, above that with all
    memories patched. Shares are of means over prompts, and prompts are drawn again for their intervals.

    Args:
        sets: the table `SETS` of all shards.
        answers: the table `ANSWERS`.
        seed: the run's seed.
    """
    answers = answers.set_index("prompt")
    prompts = sets["prompt"].drop_duplicates().to_numpy()
    clean = answers.loc[prompts, "difference"].to_numpy(np.float64)
    floor = answers.loc[prompts, "patch_difference"].to_numpy(np.float64)
    if np.isnan(floor).any():
        floor = sets[sets["choice"] == ALL].set_index("prompt").loc[prompts, "patched"].to_numpy(np.float64)
    drawn = random_stream(seed, Purpose.BEHAVIOUR_BOOTSTRAP, 2).multinomial(
        len(prompts), np.full(len(prompts), 1 / len(prompts)), BOOTSTRAPS
    )
    weights = np.concatenate([np.ones((1, len(prompts))), drawn])  # the prompts themselves, and drawn again
    behaviour = weights @ (clean - floor)
    rows = []
    for (choice, size), own in sets.groupby(["choice", "size"], sort=False):
        by_prompt = own.groupby("prompt")[["patched", "kept", "memories"]].mean().loc[prompts]
        completeness = weights @ (clean - by_prompt["patched"].to_numpy()) / behaviour
        faithfulness = weights @ (by_prompt["kept"].to_numpy() - floor) / behaviour
        row = {"choice": choice, "size": size, "memories": by_prompt["memories"].mean(), "prompts": len(prompts)}
        for name, shares in (("completeness", completeness), ("faithfulness", faithfulness)):
            low, high = np.quantile(shares[1:], [0.025, 0.975])
            row |= {name: shares[0], f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)


def summarize_side_effects(side_effects: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the table `OF_SIDE_EFFECTS` of one behaviour, from the table `SIDE_EFFECTS`."""
    rows = []
    for (choice, size), own in side_effects.groupby(["choice", "size"], sort=False):
        by_prefix = own.groupby("prefix")[["divergence", "loss", "memories"]].mean()
        row = {"choice": choice, "size": size, "memories": by_prefix["memories"].mean(), "prefixes": len(by_prefix)}
        for name in ("divergence", "loss"):
            low, high = mean_interval(by_prefix[name].to_numpy(np.float64))
            row |= {name: by_prefix[name].mean(), f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.DataFrame(rows)


def summarize_behaviour(
    answers: pd.DataFrame, memories: pd.DataFrame, of_memories: pd.DataFrame, of_sets: pd.DataFrame
) -> dict:
    """Returns the row of the table `SUMMARY`, without the behaviour and what is known of its file."""
    known = int(answers["difference"].notna().sum())
    right = int((answers["difference"] > 0).sum())
    low, high = wilson(right, known) if known else (np.nan, np.nan)
    every = of_sets[of_sets["choice"] == ALL].to_dict("records") if len(of_sets) else []
    names = {
        "by_memories": "completeness",
        "by_memories_low": "completeness_low",
        "by_memories_high": "completeness_high",
    }
    return {
        "prompts": len(answers),
        "accuracy": accuracy_of(answers),
        "low": float(low),
        "high": float(high),
        "explained": len(of_sets) > 0,
        "difference": answers["difference"].mean(),
        "patch_difference": answers["patch_difference"].mean(),
        "probability": answers["probability"].mean(),
        "significant": int((memories["q_value"] <= SIGNIFICANT).sum()),
        "screened": int((memories["screen_q"] <= SIGNIFICANT).sum()),
        **{name: every[0][column] if every else np.nan for name, column in names.items()},
        "pearson": correlation(of_memories, "screen_estimate"),
        "frozen_pearson": correlation(of_memories, "frozen_estimate"),
    }


def summarize_layers(memories: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the table `BY_LAYER` of one behaviour, from the table `MEMORIES`."""
    by_layer = memories.assign(
        significant=memories["q_value"] <= SIGNIFICANT, screened=memories["screen_q"] <= SIGNIFICANT
    ).groupby("layer")
    return pd.DataFrame(
        {
            "memories": by_layer.size(),
            "significant": by_layer["significant"].sum(),
            "screened": by_layer["screened"].sum(),
            "screen": by_layer["screen_estimate"].sum(),
            "frozen_screen": by_layer["frozen_estimate"].sum(min_count=1),
        }
    ).reset_index()


def summarize_stability(stability: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the table `OF_STABILITY` of one behaviour, from the table `STABILITY`."""
    groups = stability.groupby(["ranking", "compared"], sort=False)
    means = groups[["jaccard", "overlap"]].mean()
    return pd.concat([groups.size().rename("pairs"), groups["memories"].max(), means], axis=1).reset_index()
