"""The folder of a comparison: its runs, what they have in common, and what was measured, as tables.

Of behaviours that several runs have by the same name: whether they do it, and how much of it which memories carry.
"""

import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic
from ffkv.base.files.stored import unreadable, verify_sum
from ffkv.base.intervals import interval_over_groups, without_each
from ffkv.base.lookup import exists, read_json
from ffkv.base.settings import Comparison
from ffkv.branches.behaviours.summary_tables import OF_SETS
from ffkv.branches.behaviours.tables import ANSWERS, PROMPTS
from ffkv.branches.behaviours.told import row_of
from ffkv.branches.behaviours.words import ALL, BY_SCREEN, RANDOM
from ffkv.run.report.page_tables import FACTS
from ffkv.run.report.wording import rows
from ffkv.run.results import indexes
from ffkv.run.results.run import Run
from ffkv_comparison.tables import BEHAVIOUR_MEMORIES, OF_BEHAVIOURS, TABLES


@dataclass(frozen=True)
class Compared:
    """Finished runs that are compared."""

    name: str  # name of the comparison
    settings: Comparison
    runs: list[Run]  # the runs, in the order of the settings

    @functools.cached_property
    def labels(self) -> list[str]:
        """What each run is called in figures: no two alike."""
        names = [run.name for run in self.runs]
        labels = self.settings.labels or [f"{self.settings.axis} {value:g}" for value in self.settings.values] or names
        if len({*labels}) < len(labels):
            return [f"{label} ({name})" for label, name in zip(labels, names, strict=True)]
        return labels

    @property
    def places(self) -> list[float]:
        """The place of each run on the axis; NaN without an axis."""
        return self.settings.values or [math.nan] * len(self.runs)

    @functools.cached_property
    def memories(self) -> str:
        """How memories are found in other runs: "by_number", "by_correlation" or "no".

        Raises UserError if the settings ask for memories by number, and models have different shapes or dictionaries, or random weights.
        """
        models = [run.anatomy for run in self.runs]
        alike = len({(model.dictionary, model.width, *model.layer_offset) for model in models}) == 1
        if self.settings.memories == "by_number" and not alike:
            shapes = [
                f"{run} has {len(model.layers)} layers, {model.layer_offset[-1]} memories and a width of {model.width}"
                f"{f' and is read through {model.dictionary}' if model.dictionary else ''}"
                for run, model in zip(self.settings.runs, models, strict=True)
            ]
            raise UserError(
                f"comparisons.{self.name}.memories is by_number, and the models have different shapes or dictionaries: "
                f"{'; '.join(shapes)}. Set it to by_correlation."
            )
        several = len({model.model_hash for model in models}) > 1
        random = [run.name for run in self.runs if several and run.anatomy.weights == "random"]
        if self.settings.memories == "by_number" and random:
            raise UserError(
                f"comparisons.{self.name}.memories is by_number, and the weights of {', '.join(random)} are random: its memories"
                " are no memories of another model. Set it to by_correlation or no."
            )
        if self.settings.memories == "auto":
            return "by_number" if alike and not random else "by_correlation"
        return self.settings.memories


def same_text(a: Run, b: Run, split: str) -> bool:
    """Tells whether two runs read the same sentences of the same tokens in a split, which then have equal numbers."""
    names = ("tokenizer_hash", "corpus_hash")
    return all(a.files.identity(split)[name] == b.files.identity(split)[name] for name in names)


def same_prefixes(a: Run, b: Run) -> bool:
    """Tells whether two runs sampled the same validation prefixes, in the same order."""
    if not same_text(a, b, "validation"):
        return False
    with a.files.open_sampled_prefixes() as one, b.files.open_sampled_prefixes() as other:
        return all(np.array_equal(one[name][...], other[name][...]) for name in ("sentence", "position"))


FILES = {table.name: PurePath(table.path).name for table in TABLES}


@dataclass(frozen=True)
class Measured:
    """A comparison, measured: its tables (`ffkv_comparison.tables`), which may be empty."""

    name: str
    settings: Comparison
    memories: str  # how memories are found in other runs: "by_number", "by_correlation" or "no"
    runs: pd.DataFrame
    claims: pd.DataFrame
    curves: pd.DataFrame
    costs: pd.DataFrame
    differences: pd.DataFrame
    by_memory: pd.DataFrame
    by_layer: pd.DataFrame
    matches: pd.DataFrame
    behaviours: pd.DataFrame
    behaviour_memories: pd.DataFrame
    behaviour_overlaps: pd.DataFrame

    def table(self, name: str) -> pd.DataFrame:
        """Returns a table by its name."""
        found: pd.DataFrame = getattr(self, name)
        return found

    @property
    def labels(self) -> dict[str, str]:
        """What each run is called in figures, by the names of the runs in their order."""
        return dict(zip(self.runs["run"], self.runs["label"], strict=True))

    @property
    def same_depth(self) -> bool:
        """Whether all models have the same number of layers."""
        return self.runs["layers"].nunique() == 1


def write_comparison(measured: Measured, folder: Path | str) -> None:
    """Writes a comparison into a new folder: `comparison.json` and its tables. Raises UserError: see `files.atomic`."""
    facts = {"name": measured.name, "memories": measured.memories, "settings": measured.settings.model_dump()}
    with atomic(folder) as temporary:
        temporary.mkdir()
        (temporary / FACTS).write_text(json.dumps(facts, indent=2) + "\n")
        for name, file in FILES.items():
            if len(frame := measured.table(name)):
                write = frame.to_parquet if file.endswith(".parquet") else frame.to_csv
                with (temporary / file).open("wb") as opened:
                    write(opened, index=False)


def read_comparison(folder: Path | str) -> Measured:
    """Reads what `write_comparison` wrote. Raises UserError if it is missing, damaged or of another ffkv."""
    folder = Path(folder)
    verify_sum(folder)
    try:
        facts = read_json(folder / FACTS)
        settings = Comparison.model_validate(facts["settings"])
    except FileNotFoundError as error:
        raise UserError(f"{folder} holds no comparison: {folder / FACTS} does not exist.") from error
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(folder / FACTS, error) from error
    frames = {}
    for table in TABLES:
        path, texts = folder / FILES[table.name], [column.name for column in table.columns if column.dtype == "str"]
        frame = tables.read(path, texts) if exists(path) else pd.DataFrame(columns=table.names)
        frames[table.name] = table.completed(frame)
        if lacking := [name for name in table.names if name not in frames[table.name]]:
            raise UserError(
                f"{path} has no column {lacking[0]}: another version of ffkv wrote it. Measure the comparison again."
            )
        numbers = {column.name: column.dtype for column in table.columns if column.dtype.startswith("float")}
        frames[table.name] = frames[table.name].astype(numbers)  # a column without a number reads as one of texts
    return Measured(name=facts["name"], settings=settings, memories=facts["memories"], **frames)


LOST = {"lost": BY_SCREEN, "random_lost": RANDOM, "all_lost": ALL}  # the choice of sets that each share is of


def compare_behaviours(compared: Compared) -> dict[str, pd.DataFrame]:
    """Gathers the behaviours that several runs have by the same name. A run without a behaviour is left out.

    Returns the tables `OF_BEHAVIOURS` by their names. The last two have no rows unless memories are found by number. Raises UserError if a file is missing or damaged.
    """
    having = Counter(name for run in compared.runs for name in run.settings.behaviours)
    found, memories, overlaps = [], [], []
    for name in (name for name, count in having.items() if count > 1):
        runs = {run: place for run, place in zip(compared.runs, compared.places) if name in run.settings.behaviours}
        first = next(iter(runs))
        found += [{"run": run.name, "axis": place, **describe(run, name, first)} for run, place in runs.items()]
        if compared.memories == "by_number":
            own, sizes = [candidates(run, name) for run in runs], np.diff(first.anatomy.layer_offset).tolist()
            memories += own
            overlaps += [overlap_of(before, after, sizes) for before, after in itertools.pairwise(own)]
    of_memories = pd.concat(memories, ignore_index=True) if memories else []
    gathered = zip(OF_BEHAVIOURS, (found, of_memories, overlaps), strict=True)
    return {table.name: table.frame(rows) for table, rows in gathered}


def describe(run: Run, name: str, first: Run) -> dict[str, Any]:
    """Returns a row of the table `BEHAVIOURS`, without run and axis. `first`: the first run that has the behaviour."""
    summary = row_of(run, name)
    answers, prompts = (run.files.file_rows(each.path.format(behaviour=name)) for each in (ANSWERS, PROMPTS))
    known = answers[["prompt", "difference"]].dropna().merge(prompts[["prompt", "group"]], on="prompt")
    # Each prompt of a run that is older than groups is one.
    weights = without_each(known["group"].where(known["group"] != "", known["prompt"].astype(str)).to_numpy())
    low, high = interval_over_groups(weights @ known["difference"].to_numpy(np.float64))
    own, other = (each.settings.behaviours[name].model_dump() for each in (run, first))
    row = {
        "behaviour": name,
        "positions": own["positions"],
        "other_settings": ", ".join(key for key in own if own[key] != other[key]),
        "prompts": summary["prompts"],
        "groups": summary["prompts"] if np.isnan(summary["groups"]) else summary["groups"],
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
    found = indexes.candidates(run.files, name).assign(run=run.name)[BEHAVIOUR_MEMORIES.names]
    if not len(found):
        raise UserError(
            f"{run.folder} has no candidates of the behaviour {name}. Run `snakemake` again: it makes them."
        )
    return found


def overlap_of(before: pd.DataFrame, after: pd.DataFrame, sizes: Sequence[int]) -> dict[str, Any]:
    """Returns a row of the table `BEHAVIOUR_OVERLAPS`, from the candidates of two runs. `sizes`: memories per layer."""
    a, b = ({*zip(each["layer"], each["memory"], strict=True)} for each in (before, after))
    of_a, of_b = (Counter(layer for layer, _ in each) for each in (a, b))
    counts = [(of_a[layer], of_b[layer], size) for layer, size in enumerate(sizes)]
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

    It is exact: the number of shared memories of a layer has a hypergeometric distribution. `counts`: of each layer,
    memories in the first set, in the second set, and in the layer.
    """
    counts = [*counts]
    shared = np.ones(1)  # the probability of each number of shared memories
    for one, other, size in counts:
        ways = [math.comb(one, k) * math.comb(size - one, other - k) for k in range(min(one, other) + 1)]
        shared = np.convolve(shared, [each / math.comb(size, other) for each in ways])
    number = np.arange(len(shared))
    both = sum(one + other for one, other, _ in counts)
    return float((shared * number / (both - number)).sum())
