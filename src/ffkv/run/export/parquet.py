"""Flat tables in parquet files with the card of a data set: ready for the hub, and for `datasets.load_dataset`."""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ffkv.base.files.atomic import write_text
from ffkv.base.lookup import exists
from ffkv.run.export.job import Format, Job, Unit, definitions, public_name
from ffkv.run.export.records import Record
from ffkv.run.results import indexes
from ffkv.run.results.memory_columns import SIDES, Columns, describe_examples, example_names
from ffkv.run.results.memory_name import memory_name

GROUP = 256  # memories whose rows are written together
OF_SENTENCE = [("layer", pa.int32()), ("memory", pa.int32()), ("name", pa.string()), ("source", pa.string())]
OF_SENTENCE += [("sentence", pa.int32()), ("position", pa.int32())]
COEFFICIENTS = pa.schema([*OF_SENTENCE, ("tokens", pa.list_(pa.string())), ("coefficients", pa.list_(pa.float32()))])
ABOUT = definitions(__package__, "parquet-tables")  # what the card says of each table


def units(job: Job) -> list[Unit]:
    """Makes `<table>.parquet`; only tables that have rows."""
    files, everything = job.run.files, range(len(job.selection))
    chosen = np.asarray(job.run.anatomy.layer_offset)[job.selection.layer] + job.selection.memory
    tables: dict[str, Iterable[pd.DataFrame]] = {"memories": [job.run.memories().iloc[chosen]]}
    tables |= {"triggers": trigger_tables(job), "tokens": token_tables(job)}
    for name, table in (("patterns", indexes.trigger_patterns(files)), ("effects", indexes.effects_by_memory(files))):
        if len(own := table[table["row"].isin(chosen)].drop(columns="row")):
            tables[name] = [own]

    def unit(name: str, frames: Iterable[pd.DataFrame]) -> Unit:
        return Unit(f"{name}.parquet", everything, lambda path, records: _write(path, frames))

    units = [unit(*each) for each in tables.items()]
    if len(job.selection.sentences):
        units.append(Unit("coefficients.parquet", everything, _write_coefficients))
    return units


def trigger_tables(job: Job) -> Iterator[pd.DataFrame]:
    """Yields the trigger examples of some memories after another, with the columns of `Memory.triggers`."""
    run, some_gated = job.run, any(layer.gated for layer in job.run.anatomy.layers)
    for layer, memories, _ in job.selection.groups(GROUP):
        rows, names = run.anatomy.layer_offset[layer] + memories, example_names(run.files, layer)
        for side, folder in SIDES.items():
            with run.files.open_triggers() as file:
                if f"{folder}count" not in file:
                    continue
                stored = {name: file[f"{folder}{name}"][rows] for name in names}
            at, rank = np.nonzero(stored["sentence"] >= 0)
            columns = describe_examples(run.files, {name: values[at, rank] for name, values in stored.items()})
            if some_gated and "gate" not in stored:  # tables of one file have the same columns
                columns |= {name: np.zeros(len(at), np.int8) for name in ("gate", "up")}
            place: Columns = {"layer": np.full(len(at), layer, np.int32), "memory": memories[at].astype(np.int32)}
            place["name"] = [memory_name(layer, memory) for memory in memories[at].tolist()]
            yield pd.DataFrame({**place, "side": [side] * len(at), "rank": rank, **columns})


def token_tables(job: Job) -> Iterator[pd.DataFrame]:
    """Yields the top and bottom tokens of the values of some memories after another."""
    vocabulary, offset = job.run.vocabulary, job.run.anatomy.layer_offset
    for layer, memories, _ in job.selection.groups(GROUP):
        for end in ("top", "bottom"):
            ids, log_probability = (kept[offset[layer] + memories] for kept in indexes.kept_tokens(job.run.files, end))
            count = ids.shape[1]
            yield pd.DataFrame(
                {
                    "layer": np.int32(layer),
                    "memory": np.repeat(memories, count).astype(np.int32),
                    "name": np.repeat([memory_name(layer, int(memory)) for memory in memories], count),
                    "end": end,
                    "rank": np.tile(np.arange(count, dtype=np.int32), len(memories)),
                    "token": [vocabulary[token] for token in ids.ravel().tolist()],
                    "id": ids.ravel(),
                    "log_probability": log_probability.ravel(),
                    "probability": np.exp(log_probability.ravel().astype(float)),
                }
            )


def _write(path: Path, frames: Iterable[pd.DataFrame]) -> None:
    """Writes tables of the same columns below each other, one after another."""
    schema, frame = None, pd.DataFrame()
    with contextlib.ExitStack() as opened:
        for frame in frames:
            if frame.empty:  # its columns of texts would get another type
                continue
            table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False).replace_schema_metadata()
            if schema is None:
                schema = table.schema
                file = opened.enter_context(path.open("wb"))  # pyarrow's own does not say why it cannot be closed
                writer = opened.enter_context(pq.ParquetWriter(file, schema))
            writer.write_table(table)
    if schema is None:
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(), path)


def _write_coefficients(path: Path, records: Iterable[Record]) -> None:
    rows = itertools.chain.from_iterable(map(coefficient_rows, records))
    with path.open("wb") as file, pq.ParquetWriter(file, COEFFICIENTS) as writer:
        while some := list(itertools.islice(rows, GROUP * 20)):
            writer.write_table(pa.Table.from_pylist(some, COEFFICIENTS))


def coefficient_rows(record: Record) -> Iterator[dict[str, Any]]:
    """Yields the rows of a memory in the table of coefficients."""
    sources = {"positive": record.positive, "negative": record.negative, "random": record.sample}
    for source, examples in sources.items():
        for example in examples:
            text, place = example.text, (record.layer, record.memory, record.name)
            values = (*place, source, text.sentence, example.position, text.tokens, example.values)
            yield dict(zip(COEFFICIENTS.names, values, strict=True))


def finish(job: Job, folder: Path) -> None:
    """Writes the card, README.md."""
    files = {name: folder / f"{name}.parquet" for name in ABOUT}
    rows = {name: pq.read_metadata(file).num_rows for name, file in files.items() if exists(file)}
    write_text(folder / "README.md", card(job, rows))


def card(job: Job, rows: dict[str, int]) -> str:
    """Returns the card of the data set. It names no licence: that depends on the model and on the corpus.

    `rows`: number of rows of each table.
    """
    configs: list[dict[str, Any]] = [{"config_name": table, "data_files": f"{table}.parquet"} for table in rows]
    configs[0]["default"] = True
    run, corpus, name = job.run, job.run.files.corpora["train"], public_name(job.run)
    head = {
        "pretty_name": f"Feed-forward memories of {name}",
        "tags": ["interpretability", "feed-forward", "key-value-memories", "ffkv"],
        "size_categories": [size_category(max(rows.values()))],
        "configs": configs,
    }
    template = jinja2.Template(
        (resources.files(__package__) / "card.md").read_text(encoding="utf-8"), keep_trailing_newline=True
    )
    return template.render(
        head=yaml.safe_dump(head, sort_keys=False, allow_unicode=True).rstrip(), name=_plain(name),
        revision=_plain(run.anatomy.revision), dataset=_plain(run.settings.corpus.dataset), corpus=corpus,
        memories=len(job.selection), rows=rows, about=ABOUT,
    )  # fmt: skip


def _plain(text: str) -> str:
    return text.replace("`", "'").replace("\n", " ")


def size_category(rows: int) -> str:
    """Returns the hub's name for a number of rows."""
    names = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B"]
    return names[int(np.searchsorted(10 ** np.arange(3, 10), rows, side="right"))]


FORMAT = Format(examples=20, sentences=0, units=units, finish=finish, definitions=definitions(__package__, "parquet"))
