"""The size of a corpus: tokens, sentences and prefixes of each split, from its files, its first documents, or the hub."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import psutil

from ffkv.corpus.document import Document
from ffkv.corpus.encode import Encoded, bos_ids, encode
from ffkv.corpus.sources import find_files, read
from ffkv.embedded.tokenizer import train_tokenizer
from ffkv.errors import UserError
from ffkv.files import hdf5
from ffkv.model.checkpoint.read import load_tokenizer
from ffkv.model.discover.probe_texts import context_of
from ffkv.settings import EMBEDDED, Corpus, Settings, corpus_sources

SPLITS = ("train", "validation")
READ_BYTES = 2**21  # of text that is read, to see how many bytes of its files it takes
SAMPLE_BYTES = 2**18  # of text that is split and tokenized


@dataclass(frozen=True)
class Split:
    """The size of a split.

    Attributes:
        tokens: number of tokens, without BOS.
        sentences: number of sentences.
        documents: number of documents.
        text_bytes: bytes of text.
        seconds: CPU seconds to read, split and tokenize it.
        source: how the plan knows.
    """

    tokens: float
    sentences: float
    documents: float
    text_bytes: float
    seconds: float
    source: str

    @property
    def prefixes(self) -> float:
        """Number of prefixes that are neither empty nor a whole sentence."""
        return max(self.tokens - self.sentences, 0)

    def times(self, factor: float, source: str) -> "Split":
        """A split with so many times as much text."""
        return Split(*(factor * getattr(self, name) for name in list(self.__annotations__)[:-1]), source)


@dataclass(frozen=True)
class Text:
    """What the plan knows of a run's corpus.

    Attributes:
        train: size of the train split.
        validation: size of the validation split.
        sentences: some sentences of the corpus.
        vocabulary_seconds: CPU seconds to read the embedded corpus and to learn the vocabulary of the embedded model;
            0 if the run's tokenizer exists.
    """

    train: Split
    validation: Split
    sentences: tuple[str, ...]
    vocabulary_seconds: float = 0.0


def measure_text(settings: Settings, model: Any, written: dict[str, Path], tokens: dict[str, int]) -> Text:
    """Counts or estimates both splits of a run.

    Args:
        settings: the settings of the run.
        model: its model, with or without weights; says how long a sentence may be.
        written: corpus files by split that are up to date.
        tokens: numbers of tokens by split, from the command line.
    Raises:
        UserError: the corpus or the tokenizer cannot be read, or the hub does not tell the size of its data set.
    """
    corpus, start = settings.corpus, time.process_time()
    hub = corpus.dataset not in (EMBEDDED, "files")
    sample = {split: _first_documents(Corpus() if hub else corpus, split) for split in _splits_to_read(corpus)}
    checkpoint = Path(settings.model.checkpoint)
    if settings.model.checkpoint == EMBEDDED:
        documents = sample["train"][0] if corpus.dataset == EMBEDDED else list(read(Corpus(), "train"))
        paragraphs = (paragraph for document in documents for paragraph in document.text.splitlines())
        tokenizer = train_tokenizer(paragraphs, settings.embedded.vocabulary, settings.embedded.context)
    else:
        tokenizer = load_tokenizer(checkpoint, settings.model.revision, settings.model.trust_remote_code)
    vocabulary_seconds = time.process_time() - start if settings.model.checkpoint == EMBEDDED else 0.0
    longest = max(context_of(model, tokenizer) - len(bos_ids(tokenizer, corpus.bos)), 2)
    splits, sentences = {}, []
    for split, (documents, share, seconds) in sample.items():
        encoded, measured = _encode_some(documents, tokenizer, longest, corpus)
        sentences += encoded.text
        splits[split] = replace(measured, seconds=measured.seconds + seconds).times(
            1 / share, "counted" if share == 1 and measured.source == "counted" else "estimated"
        )
    if "validation" not in splits:
        splits["validation"] = _held_out(splits["train"], sample["train"][2] / sample["train"][1], corpus)
    for split in SPLITS:
        if split in written:
            splits[split] = replace(read_size(written[split]), seconds=splits[split].seconds)
        elif split in tokens:
            splits[split] = splits[split].times(tokens[split] / splits[split].tokens, "given tokens")
        elif hub:
            size = _hub_bytes(corpus, split)
            splits[split] = splits[split].times(size / splits[split].text_bytes, "size that the hub tells")
    return Text(splits["train"], splits["validation"], tuple(sentences), vocabulary_seconds)


def _splits_to_read(corpus: Corpus) -> tuple[str, ...]:
    """The splits whose documents are read: where both come from the same documents, validation follows from train."""
    return SPLITS if corpus.validation and corpus.dataset == "files" else ("train",)


def _held_out(train: Split, reading: float, corpus: Corpus) -> Split:
    """The validation split, from a train split of the same documents.

    Args:
        reading: CPU seconds to read the documents of the train split; both splits read all documents up to their limit.
    """
    factor, again = 1.0, 1.0
    if not corpus.validation:
        share = min(max(corpus.validation_share, 1e-6), 1 - 1e-6)
        factor = share / (1 - share)
        if corpus.limit and train.documents >= corpus.limit:
            factor, again = 1.0, 1 / factor
    return replace(train.times(factor, "estimated"), seconds=factor * (train.seconds - reading) + again * reading)


def _first_documents(corpus: Corpus, split: str) -> tuple[list[Document], float, float]:
    """The first documents of a split, the share of it that they are, and the CPU seconds to read them."""
    documents, size, start = [], 0, time.process_time()
    source = read(corpus, split)
    for document in source:
        documents.append(document)
        size += len(document.text.encode("utf-8", "replace")) + 1
        if size > READ_BYTES and corpus.dataset == "files":
            break
    else:
        return documents, 1.0, time.process_time() - start
    share = _share_read(find_files(corpus_sources(corpus, split)[0]), documents[-1].name, size)
    if corpus.limit:
        share = max(share, len(documents) / corpus.limit)
    return documents, min(share, 1.0), time.process_time() - start


def _share_read(paths: list[str], last: str, size: int) -> float:
    """Share of the bytes of some files that has been read.

    Args:
        last: name of the last document, "<path>:<number>".
        size: bytes of text that have been read.
    """
    path, _, number = last.rpartition(":")
    sizes = [Path(each).stat().st_size for each in paths]
    before = sum(sizes[: paths.index(path)])
    if path.lower().endswith(".parquet"):
        from pyarrow import parquet

        inside = sizes[paths.index(path)] * (int(number) + 1) / parquet.read_metadata(path).num_rows
    else:
        opened = (file for file in psutil.Process().open_files() if Path(file.path) == Path(path).resolve())
        inside = next((file.position for file in opened if getattr(file, "position", 0) > 0), size)
    return (before + inside) / sum(sizes)


def _encode_some(documents: list[Document], tokenizer: Any, longest: int, corpus: Corpus) -> tuple[Encoded, Split]:
    """The sentences of the first documents, and the size of all, as far as these tell."""
    sizes = [len(document.text.encode("utf-8", "replace")) + 1 for document in documents]
    some = list(_until(documents, sizes, SAMPLE_BYTES))
    rest = (corpus.splitter, corpus.pretokenized, corpus.long_sentences, corpus.deduplicate)
    encode([Document("", "A first word.")], tokenizer, longest, *rest)  # what is loaded at the first call is no rate
    start = time.process_time()
    encoded = encode(some, tokenizer, longest, *rest)
    seconds = time.process_time() - start
    tokens = float(sum(map(len, encoded.ids)))
    size = float(sum(sizes[: len(some)]))
    if not tokens:
        raise UserError("The first documents of the corpus have no sentence of two tokens: check the corpus settings.")
    counted = Split(tokens, len(encoded.ids), len(some), size, seconds, "counted")
    return encoded, counted if len(some) == len(documents) else counted.times(sum(sizes) / size, "estimated")


def _until(documents: list[Document], sizes: list[int], limit: int) -> Iterator[Document]:
    total = 0
    for document, size in zip(documents, sizes, strict=True):
        if total > limit:
            return
        yield document
        total += size


def read_size(path: Path) -> Split:
    """The size of a split that has been written."""
    with hdf5.open(path, "corpus") as file:
        tokens, sentences = float(file.attrs["tokens"]), float(file.attrs["sentences"])
        documents, text_bytes = len(file["document_name_offset"]) - 1.0, float(len(file["text"]))
    return Split(tokens, sentences, documents, text_bytes, 0.0, "read from its file")


def _hub_bytes(corpus: Corpus, split: str) -> float:
    """Bytes of text of a split of a hub data set. Nothing but the data set's description is fetched.

    Raises:
        UserError: the hub cannot be reached or does not tell.
    """
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    sources, shared = corpus_sources(corpus, split)
    config = None if corpus.config == "default" else corpus.config
    reason = "the hub does not tell"
    try:
        splits = datasets.load_dataset_builder(corpus.dataset, config, revision=corpus.revision).info.splits or {}
        found = splits.get(sources[0])
    except Exception as error:  # the library raises dozens of classes here, offline among them
        found, reason = None, " ".join(str(error).split())[:300]
    if found is None or not found.num_examples or not found.num_bytes:
        raise UserError(
            f"The size of {corpus.dataset} is not known ({reason}). Pass --train-tokens and --validation-tokens."
        )
    share = 1.0 if not shared else corpus.validation_share if split == "validation" else 1 - corpus.validation_share
    kept = min(1.0, corpus.limit / (found.num_examples * share)) if corpus.limit else 1.0
    return max(found.num_bytes * share * kept, 1.0)
