"""Contents of repositories: tiny models and data sets, as files by path."""

import gzip
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow
import pyarrow.parquet
import torch
import yaml
import zstandard
from support import random_checkpoint
from transformers import AutoModelForCausalLM

Row = dict[str, Any]


def model_folder(
    folder: Path, kind: str = "llama", form: Literal["safetensors", "sharded", "bin"] = "safetensors", seed: int = 0
) -> Path:
    """A tiny random checkpoint with a fast tokenizer, as `support.random_checkpoint` makes it.

    form: one file, several of at most 8 kB each with an index, or pytorch_model.bin alone.
    """
    random_checkpoint(folder, kind, seed)
    if form == "safetensors":
        return folder
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    if form == "sharded":
        model.save_pretrained(folder, max_shard_size="8KB")
    else:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


def readme(configs: dict[str, dict[str, str | list[str]]]) -> bytes:
    """The card of a data set: file patterns by config and split."""
    listed = [
        {"config_name": name, "data_files": [{"split": split, "path": path} for split, path in splits.items()]}
        for name, splits in configs.items()
    ]
    return f"---\n{yaml.safe_dump({'configs': listed}, sort_keys=False)}---\n# A data set of a test\n".encode()


def parquet(rows: Sequence[Row], group_rows: int = 1000) -> bytes:
    """A parquet file. group_rows: rows in a row group, the least that a reader fetches."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file, row_group_size=group_rows)
    return file.getvalue()


def json_lines(rows: Sequence[Row], compression: Literal["gz", "zst"] | None = None) -> bytes:
    """A file with one JSON object a line."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if compression == "gz":
        return gzip.compress(content, mtime=0)
    return zstandard.compress(content) if compression == "zst" else content


def shards(rows: Sequence[Row], count: int) -> list[Sequence[Row]]:
    """The rows in their order, in as many parts of about the same size."""
    return [rows[len(rows) * part // count : len(rows) * (part + 1) // count] for part in range(count)]


def parquet_dataset(
    configs: dict[str, dict[str, Sequence[Row]]], count: int = 1, group_rows: int = 1000
) -> dict[str, bytes]:
    """A data set of parquet files: rows by split by config, `count` files for each, and the card that names them.

    A streaming reader fetches one row group more than it needs, also if the next one is in the next file.
    """
    card = {name: {split: f"{name}/{split}-*.parquet" for split in splits} for name, splits in configs.items()}
    files = {"README.md": readme(card)}
    for name, splits in configs.items():
        for split, rows in splits.items():
            for number, part in enumerate(shards(rows, count)):
                files[f"{name}/{split}-{number:05}-of-{count:05}.parquet"] = parquet(part, group_rows)
    return files


def json_dataset(
    splits: dict[str, Sequence[Row]], compression: Literal["gz", "zst"] | None = None, count: int = 1
) -> dict[str, bytes]:
    """A data set of JSON lines, `count` files for each split, without a card: splits are known by the files' names."""
    ending = f".jsonl.{compression}" if compression else ".jsonl"
    return {
        f"{split}-{number:05}-of-{count:05}{ending}": json_lines(part, compression)
        for split, rows in splits.items()
        for number, part in enumerate(shards(rows, count))
    }


def sentences(count: int, start: int = 0) -> list[Row]:
    """Rows with a column `text`, each of another sentence of words of `random_checkpoint`'s vocabulary."""
    return [
        {"text": " ".join(f"w{(number * 7 + place * 3) % 59}" for place in range(6)) + f" w{number % 59}"}
        for number in range(start, start + count)
    ]
