"""Search over all memories of a run: by tokens that they promote or demote, trigger texts (`text_search`), patterns, behaviours, numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, PlainValidator, field_validator

from ffkv.base.errors import UserError
from ffkv.base.settings import Section
from ffkv.run.results import indexes
from ffkv.run.results.collections import collected
from ffkv.run.results.memory_name import check_memory, find_expert, whole_number
from ffkv.run.results.run_files import RunFiles, unknown
from ffkv.run.results.text_search import triggered
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


def _token(given: Any) -> Any:
    return given if isinstance(given, str | None) else whole_number("A token's id", given)


def _ranges(given: Any) -> Any:
    """Reads a column and its lowest and highest value, several times."""
    if given is not None and not isinstance(given, Mapping):
        raise UserError(f"between is {given!r}. Write a column and its range, as in {{'norm': (1, 5)}}.")
    for column, limits in (given or {}).items():
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
    return given


def _minimum(given: Any) -> Any:
    if given is not None and not _is_number(given):
        raise UserError(f"minimum is {given!r}. Write a number, such as 0.5.")
    return given


def _is_number(given: Any) -> bool:
    return isinstance(given, Real) and not math.isnan(given)


class Search(Section):
    """What memories are searched by, and their order. The titles are the labels of the explorer's form."""

    promotes: Annotated[str | int | None, PlainValidator(_token)] = Field(
        None, title="Promotes the token", examples=["church or #464"]
    )
    """only memories that keep this token among the top tokens of their value: its text or its id. Blanks at the two ends
    of a text do not count: "church" finds " church" too."""
    demotes: Annotated[str | int | None, PlainValidator(_token)] = Field(None, title="Demotes the token", examples=[""])
    """only memories that keep this token among the bottom tokens of their value, as `promotes`."""
    text: str | None = Field(None, title="Text in trigger examples", examples=["words or /expression/"])
    """only memories with a trigger example whose text contains this, to the letter."""
    pattern: str | None = Field(None, title="Pattern", examples=["ends with"])
    """only memories that have a pattern whose label contains this, in capital or small letters. Patterns that people and
    machines saw count, too, and so do the labels by which machines explain memories."""
    behaviour: str | None = Field(None, title="Behaviour")
    """only memories that are candidates of the behaviour of this name (docs/behaviours.md)."""
    concept: str | None = Field(None, title="Separates the concept")
    """only memories that separate this task of a concept alone, such as "french" or "tokens/digits" (docs/settings.md)."""
    expert: str | None = Field(None, title="Of the expert", examples=["L3.e5"])
    """only memories of this expert, such as "L3.e5"."""
    collection: str | None = Field(None, title="In the list")
    """only memories of this named list, such as "starred"."""
    role: str | None = Field(None, title="Role")
    """only memories with this role in the direction that they read, such as "enrichment" (docs/roles.md)."""
    output_role: str | None = Field(None, title="Output role")
    """only memories with this role in the output: "prediction", "suppression" or "other" (docs/roles.md)."""
    layer: Annotated[
        int | None, PlainValidator(lambda given: None if given is None else whole_number("layer", given))
    ] = Field(None, title="Layer")
    """only memories of this layer, from 0."""
    between: Annotated[Mapping[str, tuple[float | None, float | None]] | None, PlainValidator(_ranges)] = None
    """only memories whose numbers are in these ranges: a column, and its lowest and highest value. None stands for no limit,
    as in {"firing_rate": (0.1, None)}."""
    any_case: bool = False
    """capital and small letters of `promotes` and `demotes` are the same."""
    expression: bool = False
    """`text` is a regular expression. A trigger example has it if the first match in its sentence lies within the prefix."""
    sort: str | None = Field(None, title="Sort by")
    """the column to sort by. The largest value comes first; equal values keep the order of the memories. By default
    "promoted_probability" for a search by `promotes`, else "coefficient_with_text" for a search by `text`, else
    "examples_with_pattern" for a search by `pattern`, else "behaviour_effect" for a search by `behaviour`
    ("behaviour_contrast" if no effect was measured), else "concept_auc" for a search by `concept`, else the order of the memories. Effects, contrasts and screens of behaviours
    are sorted by size, whatever their sign."""
    minimum: Annotated[float | None, PlainValidator(_minimum)] = None
    """only memories whose value in the sorted column is at least this."""
    ascending: bool = False
    """the smallest value of the sorted column comes first."""

    @field_validator("*")
    @classmethod
    def _without_nul(cls, value: Any) -> Any:
        """Allows NUL characters: texts and tokens have some."""
        return value


# By what a search orders memories if nobody says it: the first of these columns that it adds, and that has a number.
ORDERS = (
    *("promoted_probability", "coefficient_with_text", "examples_with_pattern"),
    *("behaviour_effect", "behaviour_contrast", "concept_auc"),
)
BY_SIZE = ("behaviour_effect", "behaviour_contrast", "behaviour_screen")  # whatever their sign


def find(files: RunFiles, search: Search) -> Found:
    """Searches as `Run.memories` describes, and makes no table yet."""
    of_all = indexes.statistics(files)
    kept, found = _within(of_all, search), _hits(files, search)
    for hits in found:
        kept &= np.isin(np.arange(len(of_all)), hits.index)
    rows = np.flatnonzero(kept)
    added = pd.concat([pd.DataFrame(index=rows), *(hits.loc[rows] for hits in found)], axis=1)
    if search.promotes is not None:
        added["promoted_weight"] = added["promoted_probability"] * of_all["firing_rate"].iloc[rows]
    measured = {name for hits in found for name in hits if hits.empty or hits[name].notna().any()}
    column = search.sort or next((name for name in ORDERS if name in measured), None)
    if column is None and search.minimum is not None:
        raise UserError("minimum needs a column to compare with: name it with sort, as in sort='firing_rate'.")
    if column is None:
        return Found(rows, of_all, added)
    if column not in of_all and column not in added:
        raise unknown("column", column, [*of_all, *added])
    values = added[column] if column in added else of_all[column].iloc[rows]
    if search.minimum is not None:
        if not pd.api.types.is_numeric_dtype(values):
            raise UserError(f"minimum needs a column of numbers, and {column} holds texts.")
        values = values[values >= search.minimum]
    size = abs if column in BY_SIZE else None
    order = values.sort_values(key=size, ascending=search.ascending, kind="stable").index
    return Found(order.to_numpy(), of_all, added.loc[order])


def _within(statistics: pd.DataFrame, search: Search) -> np.ndarray:
    """Tells whether each memory is in the layer, and in each range of numbers, that a search asks for [memory]."""
    kept, layer = np.ones(len(statistics), bool), search.layer
    if layer is not None:
        check_memory(layer, 0, statistics["layer"].value_counts(sort=False).tolist())
        kept &= (statistics["layer"] == layer).to_numpy()
    for column in indexes.ROLES:
        if (role := getattr(search, column)) is not None:
            kept &= indexes.of_role(statistics, column, role)
    for column, (low, high) in (search.between or {}).items():
        if column not in statistics:
            raise unknown("column", column, [*statistics])
        if not pd.api.types.is_numeric_dtype(statistics[column]):
            raise UserError(f"A range needs a column of numbers, and {column} holds texts.")
        values = statistics[column].to_numpy()
        kept &= True if low is None else values >= low
        kept &= True if high is None else values <= high
    return kept


def _hits(files: RunFiles, search: Search) -> list[pd.DataFrame]:
    """Returns what each part of a search finds, by the memories' rows in flat arrays."""
    found = {
        "promotes": lambda token: promoting(files, token, search.any_case),
        "demotes": lambda token: promoting(files, token, search.any_case, "demoted"),
        "text": lambda text: triggered(files, text, search.expression),
        "pattern": lambda label: patterned(files, label),
        "behaviour": lambda name: causing(files, name),
        "concept": lambda task: separating(files, task),
        "expert": lambda name: of_expert(files, name),
        "collection": lambda name: collected(files, name),
    }
    asked = {name: getattr(search, name) for name in found}
    return [found[name](value).set_index("row") for name, value in asked.items() if value is not None]


def promoting(files: RunFiles, wanted: str | int, any_case: bool = False, what: str = "promoted") -> pd.DataFrame:
    """Finds the memories that keep a token among the top ("promoted") or the bottom ("demoted") tokens of their value, see `Search`.

    Returns one row per memory: row (in flat arrays), and `<what>_token`, `<what>_rank`, `<what>_probability`, see `Run.memories`.
    Where several such tokens are kept, the one that is nearest to the end. Raises UserError as `find_spellings`.
    """
    ids = find_spellings(files, wanted, any_case)
    tokens, log_probability = indexes.kept_tokens(files, ENDS[what])
    kept = np.isin(tokens, ids)
    row = np.flatnonzero(kept.any(1))
    rank = kept[row].argmax(1)
    found = {
        "token": indexes.token_texts(tokens[row, rank], files.vocabulary),
        "rank": rank,
        "probability": np.exp(log_probability[row, rank].astype(float)),
    }
    return pd.DataFrame({"row": row, **{f"{what}_{name}": values for name, values in found.items()}})


def patterned(files: RunFiles, label: str) -> pd.DataFrame:
    """Finds the memories that have a pattern whose label contains a text, see `Search`.

    Returns one row per memory: row (in flat arrays), pattern_found, examples_with_pattern; if a machine explained any memory of the
    run, also explanation_detection (NaN if it is none with the text). See `Run.memories`.
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
    """Finds the memories that are candidates of a behaviour, see `indexes.candidates`.

    Returns per memory: row (in flat arrays), behaviour_effect, behaviour_q, behaviour_screen, behaviour_contrast, see `Run.memories`.
    """
    columns = {"effect": "effect", "effect_q": "q", "screen_estimate": "screen", "estimate": "contrast"}
    found = indexes.candidates(files, behaviour)[["row", *columns]]
    return found.rename(columns={name: f"behaviour_{new}" for name, new in columns.items()})


def of_expert(files: RunFiles, name: str) -> pd.DataFrame:
    """Finds the memories of an expert: row (in flat arrays). Raises UserError as `find_expert`."""
    layer, expert = find_expert(name, files.anatomy.layers)
    own = files.anatomy.layers[layer].experts[expert]
    return pd.DataFrame({"row": files.anatomy.layer_offset[layer] + np.arange(own.start, own.stop)})


def separating(files: RunFiles, task: str) -> pd.DataFrame:
    """Finds the memories that separate a task of a concept alone: row (in flat arrays), concept_auc.

    Raises UserError if no memory separates such a task; names those that some do.
    """
    table = indexes.concepts(files)
    if task not in (names := table["task"].unique().tolist()):
        raise unknown(f"task of a concept in {files.folder} that a memory separates, called", task, names)
    return table[table["task"] == task][["row", "auc"]].rename(columns={"auc": "concept_auc"})
