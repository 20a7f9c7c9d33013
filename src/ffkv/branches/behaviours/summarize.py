"""The last step sums up a behaviour: whether the model has it, how much of it memories carry, and which ones."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from ffkv.base.files.columns import REACHES, Table
from ffkv.base.intervals import interval_over_groups, is_above_0, mean_interval, put_estimate, wilson, without_each
from ffkv.base.multiple_tests import SIGNIFICANT, permutation_p, q_values
from ffkv.branches.behaviours import stored, summary_tables
from ffkv.branches.behaviours.missed import STRATA, most_of, strata_of
from ffkv.branches.behaviours.tables import GRAPHS
from ffkv.branches.behaviours.words import ALL, DIRECTIONS, EVERYTHING, MEMORIES, OUTSIDE, OWN, REFERENCE
from ffkv.branches.given import Given


def summarize_behaviours(given: Given) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all behaviours for the report's section of behaviours."""
    every = {name: given.table(name, given.identity) for name in given.files if name not in ("model", "projections")}
    made: dict[Table, list[pd.DataFrame]] = {each: [] for each in summary_tables.SUMMARIES}
    for name in every["encode"]["behaviour"].drop_duplicates():
        own = {key: table[table["behaviour"] == name] for key, table in every.items()}
        for table, frame in summarize(own, given.top_token_texts).items():
            if len(frame):
                made[table].append(frame.assign(behaviour=name))
    for of_one, table in zip(GRAPHS, summary_tables.ALL_GRAPHS, strict=True):
        frame = every[of_one.name]
        made[table] = [frame.assign(token=given.top_token_texts(frame)) if "token" in table.names else frame]
    made[summary_tables.ALL_EXPERTS] = [every["experts"]]
    return {
        table.name: table.frame(pd.concat(frames, ignore_index=True) if frames else [])
        for table, frames in made.items()
    }


def summarize(
    own: Mapping[str, pd.DataFrame], top_tokens: Callable[[pd.DataFrame], list[str]]
) -> dict[Table, pd.DataFrame]:
    """Returns the rows of all tables of the report of one behaviour, without its name. A table may be empty.

    Args:
        own: the tables of the other steps, by the names of the options of `ffkv behaviours summarize`.
        top_tokens: gives the top token of the value of each row's memory, see `Given.top_token_texts`.
    """
    encoded = own["encode"][own["encode"]["part"] != REFERENCE]
    group = encoded.set_index("prompt")["group"]
    of_memories = summarize_effects(own["effects"], own["memories"], group, top_tokens)
    of_sets = summarize_sets(own["sets"], own["answers"], group) if len(own["sets"]) else pd.DataFrame()
    areas = summarize_areas(own["parts"], own["sets"], own["answers"], group) if len(own["sets"]) else pd.DataFrame()
    row = summarize_behaviour(own["answers"], own["memories"], group, of_memories, of_sets)
    row |= {"kind": stored.kind_of(encoded), "lines": len(encoded), "grouped_by": encoded["grouped_by"].iloc[0]}
    row["several"] = int((stored.used(encoded)[["answer_rest", "wrong_rest"]].map(len) > 0).any(axis=1).sum())
    counts = encoded["unused"].value_counts(sort=False)
    return {
        summary_tables.SUMMARY: pd.DataFrame([row]),
        summary_tables.UNUSED: pd.DataFrame({"unused": counts.index, "prompts": counts.to_numpy()}),
        summary_tables.BY_LAYER: summarize_layers(own["memories"]),
        summary_tables.OF_MEMORIES: of_memories,
        summary_tables.OF_SETS: of_sets,
        summary_tables.AREAS: areas,
        summary_tables.MISSED: summarize_missed(own["effects"], own["memories"], of_memories),
        summary_tables.OF_WRITERS: summarize_writers(own["writers"], group),
        summary_tables.OF_SIDE_EFFECTS: summarize_side_effects(own["side_effects"]),
        summary_tables.OF_STABILITY: summarize_stability(own["stability"]),
    }


def summarize_effects(
    effects: pd.DataFrame, memories: pd.DataFrame, group: pd.Series, top_tokens: Callable[[pd.DataFrame], list[str]]
) -> pd.DataFrame:
    """Returns the rows of the table `OF_MEMORIES` of one behaviour, from `EFFECTS` of all shards (empty if no effect was measured) and
    `MEMORIES`. `group`: of each prompt, by its number. `top_tokens`: see `summarize`.
    """
    candidates = memories[memories["by_contrast"] | memories["by_screen"]]
    candidates = candidates.assign(token=top_tokens(candidates))
    rows = []
    for each in candidates.to_dict("records"):
        own = effects[(effects["layer"] == each["layer"]) & (effects["memory"] == each["memory"])]
        rows += [each | {"reach": reach} | _effect(own[own["reach"] == reach], group) for reach in REACHES]
    table = pd.DataFrame(rows)
    if not len(table):
        return table
    # A q-value is not known where even an effect above those of all controls has no p-value of 0.05.
    known = table["effect_p"].notna() & (1 / (1 + table.pop("controls")) <= SIGNIFICANT)
    table["effect_q"] = np.nan
    for _, of_reach in table[known].groupby("reach"):
        table.loc[of_reach.index, "effect_q"] = q_values(of_reach["effect_p"].to_numpy(), len(of_reach))
    total = table[table["reach"] == "total"].set_index(["layer", "memory"])["effect"]
    exact = pd.Index(table.set_index(["layer", "memory"]).index).map(total).to_numpy(float)
    larger = np.maximum(np.abs(exact), np.abs(table["screen_measured"]))
    table["disagrees"] = np.abs(table["screen_measured"] - exact) > larger / 2
    return table


def _effect(rows: pd.DataFrame, group: pd.Series) -> dict:
    """Returns the effect of one candidate by one reach beside its controls; NaN if it was not measured."""
    names = ("effect", "low", "high", "random_memories", "random_directions", "chance", "effect_p")
    if not len(rows):
        return {"prompts": 0, "controls": 0} | dict.fromkeys(names, np.nan)
    by_prompt = rows[rows["source"] == OWN].set_index("prompt")["effect"].astype(np.float64)
    own = by_prompt.to_numpy()
    by_control = rows[rows["source"] == MEMORIES].groupby("control")["effect"].mean().to_numpy(np.float64)
    directions = rows.loc[rows["source"] == DIRECTIONS, "effect"]
    low, high = interval_over_groups(without_each(group.loc[by_prompt.index].to_numpy()) @ own)
    return {
        "prompts": len(own),
        "controls": len(by_control),
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


def summarize_sets(sets: pd.DataFrame, answers: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """Returns the rows of the table `OF_SETS` of one behaviour.

    The behaviour is by how much the logit difference is above the floor: that on the patch prompts; without these, and where memories
    are patched to something else, that with all memories patched: then a set of all carries all by construction, which is not told.
    Shares are of means over prompts. There are none if the behaviour is not above 0, or its interval has the 0. `sets`: the table `SETS`
    of all shards. `answers`: `ANSWERS`. `group`: of each prompt, by its number.
    """
    answers = answers.set_index("prompt")
    prompts = sets["prompt"].drop_duplicates().to_numpy()
    clean = answers.loc[prompts, "difference"].to_numpy(np.float64)
    floor = answers.loc[prompts, "floor"].to_numpy(np.float64)
    by_construction = np.isnan(floor).any()
    if by_construction:
        floor = sets[sets["choice"] == ALL].set_index("prompt").loc[prompts, "patched"].to_numpy(np.float64)
    weights, memories = without_each(group.loc[prompts].to_numpy()), sets["memories"][sets["choice"] == ALL].max()
    behaviour = weights @ (clean - floor)
    there = is_above_0(behaviour)
    rows = []
    for (choice, size), own in sets.groupby(["choice", "size"], sort=False):
        by_prompt = own.groupby("prompt")[["patched", "kept", "memories"]].mean().loc[prompts]
        lost, left = clean - by_prompt["patched"].to_numpy(), by_prompt["kept"].to_numpy() - floor
        row = {"choice": choice, "size": size, "memories": by_prompt["memories"].mean(), "prompts": len(prompts)}
        for name, part in (("completeness", lost), ("faithfulness", left)):
            shares = weights @ part / behaviour if there else np.full(1, np.nan)
            if by_construction and row["memories"] == memories:
                shares = shares[:1] * np.nan
            row[name], row[f"{name}_low"], row[f"{name}_high"] = shares[0], *interval_over_groups(shares)
        rows.append(row)
    return pd.DataFrame(rows)


def summarize_areas(parts: pd.DataFrame, sets: pd.DataFrame, answers: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """Returns the rows of the table `AREAS` of one behaviour (CPR and CMD of MIB, Mueller et al. 2025).

    f(C) = (m(C) - m(none)) / (m(all) - m(none)), with m(C) the mean logit difference when all memories but C are patched. There is no area
    if m(all) is not above m(none), or the interval of that has the 0. `parts`: the table `PARTS`. For the others see `summarize_sets`.
    """
    none = sets[sets["choice"] == ALL].set_index("prompt")["patched"].astype(np.float64)
    weights, clean = without_each(group.loc[none.index].to_numpy()), answers.set_index("prompt")["difference"]
    whole = weights @ (clean.loc[none.index].to_numpy(np.float64) - none.to_numpy())
    rows: list[dict] = []
    if not is_above_0(whole):
        return pd.DataFrame(rows)
    for choice, own in parts.groupby("choice", sort=False):
        kept = own.pivot(index="prompt", columns="share", values="kept").loc[none.index].astype(np.float64)
        f = weights @ (kept.to_numpy() - none.to_numpy()[:, None]) / whole[:, None]
        rows.append({"choice": choice, "prompts": len(none)})
        for name, heights, lowest in (("cpr", f, -np.inf), ("cmd", np.abs(1 - f), 0)):
            areas = np.trapezoid(heights, kept.columns.to_numpy(np.float64), axis=1)
            low, high = np.maximum(interval_over_groups(areas), lowest)
            rows[-1] |= {name: areas[0], f"{name}_low": low, f"{name}_high": high}
    return pd.DataFrame(rows)


def summarize_missed(effects: pd.DataFrame, memories: pd.DataFrame, of_memories: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the table `MISSED` of one behaviour; none if nothing was drawn. For the arguments see `summarize_effects`.

    The limit is the smallest effect of a candidate with q <= 0.05; without one, nothing is counted. All bounds together hold with 95 %.
    """
    own = effects[effects["source"] == OUTSIDE]
    if not len(own):
        return pd.DataFrame()
    measured = own.groupby(["layer", "memory"])["effect"].mean().abs()
    limit = of_memories.query(f"reach == 'total' and effect_q <= {SIGNIFICANT}")["effect"].abs().min()
    strata = pd.Series(strata_of(memories), memories.set_index(["layer", "memory"]).index)
    of_measured, rows = strata.loc[measured.index], []
    for stratum, size in strata[strata >= 0].value_counts().sort_index().items():
        found = measured[of_measured == stratum]
        above, drawn = int((found >= limit).sum()), len(found)
        row = {"stratum": stratum, "memories": size, "measured": drawn, "largest": found.max(), "limit": limit}
        if not np.isnan(limit):
            most = most_of(above, drawn, int(size), SIGNIFICANT / STRATA)
            row |= {"above": above, "estimate": above * size / drawn if drawn else np.nan, "most": most}
        rows.append(row)
    return pd.DataFrame(rows, columns=summary_tables.MISSED.names[1:])


def summarize_writers(writers: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """Returns the rows of the table `OF_WRITERS` of one behaviour, from the table `WRITERS`. `group`: of each prompt, by its number.

    Shares are of what everything does. There are none if that is not above 0, or its interval has the 0.
    """
    found = []
    for (reach, positions), own in writers.groupby(["reach", "positions"], sort=False):
        effects = own.pivot_table("effect", "prompt", ["layer", "writer"], sort=False)
        every = without_each(group.loc[effects.index].to_numpy()) @ effects.to_numpy(np.float64)
        table = effects.columns.to_frame(index=False).assign(reach=reach, positions=positions, prompts=len(effects))
        put_estimate(table, "effect", every, plain=True)
        (whole,) = np.flatnonzero(table["writer"] == EVERYTHING)
        there = is_above_0(every[:, whole])
        put_estimate(table, "share", every / every[:, [whole]] if there else every * np.nan)
        found.append(table)
    return pd.concat(found) if found else pd.DataFrame()


def summarize_side_effects(side_effects: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the table `OF_SIDE_EFFECTS` of one behaviour, from the table `SIDE_EFFECTS`."""
    rows = []
    for (choice, size), own in side_effects.groupby(["choice", "size"], sort=False):
        by_prefix = own.groupby("prefix")[["divergence", "loss", "memories"]].mean()
        row = {"choice": choice, "size": size, "memories": by_prefix["memories"].mean(), "prefixes": len(by_prefix)}
        for name, lowest in (("divergence", 0), ("loss", -np.inf)):
            ends = mean_interval(by_prefix[name].to_numpy(np.float64), lowest)
            row[name], row[f"{name}_low"], row[f"{name}_high"] = by_prefix[name].mean(), *ends
        rows.append(row)
    return pd.DataFrame(rows)


def summarize_behaviour(
    answers: pd.DataFrame, memories: pd.DataFrame, group: pd.Series, of_memories: pd.DataFrame, of_sets: pd.DataFrame
) -> dict:
    """Returns the row of the table `SUMMARY`, without the behaviour and what is known of its file.

    The interval of the accuracy is that of as many answers as there are groups of prompts. `group`: of each prompt, by its number.
    """
    accuracy, groups = stored.accuracy_of(answers), group.loc[answers["prompt"]].nunique()
    low, high = (np.nan, np.nan) if np.isnan(accuracy) else wilson(accuracy * groups, groups)
    every = of_sets[of_sets["choice"] == ALL].to_dict("records") if len(of_sets) else []
    shares = {f"by_memories{end}": every[0][f"completeness{end}"] if every else np.nan for end in ("", "_low", "_high")}
    smallest = memories["smallest_p"].iloc[0]
    able = 1.0 if smallest <= SIGNIFICANT else np.nan
    return {
        "prompts": len(answers),
        "groups": groups,
        "accuracy": accuracy,
        "low": float(low),
        "high": float(high),
        "explained": len(of_sets) > 0,
        "difference": answers["difference"].mean(),
        "patch_difference": answers["patch_difference"].mean(),
        "probability": answers["probability"].mean(),
        "smallest_p": smallest,
        "significant": able * (memories["q_value"] <= SIGNIFICANT).sum(),
        "screened": able * (memories["screen_q"] <= SIGNIFICANT).sum(),
        **shares,
        "pearson": correlation(of_memories, "screen_measured"),
        "frozen_pearson": correlation(of_memories, "frozen_measured"),
    }


def summarize_layers(memories: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the table `BY_LAYER` of one behaviour, from the table `MEMORIES`."""
    able = np.where(memories["smallest_p"] <= SIGNIFICANT, 1.0, np.nan)
    significant, screened = (able * (memories[q] <= SIGNIFICANT) for q in ("q_value", "screen_q"))
    by_layer = memories.assign(significant=significant, screened=screened).groupby("layer")
    found = by_layer[["significant", "screened", "screen_estimate", "frozen_estimate"]].sum(min_count=1)
    found = found.rename(columns={"screen_estimate": "screen", "frozen_estimate": "frozen_screen"})
    return found.assign(memories=by_layer.size()).reset_index()


def summarize_stability(stability: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the table `OF_STABILITY` of one behaviour, from the table `STABILITY`."""
    groups = stability.groupby(["ranking", "compared"], sort=False)
    means = groups[["jaccard", "overlap"]].mean()
    return pd.concat([groups.size().rename("pairs"), groups["memories"].max(), means], axis=1).reset_index()
