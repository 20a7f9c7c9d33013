"""Tables of what people, machines and tests said, and their summaries: agreement, controls, figure 2, related changes.

Agreement is raw agreement, Cohen's kappa, Krippendorff's alpha, and the overlap of patterns.
The prefixes of a key are not independent of each other. So every interval is over whole keys. What is
counted within a key is a table of categories by categories, the tables of keys add up, and each statistic follows from
the sum. That is why these few formulas stand here: libraries take single ratings, and give no interval. The tests
compare them with the worked examples of the packages krippendorff, scikit-learn and nltk.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.stored import check_identities
from ffkv.base.intervals import mean_interval, wilson
from ffkv.base.lookup import find, read_json
from ffkv.branches.keys.tables import CATEGORIES
from ffkv.run.annotation_tables import AGREEMENT, ANNOTATORS, BY_PREFIX, CHANGES, MACHINE_FILES, PATTERNS
from ffkv_annotation.records import Record
from ffkv_annotation.sheets import Origin, SecretKey

TESTS = "tests"
# `machine/<model>/settings.json` in `annotations/<run>`; tables beside it.
FOLDER, SETTINGS = "machine", "settings.json"
JUDGED = {"annotator": "str", "occasion": "int64", "sample": "str", "row": "int64", "other": "int64", "related": "str"}


class Ratings(NamedTuple):
    """What annotators said, but for items that they are not done with."""

    patterns: pd.DataFrame  # a row per pattern (`PATTERNS`). Patterns that are marked in too few prefixes are left out.
    by_prefix: pd.DataFrame  # a row per prefix of a judged key, with the category of the prefix (`BY_PREFIX`)
    changes: pd.DataFrame  # a row per judged change (`JUDGED`)


def tabulate(records: Iterable[Record], secrets: Mapping[str, SecretKey], minimum: int) -> Ratings:
    """Makes tables of records.

    If an annotator judged the same key several times, the first item counts as occasion 0, and the others as 1, 2, ...:
    an item that repeats another one, or one of a later sheet.

    `records`: the latest of each annotator and item; `secrets`: the secret keys of the sheets, by name; `minimum`:
    fewest prefixes of a pattern. Raises UserError if a record is of an item that no sheet has, or marks a prefix that
    its item has not.
    """
    said = [_with_origin(record, secrets) for record in records if record.done]
    said.sort(key=lambda each: (each[0].annotator, each[0].sheet, bool(each[1].repeats), each[0].item))
    occasions: dict[tuple, int] = {}
    patterns, prefixes, changes = [], [], []
    for record, origin in said:
        of_sheet = record.sheet if origin.sample == "random" else ""  # each sheet has controls of its own
        what = (record.annotator, of_sheet, origin.layer, origin.memory, origin.row, origin.other)
        occasion = occasions[what] = occasions.get(what, -1) + 1
        if record.kind == "change":
            changes.append((record.annotator, occasion, origin.sample, origin.row, origin.other, record.related))
            continue
        kept = [pattern for pattern in record.patterns if len(pattern.prefixes) >= minimum]
        place = (record.annotator, occasion, origin.sample, record.sheet, origin.layer, origin.memory)
        for number, pattern in enumerate(kept):
            ranks = sorted(origin.ranks[prefix] for prefix in pattern.prefixes)
            patterns.append((*place, number, pattern.kind, pattern.label, len(ranks), ranks))
        for prefix, rank in sorted(enumerate(origin.ranks), key=lambda each: each[1]):
            families = {pattern.kind for pattern in kept if prefix in pattern.prefixes}
            category = " and ".join(family for family in ("shallow", "semantic") if family in families)
            prefixes.append((*place, rank, category or "none"))
    judged = pd.DataFrame(changes, columns=[*JUDGED]).astype(JUDGED)
    return Ratings(PATTERNS.frame(patterns), BY_PREFIX.frame(prefixes), judged)


def _with_origin(record: Record, secrets: Mapping[str, SecretKey]) -> tuple[Record, Origin]:
    what = f"{record.annotator} judged the item {record.item} of the sheet {record.sheet}"
    if record.sheet not in secrets or record.item not in secrets[record.sheet].origins:
        raise UserError(f"{what}, and no secret key has it. Put the sheet's file back into the folder secret/.")
    origin = secrets[record.sheet].origins[record.item]
    if (record.kind == "change") != (origin.row >= 0):
        raise UserError(f"{what} as a {record.kind}, which it is not. Correct the record, or move its file away.")
    if any(prefix >= len(origin.ranks) for pattern in record.patterns for prefix in pattern.prefixes):
        raise UserError(
            f"{what}, and marked a prefix that it does not have: it has {len(origin.ranks)}. Correct the record, or"
            " move its file away."
        )
    return record, origin


def with_tests(said: Ratings, patterns: pd.DataFrame, by_prefix: pd.DataFrame) -> Ratings:
    """Adds rows of `keys/patterns` and `keys/by_prefix`: what the statistical tests found, as one more annotator."""
    own = {"annotator": TESTS, "occasion": 0, "sheet": ""}
    patterns = patterns.assign(**own, ranks=patterns["ranks"].map(list))[PATTERNS.names]
    both = zip(said, (patterns, by_prefix.assign(**own)[BY_PREFIX.names]))
    patterns, by_prefix = (pd.concat(parts, ignore_index=True) for parts in both)
    return Ratings(patterns, by_prefix, said.changes)


def read_machines(folder: Path, belongs_to: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Reads the labels and scores of all machines in `annotations/<run>`: tables by their names, sorted by machine.

    They have no rows if no machine explained memories. Raises UserError if a file is damaged or missing, or belongs to
    another model, tokenizer or corpus than the run.
    """
    places = []
    for path in find(folder / FOLDER, f"*/{SETTINGS}"):
        try:
            about = read_json(path)
            places.append((str(about["model"]), path.parent))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be read. Run `ffkv annotate machine` again with --replay.") from error
        check_identities(path, about, belongs_to)
    found = {}
    for file, described in MACHINE_FILES.items():
        rows: list[list[Any]] = []
        for model, place in sorted(places):
            table = tables.read(place / file, texts=[*described.foreign, "label"])
            rows += table.assign(annotator=f"machine:{model}")[described.names].to_numpy(object).tolist()
        found[described.name] = described.frame(rows)
    return found


MISSING = -1  # category of a unit that an annotator has not judged


def confusion(first: np.ndarray, second: np.ndarray, categories: int) -> np.ndarray:
    """Counts how often one annotator said a, and the other one b: number of units [a, b].

    `first`, `second`: what each of both said [unit], a category from 0, or `MISSING`. Such units are left out.
    """
    both = (first >= 0) & (second >= 0)
    counts = np.bincount(first[both] * categories + second[both], minlength=categories**2)
    return counts.reshape(categories, categories).astype(float)


def coincidences(ratings: np.ndarray, categories: int) -> np.ndarray:
    """Krippendorff's matrix of coincidences: pairs of ratings of the same unit.

    A unit with m ratings has m (m - 1) ordered pairs, each of the weight 1 / (m - 1). A unit with one rating has none.
    Takes the category of each unit, from 0, or `MISSING` [annotator, unit]. Returns the sum of weights [a, b].
    Source: Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section C.
    """
    said = (ratings[..., None] == np.arange(categories)).sum(0).astype(float)  # [unit, category]
    count = said.sum(1)
    said, count = said[count > 1], count[count > 1]
    weighted = said / (count - 1)[:, None]
    return weighted.T @ said - np.diag(weighted.sum(0))


def raw_agreement(counts: np.ndarray) -> np.ndarray:
    """Computes the share of units of which both say the same, from `confusion` [..., a, b]; NaN without a unit."""
    return _ratio(np.trace(counts, axis1=-2, axis2=-1), counts.sum((-2, -1)))


def kappa(counts: np.ndarray) -> np.ndarray:
    """Cohen's kappa (Cohen 1960), from `confusion` [..., a, b].

    It is (p_o - p_e) / (1 - p_e), where p_e is the agreement of two who answer at random, each with his own shares of
    the categories. It is NaN if both always say the same one category, because then p_e is 1.
    """
    total = counts.sum((-2, -1))
    observed = raw_agreement(counts)
    expected = _ratio((counts.sum(-1) * counts.sum(-2)).sum(-1), total**2)
    return _ratio(observed - expected, 1 - expected)


def alpha(counts: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Krippendorff's alpha, from `coincidences` [..., a, b].

    It is 1 - D_o / D_e: the observed disagreement over the one of ratings that are dealt out at random. It is NaN if
    all ratings are of one category. `distance`: how far apart two categories are [a, b], such as `masi`.
    """
    of_category = counts.sum(-1)  # number of ratings that can be paired
    total = of_category.sum(-1)
    dealt = of_category[..., :, None] * of_category[..., None, :]  # of a pair of equal categories, the distance is 0
    observed = _ratio((counts * distance).sum((-2, -1)), total)
    expected = _ratio((dealt * distance).sum((-2, -1)), total * (total - 1))
    return 1 - _ratio(observed, expected)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divides. It is NaN where the quotient is undefined. Rounding can leave a little of a difference that is 0."""
    above, below = np.asarray(above, float), np.asarray(below, float)
    defined = below > 1e-12
    return np.where(defined, above / np.where(defined, below, 1), np.nan)


def masi(sets: Sequence[frozenset]) -> np.ndarray:
    """Returns the MASI distance between sets (Passonneau 2006) [a, b].

    It is 1 - J·M. J is the Jaccard index. M is 1 for equal sets, 2/3 if one contains the other, 1/3 if they overlap,
    and 0 if they share nothing. Two empty sets are equal.
    """
    weights = [[1 if a == b else 2 / 3 if a < b or b < a else 1 / 3 for b in sets] for a in sets]
    return 1 - np.array([[jaccard(a, b) for b in sets] for a in sets]) * weights  # J is 0 if they share nothing


def jaccard(a: frozenset, b: frozenset) -> float:
    """Returns the Jaccard index: what both sets share, of what either has. Two empty sets are equal: 1."""
    return len(a & b) / len(a | b) if a | b else 1.0


def pattern_overlap(first: Sequence[frozenset], second: Sequence[frozenset]) -> float:
    """Measures how far two annotators saw the same patterns in a key.

    Patterns are matched one to one, so that the sum of the Jaccard indices of their prefixes is as high as possible.
    The sum is divided by the larger number of patterns: a pattern that only one of them saw counts as 0. It is NaN if
    neither saw a pattern. `first`, `second`: the prefixes of each pattern of one annotator, and of the other.
    """
    from scipy.optimize import linear_sum_assignment  # half a second, which the explorer need not wait for

    if not first or not second:
        return 0.0 if first or second else float("nan")
    scores = np.array([[jaccard(a, b) for b in second] for a in first])
    return float(scores[linear_sum_assignment(scores, maximize=True)].sum() / max(scores.shape))


def with_interval(
    statistic: Callable[[np.ndarray], np.ndarray], tables: np.ndarray, lowest: float = -np.inf
) -> tuple[float, float, float]:
    """Returns a statistic with its 95 % interval over keys.

    The interval is that of the mean of the jackknife's pseudo-values (Tukey 1958): of each key, how far the statistic
    changes without it. See `ffkv.base.intervals.mean_interval`. The bounds are NaN with fewer than two keys, if the statistic is
    undefined without one of them, and if all pseudo-values of what is no share are equal: they show no scatter. `statistic`: takes
    sums of tables [..., a, b], and returns numbers [...] from `lowest` (0: shares) to 1; `tables`: the table of each key [key, a, b].
    """
    whole, count = tables.sum(0), len(tables)
    value = float(statistic(whole))
    of_keys = (count * value - (count - 1) * statistic(whole - tables)).round(9)  # equal ones may differ by rounding
    if count < 2 or np.isnan(of_keys).any() or (lowest and not np.ptp(of_keys)):
        return value, float("nan"), float("nan")
    return value, *mean_interval(of_keys, lowest, 1)


SETS = [frozenset(), frozenset({"shallow"}), frozenset({"semantic"}), frozenset({"shallow", "semantic"})]
OF_CATEGORY = {"none": 0, "shallow": 1, "semantic": 2, "shallow and semantic": 3}  # place in SETS
RELATED = {"true": 0, "false": 1, "unsure": 2}
# Of each unit that is compared: how far apart two of its categories are. Some are only equal or different.
DISTANCES = {
    "prefix": {"alpha": 1 - np.eye(len(SETS)), "alpha_masi": masi(SETS)},
    "key": {"alpha": 1 - np.eye(2)},
    "change": {"alpha": 1 - np.eye(len(RELATED))},
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
    levels = [sorted(set(own["annotator"])), range(layers), CATEGORIES]
    index = pd.MultiIndex.from_product(levels, names=counts.index.names)
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
    patterns: dict[tuple, list[frozenset]] = {}  # the prefixes of each, by annotator, occasion, layer and memory
    for row in ratings.patterns[ratings.patterns["sample"] == "trigger"].itertuples():
        patterns.setdefault((row.annotator, row.occasion, row.layer, row.memory), []).append(frozenset(row.ranks))
    prefixes = _codes(ratings.by_prefix, "category", OF_CATEGORY, [*KEY, "rank"])
    # Of a key: whether it has a pattern. Whoever judged a key judged all its prefixes.
    keys = prefixes.groupby(level=KEY).max().clip(upper=1) if len(prefixes) else prefixes
    tables = {"prefix": prefixes, "key": keys, "change": _codes(ratings.changes, "related", RELATED, ["row"])}
    rows: list[tuple] = []
    judged = sorted({column for table in tables.values() for column in table.columns})  # annotator and occasion
    # Any two on their first occasion, and each with himself on the second one.
    pairs = [*map(list, combinations([(name, occasion) for name, occasion in judged if occasion == 0], 2))]
    pairs += [[(name, 0), (name, 1)] for name, occasion in judged if occasion == 1]
    for pair in pairs:
        names = [name for name, _ in pair]
        for unit, codes in tables.items():
            both = codes[pair] if all(column in codes for column in pair) else pd.DataFrame()
            both = both[(both >= 0).all(axis=1)]
            rows += [(*names, *row) for row in _statistics(unit, both)]
            if unit == "key" and len(both):  # which prefixes have patterns, over the keys in which either saw one
                of_keys = [pattern_overlap(*(patterns.get((*name, *key), []) for name in both)) for key in both.index]
                if len(scores := np.array(of_keys)[~np.isnan(of_keys)]):
                    numbers = scores.mean(), *mean_interval(scores, 0, 1), len(both), len(scores)
                    rows.append((*names, "pattern", "jaccard", *numbers))
    people = [(name, occasion) for name, occasion in prefixes if name.startswith("person:") and occasion == 0]
    for unit in ("prefix", "key") if len(people) > 1 else ():
        together = tables[unit][people]
        together = together[(together >= 0).sum(axis=1) > 1]
        rows += [(PEOPLE, PEOPLE, *row) for row in _statistics(unit, together) if row[1].startswith("alpha")]
    return AGREEMENT.frame(rows)


def _codes(said: pd.DataFrame, answer: str, codes: dict[str, int], index: list[str]) -> pd.DataFrame:
    """Codes the answers about the run's own items [item, (annotator, occasion)]; `MISSING` for none."""
    own = said.assign(code=said[answer].map(codes))[said["sample"] == "trigger"]
    if not len(own):
        return pd.DataFrame()
    wide = own.pivot(index=index, columns=["annotator", "occasion"], values="code")
    return wide.fillna(MISSING).astype(int).sort_index()


def _statistics(unit: str, codes: pd.DataFrame) -> Iterator[tuple]:
    """Yields the rows about one unit, from the codes of some annotators. Each key, or each change, is on its own."""
    if not len(codes):
        return
    distances = DISTANCES[unit]
    of_each = [table.to_numpy().T for _, table in codes.groupby(level=[*codes.index.names[:2]])]  # [annotator, unit]
    counts, categories = (len(of_each), len(codes)), len(distances["alpha"])
    if len(codes.columns) == 2:
        tables = np.stack([confusion(each[0], each[1], categories) for each in of_each])
        for name, statistic, lowest in (("raw", raw_agreement, 0), ("kappa", kappa, -1)):
            yield (unit, name, *with_interval(statistic, tables, lowest), *counts)
    tables = np.stack([coincidences(each, categories) for each in of_each])
    for name, distance in distances.items():
        yield (unit, name, *with_interval(partial(alpha, distance=distance), tables), *counts)
