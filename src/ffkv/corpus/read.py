"""Documents from a hub data set, from local files, or from the embedded corpus."""

import glob
import hashlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ffkv.errors import UserError
from ffkv.settings import EMBEDDED, Corpus, corpus_sources

FORMATS = {
    "txt": "text",
    "text": "text",
    "tokens": "text",
    "json": "json",
    "jsonl": "json",
    "csv": "csv",
    "parquet": "parquet",
}

TXT_DOCUMENTS = {"line": "line", "paragraph": "paragraph", "file": "document"}  # as `datasets` calls them


class Document(NamedTuple):
    """A piece of text that stands for itself; its name decides which split it falls into."""

    name: str
    text: str


def read(corpus: Corpus, split: str) -> Iterator[Document]:
    """The documents of a split, in the order of their source.

    Args:
        corpus: the corpus settings.
        split: "train" or "validation".
    Raises:
        UserError: no such data set, split, file or field; a file that cannot be read.
    """
    sources, shared = corpus_sources(corpus, split)
    documents = _documents(corpus, sources)
    if shared:
        documents = (
            document
            for document in documents
            if held_out(document.name, corpus.validation_share) == (split == "validation")
        )
    return islice(documents, corpus.limit or None)


def held_out(name: str, share: float) -> bool:
    """Whether a document is in the validation split: a hash of its name, so that adding documents moves no other one."""
    number = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8], "big")
    return number < share * 2**64


def _documents(corpus: Corpus, sources: list[str]) -> Iterator[Document]:
    if corpus.dataset == EMBEDDED:
        from ffkv.embedded.documents import documents

        return documents()
    return _from_files(corpus, sources) if corpus.dataset == "files" else _from_hub(corpus, sources[0])


def _from_files(corpus: Corpus, patterns: list[str]) -> Iterator[Document]:
    for path in find_files(patterns):
        builder = _format(path)
        if not Path(path).stat().st_size:
            continue
        unit = {"sample_by": TXT_DOCUMENTS[corpus.txt_document]} if builder == "text" else {}
        rows = _load(path, builder, data_files={"data": glob.escape(path)}, split="data", **unit)
        yield from _rows(rows, corpus.text_field, path)


def find_files(patterns: list[str]) -> list[str]:
    """The files behind paths and globs, sorted within each pattern, each once.

    Raises:
        UserError: a pattern that matches nothing.
    """
    found = []
    for pattern in patterns:
        matches = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)  # noqa: PTH207 (absolute)
        paths = sorted(path for path in matches if Path(path).is_file())
        if not paths:
            raise UserError(
                f"No corpus file matches {pattern!r}: check corpus.train and corpus.validation "
                "(paths are relative to the working directory)."
            )
        found += paths
    return list(dict.fromkeys(found))


def _format(path: str) -> str:
    ending = Path(path.lower().removesuffix(".gz")).suffix
    if ending.removeprefix(".") not in FORMATS:
        raise UserError(
            f"{path}: no reader for files whose name ends in {ending!r}; corpora are "
            f"{', '.join(sorted(FORMATS))}, each also .gz."
        )
    return FORMATS[ending.removeprefix(".")]


def _from_hub(corpus: Corpus, split: str) -> Iterator[Document]:
    rows = _load(
        corpus.dataset,
        corpus.dataset,
        name=None if corpus.config == "default" else corpus.config,
        revision=corpus.revision,
        split=split,
    )
    return _rows(rows, corpus.text_field, f"{corpus.dataset}:{split}")


def _load(source: str, builder: str, **arguments):
    """`datasets.load_dataset`, with its many errors turned into one message that names the source."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what is wrong is said once, below
    if builder in ("text", "json", "csv"):
        arguments["encoding_errors"] = "replace"
    if builder == "csv":
        arguments["keep_default_na"] = False  # "null" and "NA" are words
    try:
        return datasets.load_dataset(builder, **arguments)
    except Exception as error:  # the library raises dozens of classes here; none is a defect of ffkv
        reason = " ".join(str(error.__cause__ or error).split())
        raise UserError(f"The corpus {source} cannot be read: {reason[:500] or type(error).__name__}") from error


def _rows(rows, field: str, source: str) -> Iterator[Document]:
    if field not in rows.column_names:
        raise UserError(
            f"{source} has no field {field!r}; it has {', '.join(map(repr, rows.column_names))}. Set corpus.text_field."
        )
    try:
        for index, text in enumerate(rows[field]):
            if text is not None and not isinstance(text, str):
                raise UserError(
                    f"{source}, row {index}: field {field!r} holds {type(text).__name__}, not text. Set corpus.text_field."
                )
            yield Document(f"{source}:{index}", text or "")
    except UnicodeDecodeError as error:  # of JSON and parquet files: those formats are UTF-8 by definition
        raise UserError(f"{source}: field {field!r} holds bytes that are no UTF-8 text ({error}).") from error
