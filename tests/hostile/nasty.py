"""Texts that nobody would write, in every format that the corpus stage reads."""

import csv
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

from ffkv.base.settings import Corpus
from ffkv.corpus.commands import corpus
from ffkv.corpus.sources import read_documents

NASTY = [
    "nul \0 and bell \a",
    "\u202eright to left\u202c and שלום עולם مرحبا",
    "e\u0301\u0302\u0303 combining " + "z" + "\u0335" * 300,
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    '=HYPERLINK("http://evil.example","x"),+1-1,@SUM(A1)',
    '\'; DROP TABLE x; -- "quoted" `ticks` $(touch pwned)',
    "{{ 7 * 7 }} {wildcard} %s %n \\u0000 \\x00 \\",
    "next\x85line\u2028separator\u2029\x0bvertical\x0cfeed\x1cfile",
    "👩\u200d👩\u200d👧 \U0010ffff \ufffe\uffff \ue000",
    "\ufeff no mark of order in the middle \ufeff",
    "NA",
    "null",
    "007",
    "x" * 3000 + "." * 3000 + " end",
    "",
    "  \t ",
]
BREAKS = ["two\nlines", "carriage\rreturn", "both\r\nof them", '"\n"', "\n\n"]


def load(*paths, **settings) -> list[str]:
    """The texts of files, as the corpus stage reads them."""
    patterns = [str(path) for path in paths]
    chosen = Corpus(dataset="files", train=patterns, validation=patterns, **settings)
    return [document.text for document in read_documents(chosen, "train")]


def as_txt(texts: list[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def as_jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"n": 1, "text": text}) + "\n" for text in texts).encode()


def as_json(texts: list[str]) -> bytes:
    return json.dumps([{"text": text} for text in texts], indent=1, ensure_ascii=False).encode()


def as_csv(texts: list[str]) -> bytes:
    written = io.StringIO(newline="")
    csv.writer(written).writerows([["n", "text"], *((n, text) for n, text in enumerate(texts))])
    return written.getvalue().encode()


def as_parquet(texts: list[str], kind: pa.DataType | None = None) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.table({"n": range(len(texts)), "text": pa.array(texts, kind)}), written)
    return written.getvalue()


WRITERS = {"txt": as_txt, "jsonl": as_jsonl, "json": as_json, "csv": as_csv, "parquet": as_parquet}


def run(model, path, tmp_path, *options: str):
    """`ffkv corpus` on a file; returns click's result and the file that it was to write."""
    output = tmp_path / "train.h5"
    arguments = ["--model", model, "--split", "train", "--dataset", "files", "--train", path, "--validation", path]
    return CliRunner().invoke(corpus, [str(part) for part in [*arguments, *options, "--output", output]]), output


def closed_up(text: str) -> str:
    """A text without blanks and line ends."""
    return "".join(text.split())
