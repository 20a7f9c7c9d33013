"""The size of a corpus: from its written files, from some of its documents, from the hub, or from the command line."""

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.hub.commit import Commit, resolve_dataset
from ffkv.base.settings import EMBEDDED, Corpus, Settings, corpus_sources
from ffkv.corpus import python_docs
from ffkv.corpus.beginning import configured_bos, find_beginning, longest_sentence
from ffkv.corpus.chat import Render, chat_renderer
from ffkv.corpus.document import Document
from ffkv.corpus.embedded.tokenizer import train_tokenizer
from ffkv.corpus.encode import Encoded, encode
from ffkv.corpus.hub_rows import describe_split
from ffkv.corpus.sources import find_files, read_documents, select_split
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.discover.probe_texts import context_of

SAMPLE_BYTES = 2**18  # of files that are read
EVERY = 6  # one of so many documents of the embedded corpus is read


class Split(NamedTuple):
    """The size of a split.

    Attributes:
        tokens: number of tokens, without BOS.
        sentences: number of sentences.
        documents: number of documents.
        text_bytes: bytes of text.
        seconds: seconds to read, split and tokenize it.
        source: how the plan knows.
    """

    tokens: float
    sentences: float
    documents: float
    text_bytes: float
    seconds: float
    source: str

    def times(self, factor: float, source: str) -> "Split":
        """The size of a split with `factor` times as much text. `source` says how it is known."""
        tokens, sentences, documents, text_bytes, seconds = (factor * size for size in self[:5])
        return Split(tokens, sentences, documents, text_bytes, seconds, source)


def measure_text(
    settings: Settings, model: Any, written: dict[str, Path], tokens: Mapping[str, int], commits: dict[str, Commit]
) -> tuple[dict[str, Split], list[str]]:
    """Counts or estimates both splits of a run; returns them by name, and some of the sentences.

    Args:
        settings: the settings of the run.
        model: its model, with or without weights: it says how long a sentence may be.
        written: files of splits that are up to date.
        tokens: numbers of tokens of splits, from the command line.
        commits: what is read of the hub, by "model" and "dataset".
    Raises:
        UserError: the corpus or the tokenizer cannot be read, or the hub does not tell the size of its data set.
    """
    corpus, made, named = settings.corpus, settings.embedded, settings.model
    on_hub = corpus.dataset not in (EMBEDDED, "files")  # is not downloaded: the embedded corpus stands for its text
    if named.checkpoint == EMBEDDED:
        texts = (document.text for document in python_docs.documents(EVERY))
        tokenizer = train_tokenizer(texts, made.vocabulary, made.context)
    else:
        tokenizer = load_tokenizer(named.checkpoint, commits.get("model"), named.trust_remote_code, named.gguf)
    render = chat_renderer(tokenizer, corpus)
    beginning = find_beginning(tokenizer, corpus.bos, configured_bos(model.config.to_dict()), render)
    longest = longest_sentence(context_of(model, tokenizer), corpus.context, beginning)
    encoding = functools.partial(
        encode, tokenizer=tokenizer, max_tokens=longest, settings=corpus, beginning=beginning.ids
    )
    train, sentences = _sample(Corpus() if on_hub else corpus, "train", render, encoding)
    if corpus.dataset == "files" and corpus.validation:
        validation, more = _sample(corpus, "validation", render, encoding)
    else:  # both splits read the same documents
        share = min(max(corpus.validation_share, 1e-6), 1 - 1e-6)
        limited = corpus.limit and train.documents >= corpus.limit  # then validation reads on, to its own limit
        validation, more = train.times(1.0 if limited else share / (1 - share), "estimated"), []
        validation = validation._replace(seconds=train.seconds)
    splits = {"train": train, "validation": validation}
    for name, split in splits.items():
        if name in written:
            splits[name] = read_size(written[name])
            continue
        size = _hub_bytes(corpus, name, commits.get("dataset") or resolve_dataset(corpus)) if on_hub else None
        if name in tokens:
            splits[name] = split.times(tokens[name] / split.tokens, "given tokens")
        elif size:
            source = "the size that the hub tells" + ", without corpus.where" * bool(corpus.where)
            splits[name] = split.times(size / split.text_bytes, source)
        elif on_hub:
            remedy = "Pass --train-tokens and --validation-tokens."
            raise UserError(f"The hub does not tell the size of {corpus.dataset}. {remedy}")
    return splits, sentences + more


def _sample(
    corpus: Corpus, split: str, render: Render | None, encoding: Callable[[list[Document]], Encoded]
) -> tuple[Split, list[str]]:
    """The size of a split as some of its documents tell it, and their sentences."""
    encoding([Document("", "A first word.")])  # loads what the first call loads
    start, share = time.process_time(), 1.0
    documents: list[Document] = []
    if corpus.dataset == EMBEDDED:
        documents += select_split(python_docs.documents(EVERY), corpus, split)
        share = max(1 / EVERY, len(documents) / corpus.limit if corpus.limit else 0)
    else:
        size = 0
        for document in (reader := read_documents(corpus, split, render)):
            documents.append(document)
            size += _bytes(document)
            if size > SAMPLE_BYTES:
                share = _share_read(find_files(corpus_sources(corpus, split)[0]), document, size)
                share = max(share, len(documents) / corpus.limit) if corpus.limit else min(share, 1.0)
                break
        del reader  # it holds the file open
    encoded = encoding(documents)
    seconds = time.process_time() - start
    tokens, size = sum(map(len, encoded.ids)), sum(map(_bytes, documents))
    if not tokens:
        raise UserError("The first documents of the corpus hold no sentence of two tokens. Check the corpus settings.")
    known = "counted" if share == 1 else f"estimated from {len(documents):,} documents"
    found = Split(tokens, len(encoded.ids), len(documents), size, seconds, known)
    return found.times(1 / share, known), list(encoded.text)


def _bytes(document: Document) -> int:
    return len(document.text.encode("utf-8", "replace")) + 1


def _share_read(paths: list[str], last: Document, size: int) -> float:
    """Share of the bytes of files that is read after their document `last` and `size` bytes of text."""
    path, _, number = last.name.rpartition(":")
    sizes = [Path(each).stat().st_size for each in paths]
    opened = {file.path: getattr(file, "position", 0) for file in psutil.Process().open_files()}
    part = float(opened.get(str(Path(path).resolve()), 0) or size)  # how far the file is read, if the system tells
    if path.lower().endswith(".parquet"):
        from pyarrow import parquet

        part = sizes[paths.index(path)] * (int(number) + 1) / parquet.read_metadata(path).num_rows
    return (sum(sizes[: paths.index(path)]) + part) / sum(sizes)


def read_size(path: Path) -> Split:
    """The size of a split that has been written."""
    with hdf5.open(path, "corpus") as file:
        names = ("tokens", "sentence_offset", "document_name_offset", "text")
        tokens, sentences, documents, text_bytes = (float(len(file[name])) for name in names)
    return Split(tokens, sentences - 1, documents - 1, text_bytes, 0.0, "read from its file")


def _hub_bytes(corpus: Corpus, split: str, commit: Commit) -> float | None:
    """Bytes of text of a split of a hub data set, from the description of the data set; None if it does not say."""
    sources, shared = corpus_sources(corpus, split)
    found = describe_split(commit, corpus.config, sources[0])
    if not found.rows or not found.text_bytes:
        return None
    held_out = corpus.validation_share if split == "validation" else 1 - corpus.validation_share
    documents = found.rows * (held_out if shared else 1.0)
    return found.text_bytes / found.rows * min(documents, corpus.limit or documents)
