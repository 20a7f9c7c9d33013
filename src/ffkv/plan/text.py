"""The size of a corpus: from its written files, from its first documents, from the hub, or from the command line."""

import time
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import psutil

from ffkv.corpus.document import Document
from ffkv.corpus.encode import bos_ids, encode
from ffkv.corpus.sources import find_files, read_documents
from ffkv.embedded.tokenizer import train_tokenizer
from ffkv.errors import UserError
from ffkv.files import hdf5
from ffkv.model.checkpoint.read import load_tokenizer
from ffkv.model.discover.probe_texts import context_of
from ffkv.settings import EMBEDDED, Corpus, Settings, corpus_sources

READ_BYTES, SAMPLE_BYTES = 2**21, 2**18  # of text: what is read to see its share of the files; what is tokenized of it


@dataclass(frozen=True)
class Split:
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
        """A split of so many times as much text."""
        sizes = (self.tokens, self.sentences, self.documents, self.text_bytes, self.seconds)
        return Split(*(factor * size for size in sizes), source)


def measure_text(
    settings: Settings, model: Any, written: dict[str, Path], tokens: dict[str, int]
) -> tuple[dict[str, Split], list[str]]:
    """Counts or estimates both splits of a run; returns them by name, and some of the sentences.

    Args:
        settings: the settings of the run.
        model: its model, with or without weights: it says how long a sentence may be.
        written: files of splits that are up to date.
        tokens: numbers of tokens of splits, from the command line.
    Raises:
        UserError: the corpus or the tokenizer cannot be read, or the hub does not tell the size of its data set.
    """
    corpus, checkpoint = settings.corpus, settings.model.checkpoint
    hub = corpus.dataset not in (EMBEDDED, "files")  # is not downloaded: the embedded corpus stands for its text
    documents, share, reading = _read_first(Corpus() if hub else corpus, "train")
    if checkpoint == EMBEDDED:
        own = documents if corpus.dataset == EMBEDDED else list(read_documents(Corpus(), "train"))
        paragraphs = (paragraph for document in own for paragraph in document.text.splitlines())
        tokenizer = train_tokenizer(paragraphs, settings.embedded.vocabulary, settings.embedded.context)
    else:
        tokenizer = load_tokenizer(checkpoint, settings.model.revision, settings.model.trust_remote_code)
    longest = max(context_of(model, tokenizer) - len(bos_ids(tokenizer, corpus.bos)), 2)
    train, sentences = _encode_first(documents, tokenizer, longest, corpus)
    splits = {"train": replace(train, seconds=train.seconds + reading).times(1 / share, train.source)}
    if corpus.dataset == "files" and corpus.validation:
        documents, share, reading = _read_first(corpus, "validation")
        held_out, more = _encode_first(documents, tokenizer, longest, corpus)
        splits["validation"] = replace(held_out, seconds=held_out.seconds + reading).times(1 / share, held_out.source)
        sentences += more
    else:  # both splits read the same documents
        odds = (1 - corpus.validation_share) / max(corpus.validation_share, 1e-6)
        limited = (
            corpus.limit and splits["train"].documents >= corpus.limit
        )  # then validation reads on, to its own limit
        factor, again = (1.0, odds) if limited else (1 / max(odds, 1e-6), 1.0)
        seconds = (factor * train.seconds + again * reading) / share
        splits["validation"] = replace(train.times(factor / share, "estimated"), seconds=seconds)
    for name, split in splits.items():
        if name in written:
            splits[name] = replace(read_size(written[name]), seconds=split.seconds)
        elif name in tokens:
            splits[name] = split.times(tokens[name] / split.tokens, "given tokens")
        elif hub:
            splits[name] = split.times(_hub_bytes(corpus, name) / split.text_bytes, "the size that the hub tells")
    return splits, sentences


def _read_first(corpus: Corpus, split: str) -> tuple[list[Document], float, float]:
    """The first documents of a split, the share of its text that they are, and the seconds to read them."""
    documents, size, start, share = [], 0, time.process_time(), 1.0
    for document in (source := read_documents(corpus, split)):
        documents.append(document)
        size += len(document.text) + 1
        if size > READ_BYTES and corpus.dataset == "files":
            share = _share_read(find_files(corpus_sources(corpus, split)[0]), document.name, size)
            share = max(share, len(documents) / corpus.limit) if corpus.limit else share
            break
    del source  # it held the file open, which tells how far it was read
    return documents, min(share, 1.0), time.process_time() - start


def _share_read(paths: list[str], last: str, size: int) -> float:
    """Share of the bytes of files that is read after the document `last`, "<path>:<number>", and `size` characters."""
    path, _, number = last.rpartition(":")
    sizes = [Path(each).stat().st_size for each in paths]
    opened = {file.path: getattr(file, "position", 0) for file in psutil.Process().open_files()}
    part = float(opened.get(str(Path(path).resolve()), 0) or size)
    if path.lower().endswith(".parquet"):
        from pyarrow import parquet

        part = sizes[paths.index(path)] * (int(number) + 1) / parquet.read_metadata(path).num_rows
    return (sum(sizes[: paths.index(path)]) + part) / sum(sizes)


def _encode_first(documents: list[Document], tokenizer: Any, longest: int, corpus: Corpus) -> tuple[Split, list[str]]:
    """The size of some documents, as far as the first of them tell, and the sentences of these."""
    sizes = [len(document.text.encode("utf-8", "replace")) + 1 for document in documents]
    first = documents[: 1 + sum(size < SAMPLE_BYTES for size in accumulate(sizes))]
    rest = (corpus.splitter, corpus.pretokenized, corpus.long_sentences, corpus.deduplicate)
    encode([Document("", "A first word.")], tokenizer, longest, *rest)  # loads what the first call loads
    start = time.process_time()
    encoded = encode(first, tokenizer, longest, *rest)
    seconds, tokens = time.process_time() - start, float(sum(map(len, encoded.ids)))
    if not tokens:
        raise UserError("The first documents of the corpus hold no sentence of two tokens. Check the corpus settings.")
    split = Split(tokens, len(encoded.ids), len(first), float(sum(sizes[: len(first)])), seconds, "counted")
    if len(first) < len(documents):
        split = split.times(sum(sizes) / split.text_bytes, f"estimated from {len(first):,} documents")
    return split, list(encoded.text)


def read_size(path: Path) -> Split:
    """The size of a split that has been written."""
    with hdf5.open(path, "corpus") as file:
        names = ("tokens", "sentence_offset", "document_name_offset", "text")
        tokens, sentences, documents, text_bytes = (float(len(file[name])) for name in names)
    return Split(tokens, sentences - 1, documents - 1, text_bytes, 0.0, "read from its file")


def _hub_bytes(corpus: Corpus, split: str) -> float:
    """Bytes of text of a split of a hub data set, from the description of the data set."""
    import datasets

    sources, shared = corpus_sources(corpus, split)
    config, found, reason = None if corpus.config == "default" else corpus.config, None, "the hub does not tell"
    try:
        splits = datasets.load_dataset_builder(corpus.dataset, config, revision=corpus.revision).info.splits
        found = (splits or {}).get(sources[0])
    except Exception as error:  # the library raises dozens of classes here, offline among them
        reason = " ".join(str(error).split())[:300]
    if found is None or not found.num_examples or not found.num_bytes:
        remedy = "Pass --train-tokens and --validation-tokens."
        raise UserError(f"The size of {corpus.dataset} is not known ({reason}). {remedy}")
    held_out = corpus.validation_share if split == "validation" else 1 - corpus.validation_share
    documents = found.num_examples * (held_out if shared else 1.0)
    return found.num_bytes / found.num_examples * min(documents, corpus.limit or documents)
