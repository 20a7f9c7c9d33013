"""Behaviours that several runs have by the same name: whether they do it, and how much of it which memories carry."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.files import tables
from ffkv.base.intervals import mean_interval
from ffkv.branches.behaviours.tables import ANSWERS, OF_SETS, SUMMARY
from ffkv.branches.behaviours.words import ALL, BY_SCREEN, RANDOM
from ffkv.run.comparison.compared import Compared
from ffkv.run.comparison.tables import BEHAVIOUR_MEMORIES, BEHAVIOUR_OVERLAPS, BEHAVIOURS
from ffkv.run.report.wording import rows
from ffkv.run.results import indexes
from ffkv.run.results.run import Run

LOST = {"lost": BY_SCREEN, "random_lost": RANDOM, "all_lost": ALL}  # the choice of sets that each share is of


def compare_behaviours(compared: Compared) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Gathers the behaviours that several runs have by the same name. A run without a behaviour is left out.

    Returns:
        The tables `BEHAVIOURS`, `BEHAVIOUR_MEMORIES` and `BEHAVIOUR_OVERLAPS`. The last two have no rows unless memories are
        found by number.
    Raises:
        UserError: a file is missing or damaged.
    """
    having = Counter(name for run in compared.runs for name in run.settings.behaviours)
    places = compared.settings.values or [math.nan] * len(compared.runs)
    found, memories, overlaps = [], [], []
    for name in (name for name, count in having.items() if count > 1):
        runs = [run for run in compared.runs if name in run.settings.behaviours]
        axis = [place for run, place in zip(compared.runs, places, strict=True) if run in runs]
        for run, place in zip(runs, axis, strict=True):
            found.append({"run": run.name, "axis": place, **describe(run, name, runs[0])})
        if compared.memories == "by_number":
            own = [candidates(run, name) for run in runs]
            memories += own
            for before, after in itertools.pairwise(own):
                overlaps.append(overlap_of(before, after, np.diff(runs[0].anatomy.layer_offset).tolist()))
    return (
        BEHAVIOURS.frame(found),
        BEHAVIOUR_MEMORIES.frame(pd.concat(memories) if memories else []).reset_index(drop=True),
        BEHAVIOUR_OVERLAPS.frame(overlaps),
    )


def describe(run: Run, name: str, first: Run) -> dict[str, Any]:
    """Returns a row of the table `BEHAVIOURS`, without run and axis. `first`: the first run that has the behaviour."""
    summary = rows(run.table(SUMMARY.name), behaviour=name).iloc[0]
    answers = tables.read_all([run.folder / ANSWERS.path.format(behaviour=name)], run.anatomy.identity)
    low, high = mean_interval(answers["difference"].dropna().to_numpy(np.float64))
    own, other = (each.settings.behaviours[name].model_dump() for each in (run, first))
    row = {
        "behaviour": name,
        "positions": own["positions"],
        "other_settings": ", ".join(key for key in own if own[key] != other[key]),
        "prompts": summary["prompts"],
        "accuracy": summary["accuracy"],
        "accuracy_low": summary["low"],
        "accuracy_high": summary["high"],
        "difference": summary["difference"],
        "difference_low": low,
        "difference_high": high,
    }
    sets = rows(run.table(OF_SETS.name), behaviour=name)
    row["size"] = rows(sets, choice=BY_SCREEN)["size"].max()
    for share, choice in LOST.items():
        of_choice = rows(sets, choice=choice).sort_values("size").tail(1)
        for end in ("", "_low", "_high"):
            row[share + end] = next(iter(of_choice[f"completeness{end}"]), math.nan)
    return row


def candidates(run: Run, name: str) -> pd.DataFrame:
    """Returns the candidates of a behaviour in a run: the columns of `BEHAVIOUR_MEMORIES`."""
    return indexes.candidates(run.files, name).assign(run=run.name)[BEHAVIOUR_MEMORIES.names]


def overlap_of(before: pd.DataFrame, after: pd.DataFrame, sizes: Sequence[int]) -> dict[str, Any]:
    """Returns a row of the table `BEHAVIOUR_OVERLAPS`, from the candidates of two runs. `sizes`: memories per layer."""
    a, b = ({*zip(each["layer"], each["memory"], strict=True)} for each in (before, after))
    per_layer = [Counter(layer for layer, _ in each) for each in (a, b)]
    counts = [(per_layer[0][layer], per_layer[1][layer], size) for layer, size in enumerate(sizes)]
    return {
        "behaviour": before["behaviour"].iloc[0],
        "run": before["run"].iloc[0],
        "next_run": after["run"].iloc[0],
        "candidates": len(a),
        "next_candidates": len(b),
        "shared": len(a & b),
        "jaccard": len(a & b) / len(a | b),
        "chance": jaccard_by_chance(counts),
    }


def jaccard_by_chance(counts: Iterable[tuple[int, int, int]]) -> float:
    """Returns the mean Jaccard index of two sets that have as many memories in each layer, drawn at random.

    It is exact: the number of shared memories of a layer has a hypergeometric distribution.

    Args:
        counts: of each layer, memories in the first set, in the second set, and in the layer.
    """
    counts = [*counts]
    shared = np.ones(1)  # the probability of each number of shared memories
    for one, other, size in counts:
        ways = [math.comb(one, k) * math.comb(size - one, other - k) for k in range(min(one, other) + 1)]
        shared = np.convolve(shared, [each / math.comb(size, other) for each in ways])
    number = np.arange(len(shared))
    both = sum(one + other for one, other, _ in counts)
    return float((shared * number / (both - number)).sum())
