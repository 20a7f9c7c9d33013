"""Documents from a hub data set, from local files, or from the embedded corpus."""

import glob
import hashlib
import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ffkv.corpus.document import Document
from ffkv.corpus.text_files import texts
from ffkv.errors import UserError
from ffkv.settings import EMBEDDED, Corpus, corpus_sources
from ffkv.settings.messages import shown

FORMATS = {
    "txt": "text",
    "text": "text",
    "tokens": "text",
    "json": "json",
    "jsonl": "json",
    "csv": "csv",
    "parquet": "parquet",
}


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
        from ffkv.corpus.python_docs import documents

        return documents()
    return _from_files(corpus, sources) if corpus.dataset == "files" else _from_hub(corpus, sources[0])


def _from_files(corpus: Corpus, patterns: list[str]) -> Iterator[Document]:
    for path in find_files(patterns):
        kind = _format(path)
        for index, text in enumerate(texts(path, kind, corpus.text_field, corpus.txt_document)):
            yield Document(f"{path}:{index}", text or "")


def find_files(patterns: list[str]) -> list[str]:
    """The files behind paths and globs, sorted within each pattern, each file once under whatever names.

    Raises:
        UserError: a pattern that matches nothing.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        try:
            matches = [pattern] if Path(pattern).is_file() else _matches(pattern)
            paths = sorted(path for path in matches if Path(path).is_file())
        except (OSError, ValueError):  # no name that a file can have
            paths = []
        if not paths:
            raise UserError(
                f"No corpus file matches {shown(pattern)}: check corpus.train and corpus.validation "
                "(paths are relative to the working directory)."
            )
        for path in paths:
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _matches(pattern: str) -> list[str]:
    """As `glob.glob` with `**`, which here visits no folder twice: links can lead in circles."""
    above, found, below = re.sub(r"(?<![^/])(\*\*/)+(?=\*\*(/|$))", "", pattern).partition("**")
    if not found or not re.fullmatch(r"(.*/)?", above) or not re.fullmatch(r"(/.*)?", below):
        return glob.glob(pattern)  # noqa: PTH207 (absolute)
    tops = glob.glob(above) if above else [""]  # noqa: PTH207
    folders = [folder for top in tops for folder in _folders(top)]
    return [path for folder in folders for path in _matches(glob.escape(folder) + (below.lstrip("/") or "*"))]


def _folders(top: str) -> Iterator[str]:
    """A folder ("" is the working directory) and all below it but hidden ones, each real one once, as "<path>/"."""
    seen = set()
    for folder, inside, _ in os.walk(top or ".", followlinks=True):
        if (real := os.path.realpath(folder)) in seen:
            inside.clear()
            continue
        seen.add(real)
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        yield os.path.join(folder if top else folder[2:], "")  # noqa: PTH118 (of "./a" it is "a")


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
        name=None if corpus.config == "default" else corpus.config,
        revision=corpus.revision,
        split=split,
    )
    return _rows(rows, corpus.text_field, f"{corpus.dataset}:{split}")


def _load(source: str, **arguments):
    """`datasets.load_dataset`, with its many errors turned into one message that names the source."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what is wrong is said once, below
    try:
        return datasets.load_dataset(source, **arguments)
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
    except UnicodeDecodeError as error:
        raise UserError(f"{source}: field {field!r} holds bytes that are no UTF-8 text ({error}).") from error
