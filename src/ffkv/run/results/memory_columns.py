"""What the files hold of one memory, column by column: tables are made of it for notebooks, and plain rows for pages.

A page of the explorer shows six small tables of a memory. As data frames they would take longer to make than to read.
"""

import collections
import functools
import inspect
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, TypeVar

import numpy as np

from ffkv.base.errors import UserError
from ffkv.run.results.indexes import token_texts
from ffkv.run.results.memory_name import memory_name, whole_number
from ffkv.run.results.readings import READINGS
from ffkv.run.results.run_files import RunFiles

SIDES = {"positive": "", "negative": "negative/"}  # of the trigger examples: the group of their datasets

# By table: the names of columns, and what they are.
COLUMNS: dict[str, dict[str, str]] = tomllib.loads((files(__package__) / "columns.toml").read_text(encoding="utf-8"))

Returns = TypeVar("Returns", bound=Callable[..., Any])
Columns = dict[str, Sequence[Any] | np.ndarray]
_row_type: Any = functools.cache(collections.namedtuple)


def with_columns(table: Returns, more: str = "") -> Returns:
    """Writes into the docstring of a function what the columns of its table are, and those of a table `more`.

    They stand before what it raises, or else at its end.
    """
    columns = COLUMNS[table.__name__] | COLUMNS.get(more, {})
    listed = (f"{names}: {what}" for names, what in columns.items())
    lines = (textwrap.fill(line, 112, initial_indent="    ", subsequent_indent=" " * 8) for line in listed)
    told = "\n".join(["Columns:", *lines])
    before, raises, errors = inspect.cleandoc(table.__doc__ or "").partition("Raises:\n")
    table.__doc__ = f"{before}{told}\n{raises}{errors}" if raises else f"{before}\n\n{told}"
    return table


def rows_of(columns: Mapping[str, Sequence[Any] | np.ndarray]) -> list[Any]:
    """Returns the columns of one length as rows: named tuples with Python's own numbers."""
    values = [column.tolist() if isinstance(column, np.ndarray) else column for column in columns.values()]
    return list(map(_row_type("Row", tuple(columns)), *values))


def example_columns(files: RunFiles, layer: int, memory: int, side: str, most: int | None = None) -> Columns:
    """Returns the trigger examples of one sign, the strongest first: the columns that `Memory.triggers` describes.

    `side`: "positive" or "negative"; the run may keep no negative ones. `most`: only so many of them are read; None: all.
    """
    stored = stored_examples(files, files.anatomy.layer_offset[layer] + memory, side, example_names(files, layer), most)
    return {"rank": np.arange(len(stored["coefficient"])), **describe_examples(files, stored)}


def example_names(files: RunFiles, layer: int) -> list[str]:
    """Returns the datasets of trigger examples from which `describe_examples` makes columns."""
    gated = files.anatomy.layers[layer].gated
    return ["coefficient", "position", "sentence", "next_token", "next_count", "multiplicity", *(["gate"] * gated)]


def describe_examples(files: RunFiles, stored: Mapping[str, np.ndarray]) -> Columns:
    """Returns the columns of `Memory.triggers`, without `rank`, from what `example_names` names, each [example]."""
    corpus, coefficient = files.corpus("train"), stored["coefficient"]
    texts, last_tokens = corpus.prefix_texts(stored["sentence"].astype(int), stored["position"].astype(int))
    documents = np.asarray(corpus.document[stored["sentence"].astype(int)]).tolist()
    titles = corpus.document_titles
    columns: Columns = {
        "coefficient": coefficient,
        "text": texts,
        "last_token": last_tokens,
        "next_token": token_texts(stored["next_token"], files.vocabulary),
        "next_count": stored["next_count"],
        "multiplicity": stored["multiplicity"],
        "position": stored["position"],
        "sentence": stored["sentence"],
        "document": [corpus.document_names[number] for number in documents],
        "title": [titles[number] for number in documents] if titles is not None else [""] * len(documents),
    }
    if "gate" in stored:
        columns |= {"gate": stored["gate"], "up": np.sign(coefficient).astype(np.int8) * stored["gate"]}
    return columns


def stored_examples(
    files: RunFiles, row: int, side: str, names: Sequence[str], most: int | None = None
) -> dict[str, np.ndarray]:
    """Returns some datasets of the trigger examples of one memory, the strongest example first, each [rank].

    `row`: of the memory in flat arrays. `side`, `most`: as for `example_columns`. `names`: of the datasets in `triggers.h5`.
    """
    with files.open_triggers() as file:
        if f"{SIDES[side]}count" not in file:
            return {name: np.zeros(0, int) for name in names}
        some = slice(0, int(file[f"{SIDES[side]}count"][row]))
        return {name: file[f"{SIDES[side]}{name}"][row, some][:most] for name in names}


def prediction_columns(files: RunFiles, layer: int, memory: int, end: str, count: int) -> Columns:
    """Returns the first `count` tokens at an end, "top" or "bottom", of a value's prediction: the columns of `Memory.promotes`.

    Raises UserError if the run keeps fewer tokens.
    """
    row = files.anatomy.layer_offset[layer] + memory
    with files.open_projections(files.layer_group(layer)) as file:
        # Files hold the memories of the layers of their group in order.
        place = row - files.anatomy.layer_offset[files.layer_groups[files.layer_group(layer)].start]
        layers, memories = file["layer"], file["memory"]
        if not (place < len(layers) and (layers[place], memories[place]) == (layer, memory)):
            raise UserError(
                f"{READINGS[files.reading].files}projections does not hold {memory_name(layer, memory)} where it must be: it was made with"
                " another layer_groups. Run the workflow again."
            )
        stored = file[f"{end}_token"][place], file[f"{end}_log_probability"][place]
    if not 0 < whole_number("count", count) <= len(stored[0]):
        raise UserError(
            f"The run stores {len(stored[0])} tokens at each end of a value, so {count} cannot be shown. Ask for 1 to"
            f" {len(stored[0])}, or set values.top_tokens and run the workflow again."
        )
    ids, log_probability = stored[0][:count], stored[1][:count].astype(float)
    return {
        "token": token_texts(ids, files.vocabulary),
        "id": ids,
        "log_probability": log_probability,
        "probability": np.exp(log_probability),
    }
