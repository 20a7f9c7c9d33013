"""Search over all memories of a run: by tokens that they promote or demote, trigger texts, patterns, behaviours, numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.run.results import indexes
from ffkv.run.results.collections import collected
from ffkv.run.results.indexes import token_texts
from ffkv.run.results.memory_name import whole_number
from ffkv.run.results.run_files import RunFiles, unknown
from ffkv.run.results.text_search import shortest_match, shortest_prefix
from ffkv.run.results.tokens import find_spellings

ENDS = {"promoted": "top", "demoted": "bottom"}


@dataclass(frozen=True)
class Found:
    """The memories that a search finds, in order."""

    row: np.ndarray  # the memories' rows in flat arrays [memory]
    statistics: pd.DataFrame  # the table of all memories, in the order of flat arrays
    added: pd.DataFrame  # what the search adds to it [memory]

    def __len__(self) -> int:
        return len(self.row)

    def table(self, start: int = 0, stop: int | None = None) -> pd.DataFrame:
        """Returns the memories `start` to `stop` (exclusive) of the search, with the columns of `Run.memories`."""
        chosen = slice(start, stop)
        statistics = self.statistics.iloc[self.row[chosen]].reset_index(drop=True)
        return pd.concat([statistics, self.added.iloc[chosen].reset_index(drop=True)], axis=1)


def find(
    files: RunFiles,
    *,
    promotes: str | int | None = None,
    demotes: str | int | None = None,
    text: str | None = None,
    pattern: str | None = None,
    behaviour: str | None = None,
    collection: str | None = None,
    layer: int | None = None,
    between: Mapping[str, tuple[float | None, float | None]] | None = None,
    any_case: bool = False,
    expression: bool = False,
    sort: str | None = None,
    minimum: float | None = None,
    ascending: bool = False,
) -> Found:
    """Searches as `Run.memories` describes, and makes no table yet."""
    texts = {"text": text, "pattern": pattern, "behaviour": behaviour, "collection": collection, "sort": sort}
    for name, given in texts.items():
        if not isinstance(given, str | None):
            raise UserError(f"{name} is {given!r}. Write it as text.")
    of_all = indexes.statistics(files)
    kept = _within(of_all, layer, between or {})
    found: list[pd.DataFrame] = []
    column = sort
    if promotes is not None:
        found.append(promoting(files, promotes, any_case))
        column = column or "promoted_probability"
    if demotes is not None:
        found.append(promoting(files, demotes, any_case, "demoted"))
    if text is not None:
        found.append(triggered(files, text, expression))
        column = column or "coefficient_with_text"
    if pattern is not None:
        found.append(patterned(files, pattern))
        column = column or "examples_with_pattern"
    if behaviour is not None:
        found.append(causing(files, behaviour))
        measured = found[-1]["behaviour_effect"].notna().any()
        column = column or ("behaviour_effect" if measured else "behaviour_contrast")
    if collection is not None:
        found.append(collected(files, collection))
    found = [hits.set_index("row") for hits in found]
    for hits in found:
        kept &= np.isin(np.arange(len(of_all)), hits.index)
    rows = np.flatnonzero(kept)
    added = pd.concat([pd.DataFrame(index=rows), *(hits.loc[rows] for hits in found)], axis=1)
    if promotes is not None:
        added["promoted_weight"] = added["promoted_probability"] * of_all["firing_rate"].iloc[rows]
    if column is None and minimum is not None:
        raise UserError("minimum needs a column to compare with: name it with sort, as in sort='firing_rate'.")
    if column is None:
        return Found(rows, of_all, added)
    if column not in of_all and column not in added:
        raise unknown("column", column, [*of_all, *added])
    values = added[column] if column in added else of_all[column].iloc[rows]
    if minimum is not None:
        if not pd.api.types.is_numeric_dtype(values):
            raise UserError(f"minimum needs a column of numbers, and {column} holds texts.")
        if not _is_number(minimum):
            raise UserError(f"minimum is {minimum!r}. Write a number, such as 0.5.")
        values = values[values >= minimum]
    order = values.sort_values(ascending=ascending, kind="stable").index
    return Found(order.to_numpy(), of_all, added.loc[order])


def _within(
    statistics: pd.DataFrame, layer: int | None, between: Mapping[str, tuple[float | None, float | None]]
) -> np.ndarray:
    """Tells whether each memory is in the layer, and in each range of numbers [memory]."""
    kept = np.ones(len(statistics), bool)
    if layer is not None:
        layers = int(statistics["layer"].iloc[-1]) + 1
        if not 0 <= whole_number("layer", layer) < layers:
            raise UserError(f"There is no layer {layer}. The model has layers 0 to {layers - 1}.")
        kept &= (statistics["layer"] == layer).to_numpy()
    if not isinstance(between, Mapping):
        raise UserError(f"between is {between!r}. Write a column and its range, as in {{'norm': (1, 5)}}.")
    for column, limits in between.items():
        if column not in statistics:
            raise unknown("column", column, [*statistics])
        if not pd.api.types.is_numeric_dtype(statistics[column]):
            raise UserError(f"A range needs a column of numbers, and {column} holds texts.")
        pair = tuple(limits) if isinstance(limits, tuple | list | np.ndarray) else ()
        if len(pair) != 2 or not all(limit is None or _is_number(limit) for limit in pair):
            raise UserError(
                f"The range of {column} is {limits!r}. Write its lowest and its highest value, as in (0.1, 5); None stands"
                " for no limit, as in (0.1, None)."
            )
        low, high = pair
        if low is not None and high is not None and low > high:
            raise UserError(
                f"The range of {column} begins at {low:g} and ends at {high:g}, so no memory is in it. Write the lower"
                " number first."
            )
        values = statistics[column].to_numpy()
        kept &= values >= low if low is not None else True
        kept &= values <= high if high is not None else True
    return kept


def _is_number(given: Any) -> bool:
    return isinstance(given, Real) and not math.isnan(given)


def promoting(files: RunFiles, wanted: str | int, any_case: bool = False, what: str = "promoted") -> pd.DataFrame:
    """Finds the memories that keep a token among the top tokens of their value.

    Args:
        wanted: the token's text, or its id. Blanks at the two ends of a text do not count, so that "church" finds the
            token " church" too.
        any_case: capital and small letters of a text are the same.
        what: "promoted": among the top tokens; "demoted": among the bottom tokens.
    Returns:
        One row per memory: row (in flat arrays), and `<what>_token`, `<what>_rank`, `<what>_probability`, see
        `Run.memories`. Where several such tokens are kept, the one that is nearest to the end.
    Raises:
        UserError: the model has no such token; suggests others.
    """
    ids = find_spellings(files, wanted, any_case)
    tokens, log_probability = indexes.kept_tokens(files, ENDS[what])
    kept = np.isin(tokens, ids)
    row = np.flatnonzero(kept.any(1))
    rank = kept[row].argmax(1)
    found = {
        "token": token_texts(tokens[row, rank], files.vocabulary),
        "rank": rank,
        "probability": np.exp(log_probability[row, rank].astype(float)),
    }
    return pd.DataFrame({"row": row, **{f"{what}_{name}": values for name, values in found.items()}})


def triggered(files: RunFiles, text: str, expression: bool = False) -> pd.DataFrame:
    """Finds the memories that have a text in one of their trigger examples.

    Args:
        text: the text, to the letter; or a regular expression.
        expression: whether it is a regular expression. A trigger example has it if the expression's first match in the
            sentence lies within the prefix.
    Returns:
        One row per memory: row (in flat arrays), examples_with_text, coefficient_with_text, see `Run.memories`.
    Raises:
        UserError: the text is empty; or the expression is none, or takes too long.
    """
    if not text:
        raise UserError("The text to search for is empty.")
    shortest = shortest_match(files, text) if expression else shortest_prefix(files, text)
    places = indexes.trigger_places(files)
    contains = (shortest[places.sentence] <= places.position) & (places.sentence >= 0)
    row = np.flatnonzero(contains.any(1))
    # Coefficients descend, so the first example with the text has the highest one.
    highest = places.coefficient[row, contains[row].argmax(1)]
    return pd.DataFrame({"row": row, "examples_with_text": contains[row].sum(1), "coefficient_with_text": highest})


def patterned(files: RunFiles, label: str) -> pd.DataFrame:
    """Finds the memories that have a pattern whose label contains a text. Capital and small letters are the same.

    Patterns that people and machines saw count, too, and so do the labels by which machines explain memories.

    Returns:
        One row per memory: row (in flat arrays), pattern_found, examples_with_pattern; if a machine explained any
        memory of the run, also explanation_detection (NaN if it is none with the text). See `Run.memories`.
    """
    columns = ["row", "pattern", "label", "prefixes", "detection"]
    explained = indexes.explanations(files).assign(pattern=0, prefixes=0)
    of_tests = indexes.trigger_patterns(files)
    seen = [table.reindex(columns=columns) for table in (of_tests, indexes.labels(files), explained) if len(table)]
    patterns = pd.concat(seen) if seen else of_tests.reindex(columns=columns)
    hits = patterns[patterns["label"].str.casefold().str.contains(label.casefold(), regex=False)]
    best = hits.sort_values(["prefixes", "pattern"], ascending=[False, True]).drop_duplicates("row")
    found = best[["row", "label", "prefixes"]].set_axis(["row", "pattern_found", "examples_with_pattern"], axis=1)
    if not len(explained):
        return found
    return found.assign(explanation_detection=found["row"].map(hits.groupby("row")["detection"].max()))


def causing(files: RunFiles, behaviour: str) -> pd.DataFrame:
    """Finds the memories that are candidates of a behaviour.

    Returns:
        One row per memory: row (in flat arrays), behaviour_effect, behaviour_q, behaviour_screen, behaviour_contrast, see
        `Run.memories`.
    Raises:
        UserError: the run has no such behaviour; names those that it has.
    """
    columns = {"effect": "effect", "effect_q": "q", "screen_estimate": "screen", "estimate": "contrast"}
    return indexes.candidates(files, behaviour)[["row", *columns]].rename(
        columns={name: f"behaviour_{new}" for name, new in columns.items()}
    )
