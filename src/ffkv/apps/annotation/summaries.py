"""Summaries of what annotators said: agreement, controls, and figures 2 and the related changes by annotator."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pandas as pd

from ffkv.apps.annotation import agreement
from ffkv.apps.annotation.ratings import Ratings
from ffkv.base.intervals import mean_interval, wilson
from ffkv.branches.keys.tables import CATEGORIES
from ffkv.run.annotation_tables import AGREEMENT, ANNOTATORS, CHANGES

SETS = [frozenset(), frozenset({"shallow"}), frozenset({"semantic"}), frozenset({"shallow", "semantic"})]
OF_CATEGORY = {"none": 0, "shallow": 1, "semantic": 2, "shallow and semantic": 3}  # place in SETS
RELATED = {"true": 0, "false": 1, "unsure": 2}
PEOPLE = "people"  # all people together
KEY = ["layer", "memory"]


def first_time(table: pd.DataFrame, sample: str = "trigger") -> pd.DataFrame:
    """Returns the rows of what each annotator said about an item the first time."""
    return table[(table["occasion"] == 0) & (table["sample"] == sample)]


def count_categories(by_prefix: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Counts the prefixes of each category, per annotator and layer (figure 2). Layers without keys have none."""
    own = first_time(by_prefix)
    counts = own.groupby(["annotator", "layer", "category"]).size()
    index = pd.MultiIndex.from_product(
        [sorted(set(own["annotator"])), range(layers), CATEGORIES], names=counts.index.names
    )
    table = counts.reindex(index, fill_value=0).rename("prefixes").reset_index()
    keys = own.drop_duplicates(["annotator", *KEY]).groupby(["annotator", "layer"]).size()
    table["keys"] = keys.reindex(pd.MultiIndex.from_frame(table[["annotator", "layer"]]), fill_value=0).to_numpy()
    table["share"] = table["prefixes"] / table.groupby(["annotator", "layer"])["prefixes"].transform("sum")
    return table


def describe_annotators(ratings: Ratings) -> pd.DataFrame:
    """Describes each annotator: how many patterns in keys, and how often a control got one.

    A control has random prefixes. Whoever sees a pattern in it sees what is there by chance: the false-positive rate.
    """
    rows = []
    for annotator in sorted(set(ratings.by_prefix["annotator"])):
        keys, controls = (_keys_of(ratings, annotator, sample) for sample in ("trigger", "random"))
        found, by_chance = keys["patterns"].gt(0), controls["patterns"].gt(0)
        bounds = map(float, wilson(by_chance.sum(), len(controls))) if len(controls) else (np.nan, np.nan)
        of_keys = (len(keys), int(found.sum()), keys["patterns"].mean(), keys["coverage"].mean())
        rows.append((annotator, *of_keys, len(controls), int(by_chance.sum()), by_chance.mean(), *bounds))
    return ANNOTATORS.frame(rows)


def _keys_of(ratings: Ratings, annotator: str, sample: str) -> pd.DataFrame:
    """Returns one row per key that an annotator judged: number of patterns, and share of prefixes that have one."""
    key = ["sheet", *KEY]
    prefixes, patterns = (first_time(table, sample) for table in (ratings.by_prefix, ratings.patterns))
    prefixes = prefixes[prefixes["annotator"] == annotator].assign(covered=lambda table: table["category"] != "none")
    found = pd.DataFrame({"coverage": prefixes.groupby(key)["covered"].mean()})
    found["patterns"] = patterns[patterns["annotator"] == annotator].groupby(key).size()
    return found.fillna({"patterns": 0})


def count_related(changes: pd.DataFrame) -> pd.DataFrame:
    """Counts related changes, per annotator and sample (paper section 5.2). Unsure ones count as not related."""
    rows = []
    for (annotator, sample), own in changes[changes["occasion"] == 0].groupby(["annotator", "sample"]):
        related, unsure = ((own["related"] == answer).sum() for answer in ("true", "unsure"))
        counts = (len(own), int(related), int(unsure), related / len(own))
        rows.append((annotator, sample, *counts, *map(float, wilson(related, len(own)))))
    return CHANGES.frame(rows)


def measure_agreement(ratings: Ratings) -> pd.DataFrame:
    """Measures how far any two annotators agree, each with himself on repeated items, and all people together.

    Only keys and changes of the run count, not the controls. Intervals are over keys, or over changes.

    Returns:
        Rows of `AGREEMENT`. unit: "prefix" (its category), "key" (whether it has a pattern), "pattern" (which prefixes)
        or "change" (whether the tokens are related). statistic: "raw", "kappa", "alpha", "alpha_masi" or "jaccard".
        keys: number of keys or changes that both judged; units: number of prefixes, keys, pairs of patterns' keys, or
        changes.
    """
    rows: list[tuple] = []
    prefixes, changes, patterns = _prefix_codes(ratings), _change_codes(ratings), _pattern_sets(ratings)
    for first, second in _pairs(prefixes, changes):
        names = [first[0], second[0]]
        both = _of_both(prefixes, [first, second])
        rows += [(*names, *row) for row in _categories(both)]
        rows += [(*names, *row) for row in _overlap(both, patterns)]
        rows += [(*names, *row) for row in _answers(_of_both(changes, [first, second]))]
    people = [name for name in prefixes if name[0].startswith("person:") and name[1] == 0]
    if len(people) > 1:
        together = prefixes[people]
        together = together[(together >= 0).sum(axis=1) > 1]
        rows += [(PEOPLE, PEOPLE, *row) for row in _categories(together) if row[1].startswith("alpha")]
    return AGREEMENT.frame(rows)


Annotator = tuple[str, int]  # a name, and the occasion


def _pairs(*tables: pd.DataFrame) -> Iterator[tuple[Annotator, Annotator]]:
    """Yields any two annotators on their first occasion, and each with himself on the second one."""
    names = sorted({name for table in tables for name in table.columns})
    yield from combinations([name for name in names if name[1] == 0], 2)
    yield from (((name, 0), (name, 1)) for name, occasion in names if occasion == 1)


def _prefix_codes(ratings: Ratings) -> pd.DataFrame:
    """Codes the category of each prefix [(layer, memory, rank), (annotator, occasion)]; `MISSING` for none."""
    return _wide(ratings.by_prefix, ratings.by_prefix["category"].map(OF_CATEGORY), [*KEY, "rank"])


def _change_codes(ratings: Ratings) -> pd.DataFrame:
    """Codes the answer about each change [row, (annotator, occasion)]."""
    return _wide(ratings.changes, ratings.changes["related"].map(RELATED), ["row"])


def _wide(said: pd.DataFrame, codes: pd.Series, index: list[str]) -> pd.DataFrame:
    own = said.assign(code=codes)[said["sample"] == "trigger"]
    if not len(own):
        return pd.DataFrame()
    wide = own.pivot(index=index, columns=["annotator", "occasion"], values="code")
    return wide.fillna(agreement.MISSING).astype(int).sort_index()


def _of_both(codes: pd.DataFrame, names: list[Annotator]) -> pd.DataFrame:
    """Returns the rows that both annotators judged."""
    if any(name not in codes for name in names):
        return pd.DataFrame(columns=names)
    both = codes[names]
    return both[(both >= 0).all(axis=1)]


def _categories(codes: pd.DataFrame) -> Iterator[tuple]:
    """Rows about the categories of prefixes, and about keys with and without a pattern."""
    by_key = [table.to_numpy().T for _, table in codes.groupby(level=KEY)] if len(codes) else []
    distances = {"alpha": agreement.nominal(len(SETS)), "alpha_masi": agreement.masi(SETS)}
    yield from _statistics("prefix", by_key, len(SETS), distances)
    # Whoever judged a key judged all its prefixes.
    keys = [np.where(codes_of.max(1) < 0, agreement.MISSING, codes_of.max(1) > 0)[:, None] for codes_of in by_key]
    yield from _statistics("key", keys, 2, {"alpha": agreement.nominal(2)})


def _answers(codes: pd.DataFrame) -> Iterator[tuple]:
    """Rows about changes. Each change is on its own."""
    rows = [row[:, None] for row in codes.to_numpy().astype(int)]
    yield from _statistics("change", rows, len(RELATED), {"alpha": agreement.nominal(len(RELATED))})


def _statistics(
    unit: str, by_key: list[np.ndarray], categories: int, distances: dict[str, np.ndarray]
) -> Iterator[tuple]:
    """Rows of one unit. by_key: categories of the units of each key [key][annotator, unit]."""
    if not by_key:
        return
    counts = (len(by_key), sum(codes.shape[1] for codes in by_key))
    if len(by_key[0]) == 2:
        tables = np.stack([agreement.confusion(codes[0], codes[1], categories) for codes in by_key])
        for name, statistic, lowest in (("raw", agreement.raw_agreement, 0), ("kappa", agreement.kappa, -1)):
            yield (unit, name, *agreement.with_interval(statistic, tables, lowest), *counts)
    tables = np.stack([agreement.coincidences(codes, categories) for codes in by_key])
    for name, distance in distances.items():
        found = agreement.with_interval(lambda table: agreement.alpha(table, distance), tables)  # noqa: B023
        yield (unit, name, *found, *counts)


def _pattern_sets(ratings: Ratings) -> dict[tuple, list[frozenset]]:
    """Returns the prefixes of each pattern, by annotator, occasion, layer and memory."""
    own = ratings.patterns[ratings.patterns["sample"] == "trigger"]
    found: dict[tuple, list[frozenset]] = {}
    for row in own.itertuples():
        found.setdefault((row.annotator, row.occasion, row.layer, row.memory), []).append(frozenset(row.ranks))
    return found


def _overlap(codes: pd.DataFrame, patterns: dict[tuple, list[frozenset]]) -> Iterator[tuple]:
    """Yields the row about which prefixes have patterns, over the keys in which either saw one."""
    if not len(codes):
        return
    keys = sorted({(layer, memory) for layer, memory, _ in codes.index})
    scores = [agreement.pattern_overlap(*(patterns.get((*name, *key), []) for name in codes)) for key in keys]
    scores = [score for score in scores if not np.isnan(score)]
    if scores:
        bounds = mean_interval(np.array(scores), 0, 1)
        yield "pattern", "jaccard", float(np.mean(scores)), *bounds, len(keys), len(scores)
