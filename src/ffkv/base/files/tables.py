"""Tidy tables on disk: CSV for what a figure draws, parquet for the large ones."""

from collections.abc import Iterable, Mapping
from csv import QUOTE_MINIMAL, QUOTE_NONNUMERIC
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.checksums import verify_sum
from ffkv.base.files.fault import unreadable
from ffkv.base.files.provenance import HASHES, check_identities


def write(frame: pd.DataFrame, path: Path | str) -> None:
    """Writes a table as CSV or parquet, by the ending of its name. The same table gives the same bytes."""
    with atomic(path) as temporary:
        if Path(path).suffix == ".parquet":
            with temporary.open("wb") as file:  # pyarrow's own file does not say why it cannot be closed
                frame.to_parquet(file, index=False)
        else:
            # Only texts that need it are quoted; every text if one has a carriage return, which pandas would not quote.
            returns = any(isinstance(value, str) and "\r" in value for name in frame.columns for value in frame[name])
            quoting = QUOTE_NONNUMERIC if returns else QUOTE_MINIMAL
            frame.to_csv(temporary, index=False, float_format="%.10g", quoting=quoting)


def read(path: Path | str, texts: Iterable[str] = ()) -> pd.DataFrame:
    """Reads what `write` wrote.

    `texts`: columns of a CSV file that are text even if every row looks like a number, a truth value or nothing. Raises
    UserError if the table does not exist, is damaged, or cannot be read.
    """
    verify_sum(Path(path))
    try:
        if Path(path).suffix == ".parquet":
            return pd.read_parquet(path)
        # Not pandas' reader: it would take corpus text such as "null" or "nan" for a missing value.
        types = csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string()))
        whole = csv.ReadOptions(block_size=max(2**20, Path(path).stat().st_size + 1))  # a row must fit into one block
        return csv.read_csv(path, whole, csv.ParseOptions(newlines_in_values=True), types).to_pandas()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def identify(frame: pd.DataFrame, attributes: Mapping[str, Any]) -> pd.DataFrame:
    """Notes in a table's `attrs` the hashes among `attributes` that say what it belongs to. Parquet files keep them."""
    frame.attrs = {name: attributes[name] for name in HASHES if name in attributes}
    return frame


def check_layers(table: pd.DataFrame, identity: list[str], layers: set[int], option: str) -> None:
    """Refuses tables of layer groups in which a layer is missing, does not belong there, or is there twice.

    `identity`: the columns that name a row. `layers` must be there. `option`: where the tables came from, for the
    message.
    """
    if missing := layers ^ set(table["layer"]):
        raise UserError(f"{option}: layers {sorted(missing)} are missing, or not of this model; give every group once.")
    if repeated := set(table["layer"][table.duplicated(identity)]):
        raise UserError(f"{option}: layers {sorted(repeated)} are there more than once; give every group once.")


def read_all(paths: Iterable[Path | str], belongs_to: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Reads the tables of several layer groups, each once, and puts them below each other. A table may be empty.

    `belongs_to`: attributes of another file. The identities in it and in a table's `attrs` must agree. Raises: see
    `read`; or a table belongs to another model, tokenizer or corpus.
    """
    tables = []
    for path in paths:
        table = read(path)
        check_identities(path, table.attrs, belongs_to or {})
        tables.append(table)
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
