"""What is known of a run before its trial: settings, jobs, and the sizes of its model and text. No weight is read."""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from pyarrow import parquet
from transformers import PreTrainedModel

from ffkv.activations.trigger_file import HISTOGRAM_EDGES, Triggers
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.files.datasets import stored_bytes
from ffkv.base.hub.commit import Commit, read_commit, resolve_dataset, resolve_model
from ffkv.base.hub.fetch import choose_files_of, local_model, measure_missing
from ffkv.base.packages import locate
from ffkv.base.settings import EMBEDDED, Corpus, Settings, corpus_sources
from ffkv.corpus import python_docs
from ffkv.corpus.chat import Render, chat_renderer
from ffkv.corpus.document import Document
from ffkv.corpus.embedded.training import make_model, train_tokenizer
from ffkv.corpus.encode import Encoded, encode
from ffkv.corpus.hub_rows import describe_split
from ffkv.corpus.sources import find_files, read_documents, select_split
from ffkv.model.checkpoint.gguf_file import unpacking_seconds
from ffkv.model.checkpoint.read import load_form
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.discover.probe_texts import context_of
from ffkv.model.shape import Shape, measure_shape
from ffkv.workflow.jobs import Job

SAMPLE_BYTES = 2**18  # of files that are read
# Sentences of trigger examples are so many times as long as others: a long one has more prefixes that may be the best. Of
# log-normal lengths as in WikiText (standard deviation 0.63), a sentence of a random token is exp(0.63^2) times as long.
LONGER = 1.5
EVERY = 6  # one of so many documents of the embedded corpus is read
Jobs = Mapping[str, Sequence[Job]]  # by rule


class Split(NamedTuple):
    """The size of a split."""

    tokens: float  # without BOS
    sentences: float
    documents: float
    text_bytes: float
    seconds: float  # to read and tokenize it
    source: str  # how the plan knows

    def times(self, factor: float, source: str) -> "Split":
        """Returns the size of a split with `factor` times as much text. `source` says how it is known."""
        tokens, sentences, documents, text_bytes, seconds = (factor * size for size in self[:5])
        return Split(tokens, sentences, documents, text_bytes, seconds, source)

    @property
    def trigger_tokens(self) -> float:
        """Tokens of the prefix of a trigger example, with BOS, on average."""
        return 1 + LONGER * self.tokens / self.sentences / 2

    def tokens_read(self, prefixes: float) -> float:
        """Estimates what the model reads of sampled prefixes: of each sentence the longest one, which the others begin.

        A sentence has k of them on average (a Poisson number), each length as likely as any other. The longest one is
        then expected to have 1 - (1 - exp(-k)) / k of the sentence.
        """
        k = max(prefixes, 1) / max(self.sentences, 1)
        return self.tokens * (1 - (1 - math.exp(-k)) / k)

    def triggers_read(self, triggers: float) -> float:
        """Estimates what the model reads of the prefixes of trigger examples, see `tokens_read`."""
        return min(self.tokens, LONGER * self.tokens_read(triggers))


class RunFacts(NamedTuple):
    """What is known of a run."""

    settings: Settings  # see `as_trained`
    shape: Shape  # of its model
    text: Mapping[str, Split]  # the splits of its text
    jobs: Jobs
    sentences: Sequence[str] = ()  # some of them
    loading: float = 0.0  # seconds to read what is beside the weights of its checkpoint
    download: int = 0  # bytes
    packed: int = 0  # bytes of the GGUF file that is still to be unpacked
    unpacking: float = 0.0  # seconds that this takes

    @property
    def sampled(self) -> int:
        """Number of sampled prefixes: as many as are asked for, or all that the validation split has."""
        validation = self.text["validation"]
        return int(min(self.settings.prefixes.count, validation.tokens - validation.sentences))

    @property
    def signs(self) -> int:
        """1, or 2 if keys have triggers with negative coefficients, too."""
        return 1 + (self.shape.signed and self.settings.triggers.negative)

    @property
    def trigger_bytes(self) -> float:
        """Bytes of the triggers of all keys."""
        return _trigger_bytes(self.shape.all_memories, self.shape.layers, self.settings.triggers.per_key, self.signs)


@functools.cache  # a plan asks thousands of times
def _trigger_bytes(memories: int, layers: int, per_key: int, signs: int) -> float:
    sizes = {"memory": memories, "layer": layers, "bin": len(HISTOGRAM_EDGES) - 1, "rank": per_key}
    return float(stored_bytes(Triggers, sizes, () if signs == 2 else ("negative",)))


def inspect_run(settings: Settings, jobs: Jobs, tokens: int | None) -> RunFacts:
    """Finds out what is known of a run. For the arguments and errors see `make_plan`; `jobs` are those of this run."""
    settings = settings.model_copy(update={"model": settings.model.located()})
    resolve = {"model": lambda: resolve_model(settings.model), "dataset": lambda: resolve_dataset(settings.corpus)}
    asked = {Path(job.outputs[0]): job.done for job in jobs.get("resolve_commit", ())}
    commits = {path.stem: read_commit(path) if done else resolve[path.stem]() for path, done in asked.items()}
    download, model, corpus = 0, commits.get("model"), settings.corpus
    if model:
        chosen = choose_files_of(settings.model.gguf, settings.model.weights != "random")
        download += sum(measure_missing(model, chosen).values())
    if (dataset := commits.get("dataset")) and not corpus.limit:  # with a limit, a data set is streamed and not kept
        files = describe_split(dataset, corpus.config, corpus.train[0]).files
        download += sum(measure_missing(dataset, lambda names: [name for name in names if name in files]).values())
    start = time.process_time()
    form = load_model_form(settings, model)
    loading, shape = time.process_time() - start, measure_shape(form, settings.model.second_matrix)
    text, sentences = _measure_text(settings, form, tokens, commits)
    written = [Path(job.outputs[0]) for job in jobs.get("corpus", ()) if job.done]
    text |= {path.stem: read_size(path) for path in written}
    found = RunFacts(settings, shape, text, jobs, sentences, loading, download)
    if all(job.done for job in jobs.get("unpack", ())):
        return found
    folder = local_model(model, choose_files_of(settings.model.gguf)) if model else settings.model.checkpoint
    file = Path(folder) / settings.model.gguf
    return found._replace(packed=file.stat().st_size, unpacking=unpacking_seconds(file, shape.parameters))


def as_trained(run: str, runs: Mapping[str, Settings], jobs: Mapping[str, Jobs]) -> Settings:
    """Returns the settings of a run; if another run has yet to train its checkpoint, with the model of that run."""
    settings, checkpoint = runs[run], Path(runs[run].model.checkpoint)
    for other, own in jobs.items():
        made = {Path(path) for job in own.get("train", ()) if not job.done for path in job.outputs}
        if made & {checkpoint, *checkpoint.parents}:
            model = settings.model.model_copy(update={"checkpoint": EMBEDDED})
            return settings.model_copy(update={"model": model, "embedded": runs[other].embedded})
    return settings


def load_model_form(settings: Settings, commit: Commit | None = None) -> PreTrainedModel:
    """Makes the model of a run on torch's meta device: all modules, no weights. Raises UserError if there is none."""
    if settings.model.checkpoint == EMBEDDED:
        with torch.device("meta"):
            return make_model(settings.embedded, settings.embedded.vocabulary, settings.seed)
    return load_form(settings.model, commit)


def _measure_text(
    settings: Settings, model: PreTrainedModel, tokens: int | None, commits: Mapping[str, Commit]
) -> tuple[dict[str, Split], list[str]]:
    """Counts or estimates both splits of a run; returns them by name, and some of the sentences."""
    corpus, made, named = settings.corpus, settings.embedded, settings.model
    if named.checkpoint == EMBEDDED:
        texts = (document.text for document in python_docs.documents(EVERY))
        tokenizer = train_tokenizer(texts, made.vocabulary, made.context)
    else:
        tokenizer = load_tokenizer(named.checkpoint, commits.get("model"), named.trust_remote_code, named.gguf)
    render = chat_renderer(tokenizer, corpus)
    longest = min(filter(None, (context_of(model, tokenizer), corpus.context))) - 1  # beside BOS
    encoding = functools.partial(encode, tokenizer=tokenizer, max_tokens=longest, settings=corpus)
    on_hub = corpus.dataset not in (EMBEDDED, "files")  # is not downloaded: the embedded corpus stands for its text
    whole = Corpus() if on_hub else corpus.model_copy(update={"limit": 0})
    train, sentences = _sample(whole, "train", render, encoding)
    if on_hub:
        found = describe_split(commits.get("dataset") or resolve_dataset(corpus), corpus.config, corpus.train[0])
        if not tokens and not (found.rows and found.text_bytes):
            raise UserError(f"The hub does not tell the size of {corpus.dataset}. Pass --train-tokens.")
        source = "the size that the hub tells" + ", without corpus.where" * bool(corpus.where)
        train = train.times((found.text_bytes or train.text_bytes) / train.text_bytes, source)
        train = train._replace(documents=found.rows or train.documents)
    if tokens:
        train = train.times(tokens / train.tokens, "given tokens")
    if corpus.dataset == "files" and corpus.validation:
        validation, more = _sample(whole, "validation", render, encoding)
    else:  # both splits read the same documents
        share, more = corpus.validation_share, []
        validation = train.times(share / (1 - share), "estimated")._replace(seconds=train.seconds)
    splits = {"train": train, "validation": validation}
    if corpus.limit and not tokens:
        splits = {name: one.times(min(1.0, corpus.limit / one.documents), one.source) for name, one in splits.items()}
    return splits, sentences + more


def _sample(
    corpus: Corpus, split: str, render: Render | None, encoding: Callable[[list[Document]], Encoded]
) -> tuple[Split, list[str]]:
    """Estimates the size of a split from some of its documents. Returns their sentences, too."""
    encoding([Document("", "A first word.")])  # loads what the first call loads
    start, size, embedded, documents = time.process_time(), 0, corpus.dataset == EMBEDDED, list[Document]()
    share, whole = (1 / EVERY, False) if embedded else (1.0, True)
    reader = read_documents(corpus, split, render)
    if embedded:
        reader = select_split(python_docs.documents(EVERY), corpus, split)
    for document in reader:
        documents.append(document)
        size += len(document.text.encode("utf-8", "replace")) + 1
        if size > SAMPLE_BYTES and not embedded:
            share = min(1.0, _share_read(find_files(corpus_sources(corpus, split)[0]), document, size))
            whole = False
            break
    del reader  # it holds the file open
    encoded = encoding(documents)
    if not encoded.ids:
        raise UserError("The first documents of the corpus hold no sentence of two tokens. Check the corpus settings.")
    known = "counted" if whole else f"estimated from {len(documents):,} documents"
    tokens = sum(map(len, encoded.ids))
    found = Split(tokens, len(encoded.ids), len(documents), size, time.process_time() - start, known)
    return found.times(1 / share, known), list(encoded.text)


def _share_read(paths: list[str], last: Document, size: int) -> float:
    """Returns the share of the bytes of files that is read after their document `last` and `size` bytes of text."""
    name, _, number = last.name.rpartition(":")
    path = locate(name)
    sizes = [Path(each).stat().st_size for each in paths]
    opened = {file.path: getattr(file, "position", 0) for file in psutil.Process().open_files()}
    part = float(opened.get(str(Path(path).resolve()), 0) or size)  # how far the file is read, if the system tells
    if path.lower().endswith(".parquet"):
        part = sizes[paths.index(path)] * (int(number) + 1) / parquet.read_metadata(path).num_rows
    return (sum(sizes[: paths.index(path)]) + part) / sum(sizes)


def read_size(path: Path) -> Split:
    """Reads the size of a split that has been written."""
    with hdf5.open(path, "corpus") as file:
        names = ("tokens", "sentence_offset", "document_name_offset", "text")
        tokens, sentences, documents, text_bytes = (float(len(file[name])) for name in names)
    return Split(tokens, sentences - 1, documents - 1, text_bytes, 0.0, "read from its file")
