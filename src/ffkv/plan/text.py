"""What a plan must know of a corpus: tokens, sentences and prefixes of each split, counted, read, estimated or given."""

import functools
import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ffkv.corpus.document import Document
from ffkv.corpus.encode import bos_ids, encode
from ffkv.corpus.sources import find_files, read_documents, select_split
from ffkv.errors import UserError
from ffkv.files import hdf5
from ffkv.model.checkpoint.read import load_tokenizer
from ffkv.plan.sample import BUDGET, sample_files, thinned
from ffkv.plan.shape import Shape
from ffkv.settings import EMBEDDED, Corpus, Settings, corpus_sources

SPLITS = ("train", "validation")
GROUPS = 16  # that a sample is cut into, to see how much they differ
# What is assumed where only a number of tokens is known: WikiText's, near enough for prose.
TOKENS_A_SENTENCE, BYTES_A_TOKEN, SENTENCES_A_DOCUMENT = 25.0, 4.5, 10.0
SPREAD = 1.5  # mean of the squared length of sentences, over their squared mean length
SECONDS_A_BYTE = 7e-6  # of splitting and tokenizing, where there is no sample to time it on
OWN_CONTEXT = 2048  # tokens, where neither config nor tokenizer says; as `ffkv model` has it


@dataclass(frozen=True)
class Split:
    """The text of a split, as it will stand in its file.

    tokens, sentences, documents: how many. size: bytes of the sentences' text. square: mean of the sentences' squared
    lengths, in tokens. seconds: of one thread, to read, split and tokenize it. source: how all this is known.
    error: relative, at 95 %, as far as a sample tells; None where nothing was sampled.
    """

    tokens: float
    sentences: float
    documents: float
    size: float
    square: float
    seconds: float
    source: str
    error: float | None = None

    @property
    def length(self) -> float:
        """Mean tokens of a sentence."""
        return self.tokens / max(self.sentences, 1)

    @property
    def prefixes(self) -> float:
        """Prefixes that are neither empty nor a whole sentence."""
        return max(self.tokens - self.sentences, 0)

    @property
    def prefix_length(self) -> float:
        """Mean tokens of such a prefix: of n tokens there are 1 to n - 1, so that long sentences have more of them."""
        return (self.square - self.length) / (2 * max(self.length - 1, 1))


def text_of_run(run: str, settings: Settings, shape: Shape, given: dict[str, int]) -> dict[str, Split]:
    """Both splits of a run.

    What already stands in `results/<run>/corpus/` by the same settings is read; else a given number of tokens is
    taken; else documents are counted, all or a sample.

    Args:
        given: number of tokens by split, for what cannot be known from here.
    Raises:
        UserError: no such file, data set or tokenizer; or a hub data set whose size is not known.
    """
    found = {split: _made(run, split, settings.corpus) for split in SPLITS}
    found |= {split: from_tokens(tokens) for split, tokens in given.items() if found[split] is None}
    missing = [split for split in SPLITS if found[split] is None]
    if not missing:
        return found
    if settings.corpus.dataset not in (EMBEDDED, "files"):
        return found | {split: _from_hub(settings.corpus, split) for split in missing}
    documents = _embedded_documents() if EMBEDDED in (settings.corpus.dataset, settings.model.checkpoint) else []
    tokenizer = _tokenizer(run, settings, documents)
    context = shape.context or (tokenizer.model_max_length if tokenizer.model_max_length < 10**6 else OWN_CONTEXT)
    longest = max(context - len(bos_ids(tokenizer, settings.corpus.bos)), 2)
    for split in missing:
        if settings.corpus.dataset == EMBEDDED:
            mine = list(select_split(documents, settings.corpus, split))
            counted, factor = thinned(mine)
            total = float(len(mine))
        else:
            counted, factor, total = _from_files(settings.corpus, split)
        found[split] = estimate(counted, factor, total, tokenizer, longest, settings.corpus)
    return found


def from_tokens(tokens: int) -> Split:
    """A split of which only the number of tokens is known: sentences of a usual length."""
    size, sentences = tokens * BYTES_A_TOKEN, tokens / TOKENS_A_SENTENCE
    square = SPREAD * TOKENS_A_SENTENCE**2
    return Split(
        tokens, sentences, sentences / SENTENCES_A_DOCUMENT, size, square, size * SECONDS_A_BYTE, "given tokens"
    )


def estimate(documents: list[Document], factor: float, total: float, tokenizer, longest: int, corpus: Corpus) -> Split:
    """A split from documents that are some or all of it.

    Args:
        factor: what their text is to be multiplied with to make that of the split; 1 where they are all.
        total: number of documents of the split.
        longest: most tokens of a sentence.
    """
    encode(
        [Document("", "A word.")], tokenizer, longest, corpus.splitter, corpus.pretokenized, "windows", False
    )  # wakes
    start = time.process_time()
    encoded = encode(
        documents, tokenizer, longest, corpus.splitter, corpus.pretokenized, corpus.long_sentences, corpus.deduplicate
    )
    seconds = time.process_time() - start
    lengths = np.array([len(ids) for ids in encoded.ids] or [0], float)
    texts = sum(len(text.encode()) for text in encoded.text)
    sampled = factor != 1
    return Split(
        tokens=float(lengths.sum() * factor),
        sentences=len(encoded.ids) * factor,
        documents=total,
        size=texts * factor,
        square=float((lengths**2).mean()),
        seconds=seconds * factor,
        source=f"estimated from {len(documents):,} documents" if sampled else "counted",
        error=_error(documents, lengths, encoded.document) if sampled else None,
    )


def _error(documents: list[Document], lengths: np.ndarray, document: list[int]) -> float:
    """Twice the relative standard error of tokens a byte, from parts of a sample that follow one another."""
    groups = min(GROUPS, len(documents))
    if groups < 2:
        return math.inf
    group = np.arange(len(documents)) * groups // len(documents)
    sizes = np.bincount(group, weights=[len(found.text.encode("utf-8", "replace")) + 1 for found in documents])
    tokens = np.bincount(group[np.asarray(document, int)], weights=lengths[: len(document)], minlength=groups)
    rates = tokens / sizes
    return float(2 * rates.std(ddof=1) / math.sqrt(groups) / max(rates.mean(), 1e-9))


def _made(run: str, split: str, corpus: Corpus) -> Split | None:
    """A split that already stands in its file, by the same settings."""
    path = Path("results") / run / "corpus" / f"{split}.h5"
    if not path.exists():
        return None
    with hdf5.open(path, "corpus") as file:
        if json.loads(file.attrs.get("settings", "{}")) != corpus.model_dump():
            return None
        lengths = np.diff(file["sentence_offset"][...]).astype(float)
        return Split(
            tokens=float(lengths.sum()),
            sentences=len(lengths),
            documents=len(file["document_name_offset"]) - 1,
            size=float(len(file["text"])),
            square=float((lengths**2).mean()),
            seconds=0.0,
            source="read from its file",
        )


def _from_files(corpus: Corpus, split: str) -> tuple[list[Document], float, float]:
    """Documents of local files: all of a small corpus, pieces of a large one."""
    sources, shared = corpus_sources(corpus, split)
    paths = [Path(path) for path in find_files(sources)]
    if sum(path.stat().st_size for path in paths) <= BUDGET and not any(
        path.suffix.lower() in (".gz", ".parquet") for path in paths
    ):
        documents = list(read_documents(corpus, split))
        return documents, 1.0, float(len(documents))
    documents, factor = sample_files(paths, corpus)
    share = 1.0 if not shared else corpus.validation_share if split == "validation" else 1 - corpus.validation_share
    total = len(documents) * factor * share
    kept = min(1.0, corpus.limit / max(total, 1)) if corpus.limit else 1.0
    return documents, factor * share * kept, total * kept


def _from_hub(corpus: Corpus, split: str) -> Split:
    """A hub data set's split by the size that the hub knows of it; nothing is downloaded but that."""
    sources, shared = corpus_sources(corpus, split)
    info = _hub_split(corpus, sources[0])
    if info is None or not info.num_examples or not info.num_bytes:
        raise UserError(
            f"How large {corpus.dataset} is cannot be known from here: pass --train-tokens and --validation-tokens."
        )
    share = 1.0 if not shared else corpus.validation_share if split == "validation" else 1 - corpus.validation_share
    documents = info.num_examples * share
    kept = min(1.0, corpus.limit / documents) if corpus.limit else 1.0
    found = from_tokens(round(info.num_bytes * share * kept / BYTES_A_TOKEN))
    return replace(found, documents=documents * kept, source=f"the hub's size of it, at {BYTES_A_TOKEN} bytes a token")


def _hub_split(corpus: Corpus, name: str):
    """What the hub says of a split; None where it says nothing, or cannot be asked."""
    import datasets

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    config = None if corpus.config == "default" else corpus.config
    try:
        splits = datasets.load_dataset_builder(corpus.dataset, config, revision=corpus.revision).info.splits or {}
    except Exception as error:  # as in `corpus.read`: dozens of classes, offline among them
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"How large {corpus.dataset} is cannot be known from here ({reason}): pass --train-tokens and --validation-tokens."
        ) from error
    return splits.get(name)


@functools.cache
def _embedded_documents() -> list[Document]:
    from ffkv.corpus.python_docs import documents

    return list(documents())


def _tokenizer(run: str, settings: Settings, documents: list[Document]):
    """The run's tokenizer; that of an embedded model that is still to be trained is learnt here, as its training does."""
    if settings.model.checkpoint != EMBEDDED:
        model = settings.model
        return load_tokenizer(model.checkpoint, model.revision, model.trust_remote_code)
    trained = Path("results") / run / "checkpoint"
    if (trained / "tokenizer.json").exists():
        return load_tokenizer(trained)
    from ffkv.embedded.tokenizer import train_tokenizer

    corpus = settings.corpus if settings.corpus.dataset == EMBEDDED else Corpus()
    paragraphs = (part for found in select_split(documents, corpus, "train") for part in found.text.splitlines())
    return train_tokenizer(paragraphs, settings.embedded.vocabulary, settings.embedded.context)
