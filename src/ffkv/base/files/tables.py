"""Tidy tables on disk: CSV for what a figure draws, parquet for the large ones."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from csv import QUOTE_MINIMAL, QUOTE_NONNUMERIC
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from pyarrow import csv

from ffkv.base.errors import UserError, one_line
from ffkv.base.files.atomic import atomic
from ffkv.base.files.columns import Table
from ffkv.base.files.stored import HASHES, check_identities, not_of_ffkv, unreadable, verify_sum
from ffkv.base.lookup import open_file


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


def read(path: Path | str, texts: Iterable[str] = (), only: Any = None) -> pd.DataFrame:
    """Reads what `write` wrote.

    `texts`: columns of a CSV file that are text even if every row looks like a number, a truth value or nothing. `only`: the
    rows that are read of a parquet file, as `filters` of pandas. Raises UserError if the table is missing, damaged, or cannot be read.
    """
    with _reading(path):
        if Path(path).suffix == ".parquet":
            return pd.read_parquet(path, filters=only)
        # Not pandas' reader: it would take corpus text such as "null" or "nan" for a missing value.
        types = csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string()))
        whole = csv.ReadOptions(block_size=max(2**20, Path(path).stat().st_size + 1))  # a row must fit into one block
        return csv.read_csv(path, whole, csv.ParseOptions(newlines_in_values=True), types).to_pandas()


def read_names(path: Path | str) -> list[str]:
    """Reads the names of the columns of a table. Raises UserError as `read`."""
    if Path(path).suffix != ".parquet":
        return [*read(path)]
    from pyarrow import parquet  # takes time to import

    with _reading(path):
        return list(parquet.read_schema(path).names)


@contextmanager
def _reading(path: Path | str) -> Iterator[None]:
    """Verifies a table. What fails inside the `with` statement is said as a UserError."""
    verify_sum(Path(path))
    try:
        open_file(path).close()
        yield
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    except (LookupError, TypeError, AttributeError, pa.ArrowException) as error:  # of what its metadata say of columns
        raise not_of_ffkv(path, f"its columns cannot be read ({one_line(error, 200)})") from error


def identify(frame: pd.DataFrame, attributes: Mapping[str, Any]) -> pd.DataFrame:
    """Notes in a table's `attrs` the hashes among `attributes` that say what it belongs to. Parquet files keep them."""
    frame.attrs = {name: attributes[name] for name in HASHES if name in attributes}
    return frame


def frame(table: Table, rows: Sequence[Any] | pd.DataFrame, belongs_to: Mapping[str, Any]) -> pd.DataFrame:
    """Returns a table of rows, or of a list of tables one below the other, and notes what it belongs to, as `identify`."""
    if not isinstance(rows, pd.DataFrame) and rows and isinstance(rows[0], pd.DataFrame):
        rows = pd.concat(rows, ignore_index=True)
    return identify(table.frame(rows), belongs_to)


def check_layers(table: pd.DataFrame, identity: list[str], layers: set[int], option: str) -> None:
    """Refuses tables of layer groups in which a layer is missing, does not belong there, or is there twice.

    `identity`: the columns that name a row. `layers` must be there. `option`: where the tables came from, for the message.
    """
    if missing := layers ^ set(table["layer"]):
        raise UserError(f"{option}: layers {sorted(missing)} are missing, or not of this model; give every group once.")
    if repeated := set(table["layer"][table.duplicated(identity)]):
        raise UserError(f"{option}: layers {sorted(repeated)} are there more than once; give every group once.")


def read_all(
    paths: Iterable[Path | str | pd.DataFrame], belongs_to: Mapping[str, Any] | None = None, only: Any = None
) -> pd.DataFrame:
    """Reads the tables of several layer groups, each once, and puts them below each other. A table may be empty.

    `paths`: their files; or tables that are in memory. `belongs_to`: attributes of another file. The identities in it and in a table's `attrs` must agree. `only`: see `read`.
    Raises: see `read`; or a table belongs to another model, tokenizer or corpus.
    """
    tables = []
    for path in paths:
        table = path if isinstance(path, pd.DataFrame) else read(path, only=only)
        if table is not path:
            check_identities(path, table.attrs, belongs_to or {})
        tables.append(table)
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
