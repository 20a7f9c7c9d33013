"""Summaries of what annotators said: agreement, controls, and figures 2 and the related changes by annotator."""

from collections.abc import Iterator
from functools import partial
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
# Of each unit that is compared: how far apart two of its categories are.
DISTANCES = {
    "prefix": {"alpha": agreement.nominal(len(SETS)), "alpha_masi": agreement.masi(SETS)},
    "key": {"alpha": agreement.nominal(2)},
    "change": {"alpha": agreement.nominal(len(RELATED))},
}
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

    Only keys and changes of the run count, not the controls. Intervals are over keys, or over changes. Compared are the
    category of a prefix, whether a key has a pattern, which prefixes its patterns have, and whether tokens are related.
    """
    patterns, prefixes = _pattern_sets(ratings), _codes(ratings.by_prefix, "category", OF_CATEGORY, [*KEY, "rank"])
    # Of a key: whether it has a pattern. Whoever judged a key judged all its prefixes.
    keys = prefixes.groupby(level=KEY).max().clip(upper=1) if len(prefixes) else prefixes
    tables = {"prefix": prefixes, "key": keys, "change": _codes(ratings.changes, "related", RELATED, ["row"])}
    rows: list[tuple] = []
    for pair in _pairs(*tables.values()):
        names = [name for name, _ in pair]
        for unit, codes in tables.items():
            both = codes[pair] if all(name in codes for name in pair) else pd.DataFrame()
            both = both[(both >= 0).all(axis=1)]
            rows += [(*names, *row) for row in _statistics(unit, both)]
            if unit == "key" and len(both):
                rows += [(*names, *row) for row in _overlap(both, patterns)]
    people = [name for name in prefixes if name[0].startswith("person:") and name[1] == 0]
    for unit in ("prefix", "key") if len(people) > 1 else ():
        together = tables[unit][people]
        together = together[(together >= 0).sum(axis=1) > 1]
        rows += [(PEOPLE, PEOPLE, *row) for row in _statistics(unit, together) if row[1].startswith("alpha")]
    return AGREEMENT.frame(rows)


def _pairs(*tables: pd.DataFrame) -> Iterator[list[tuple[str, int]]]:
    """Yields any two annotators on their first occasion, and each with himself on the second one."""
    names = sorted({name for table in tables for name in table.columns})
    yield from map(list, combinations([name for name in names if name[1] == 0], 2))
    yield from ([(name, 0), (name, 1)] for name, occasion in names if occasion == 1)


def _codes(said: pd.DataFrame, answer: str, codes: dict[str, int], index: list[str]) -> pd.DataFrame:
    """Codes the answers about the run's own items [item, (annotator, occasion)]; `MISSING` for none."""
    own = said.assign(code=said[answer].map(codes))[said["sample"] == "trigger"]
    if not len(own):
        return pd.DataFrame()
    wide = own.pivot(index=index, columns=["annotator", "occasion"], values="code")
    return wide.fillna(agreement.MISSING).astype(int).sort_index()


def _statistics(unit: str, codes: pd.DataFrame) -> Iterator[tuple]:
    """Yields the rows about one unit, from the codes of some annotators. Each key, or each change, is on its own."""
    if not len(codes):
        return
    distances = DISTANCES[unit]
    of_each = [table.to_numpy().T for _, table in codes.groupby(level=[*codes.index.names[:2]])]  # [annotator, unit]
    counts, categories = (len(of_each), len(codes)), len(distances["alpha"])
    if len(codes.columns) == 2:
        tables = np.stack([agreement.confusion(each[0], each[1], categories) for each in of_each])
        for name, statistic, lowest in (("raw", agreement.raw_agreement, 0), ("kappa", agreement.kappa, -1)):
            yield (unit, name, *agreement.with_interval(statistic, tables, lowest), *counts)
    tables = np.stack([agreement.coincidences(each, categories) for each in of_each])
    for name, distance in distances.items():
        yield (unit, name, *agreement.with_interval(partial(agreement.alpha, distance=distance), tables), *counts)


def _pattern_sets(ratings: Ratings) -> dict[tuple, list[frozenset]]:
    """Returns the prefixes of each pattern, by annotator, occasion, layer and memory."""
    own = ratings.patterns[ratings.patterns["sample"] == "trigger"]
    found: dict[tuple, list[frozenset]] = {}
    for row in own.itertuples():
        found.setdefault((row.annotator, row.occasion, row.layer, row.memory), []).append(frozenset(row.ranks))
    return found


def _overlap(codes: pd.DataFrame, patterns: dict[tuple, list[frozenset]]) -> Iterator[tuple]:
    """Yields the row about which prefixes have patterns, over the keys in which either saw one."""
    scores = [agreement.pattern_overlap(*(patterns.get((*name, *key), []) for name in codes)) for key in codes.index]
    scores = [score for score in scores if not np.isnan(score)]
    if scores:
        yield "pattern", "jaccard", np.mean(scores), *mean_interval(np.array(scores), 0, 1), len(codes), len(scores)
