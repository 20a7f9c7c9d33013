"""What is known of a run before its trial: settings, jobs, and the sizes of its model and text. No weight is read."""

import functools
import glob
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import torch
from pyarrow import parquet
from transformers import PreTrainedModel

from ffkv.activations.trigger_file import HISTOGRAM_EDGES, Triggers
from ffkv.base.doors import BRINGS, entries, in_package, locate
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.files.datasets import stored_bytes
from ffkv.base.hub.commit import Commit, read_commit, resolve_dataset, resolve_model
from ffkv.base.hub.fetch import choose_files_of, local_model, measure_missing
from ffkv.base.settings import BROUGHT
from ffkv.branches.settings import EMBEDDED, Corpus, Settings, corpus_sources
from ffkv.corpus.chat import Render, chat_renderer
from ffkv.corpus.document import Document
from ffkv.corpus.encode import Encoded, encode
from ffkv.corpus.hub_rows import describe_split
from ffkv.corpus.sources import brought_documents, find_files, read_documents, select_split
from ffkv.model.checkpoint.load import load_form
from ffkv.model.checkpoint.readers import file_reader
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.dictionaries import dictionaries
from ffkv.model.discover.probe_texts import context_of
from ffkv.model.shape import Shape, measure_shape
from ffkv.model.small import make_model, train_tokenizer
from ffkv.run.results.text import percent
from ffkv.workflow.jobs import Job

READ_BYTES = 2**24  # of text that are read at most: all of a small corpus
SAMPLE_BYTES = 2**18  # of text that are encoded, if these are `FEWEST` documents or more
MOST_BYTES = 2**22  # of text that are encoded in any case, at most
FEWEST = 30  # documents that are encoded, if there are so many
SPREAD = 16  # files that are read of a large corpus, at most
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
    error: float = 0.0  # half of the 95 % interval of `tokens`, as a share of them

    def times(self, factor: float, source: str) -> "Split":
        """Returns the size of a split with `factor` times as much text. `source` says how it is known."""
        tokens, sentences, documents, text_bytes, seconds = (factor * size for size in self[:5])
        return Split(tokens, sentences, documents, text_bytes, seconds, source, self.error)

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
    shape = dictionaries().resize(shape, settings.dictionary.located()) if settings.dictionary.path else shape
    text, sentences = _measure_text(settings, form, tokens, commits)
    written = [Path(job.outputs[0]) for job in jobs.get("corpus", ()) if job.done]
    text |= {path.stem: read_size(path) for path in written}
    found = RunFacts(settings, shape, text, jobs, sentences, loading, download)
    if all(job.done for job in jobs.get("unpack", ())):
        return found
    folder = local_model(model, choose_files_of(settings.model.gguf)) if model else settings.model.checkpoint
    file = Path(folder) / settings.model.gguf
    return found._replace(packed=file.stat().st_size, unpacking=file_reader().unpacking_seconds(file, shape.parameters))


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
        texts = (document.text for document in brought_documents(EMBEDDED, EVERY))
        tokenizer = train_tokenizer(texts, made.vocabulary, made.context)
    else:
        tokenizer = load_tokenizer(named.checkpoint, commits.get("model"), named.trust_remote_code, named.gguf)
    render = chat_renderer(tokenizer, corpus)
    longest = min(filter(None, (context_of(model, tokenizer), corpus.context))) - 1  # beside BOS
    on_hub = corpus.on_hub  # is not downloaded: the embedded corpus stands for its text
    if on_hub and EMBEDDED not in entries("corpora"):
        raise UserError(in_package(f"The text by which the size of {corpus.dataset} is estimated", BRINGS[EMBEDDED][1]))
    known = Corpus(**corpus.model_dump(include={"sentences_per_document"})) if on_hub else corpus
    encoding = functools.partial(encode, tokenizer=tokenizer, max_tokens=longest, settings=corpus)
    train, sentences, share_read = _sample(known, "train", render, encoding)
    if on_hub:
        found = describe_split(commits.get("dataset") or resolve_dataset(corpus), corpus.config, corpus.train[0])
        if not tokens and not (found.rows and found.text_bytes):
            raise UserError(f"Nothing tells how much text {corpus.dataset} has. Pass --train-tokens.")
        source = "the size that the hub tells" + ", without corpus.where" * bool(corpus.where)
        factor = (found.text_bytes or train.text_bytes) / train.text_bytes
        if corpus.sentences_per_document:  # however long the documents are
            factor = (found.rows or train.documents) / train.documents
        train = train.times(factor, source)._replace(documents=found.rows or train.documents, error=0.0)
    if tokens:
        train = train.times(tokens / train.tokens, "given tokens")._replace(error=0.0)
    if corpus.dataset == "files" and (corpus.validation or (share_read == 1 and not tokens)):
        validation, more, _ = _sample(known, "validation", render, encoding)
    else:  # both splits read the same documents
        share, more = corpus.validation_share, []
        validation = train.times(share / (1 - share), "estimated")._replace(seconds=train.seconds)
    splits = {"train": train, "validation": validation}
    if corpus.limit and not tokens:
        splits = {name: one.times(min(1.0, corpus.limit / one.documents), one.source) for name, one in splits.items()}
    return splits, sentences + more


def _sample(
    corpus: Corpus, split: str, render: Render | None, encoding: Callable[[list[Document]], Encoded]
) -> tuple[Split, list[str], float]:
    """Estimates the size of a split from some of its documents. Returns their sentences, and the share of the text that is read.

    A setting that takes a number of sentences of each document makes tokens follow documents, and not bytes of text.
    """
    encoding([Document("", "A first word.")])  # loads what the first call loads
    start = time.process_time()
    documents, share = _read(corpus, split, render)
    read = time.process_time()
    sizes = np.array([len(each.text.encode("utf-8", "replace")) + 1 for each in documents])
    usual, most = (int(len(documents) * size / max(sizes.sum(), 1)) for size in (SAMPLE_BYTES, MOST_BYTES))
    count = min(len(documents), max(usual, min(most, FEWEST), 2))
    chosen = np.linspace(0, len(documents) - 1, count).round().astype(int)
    encoded = encoding([documents[number] for number in chosen])
    if not encoded.ids:
        raise UserError(f"The {split} split has no sentence of two tokens. Check the corpus settings.")
    weights = sizes if corpus.dataset == "files" and not corpus.sentences_per_document else np.ones(len(documents))
    factor = float(weights.sum() / weights[chosen].sum()) / share
    tokens = np.zeros(count)
    named = [place for place, number in enumerate(chosen) if documents[number].text.strip()]
    np.add.at(tokens, np.array(named)[encoded.document], [len(ids) for ids in encoded.ids])
    # The error of a ratio estimate from documents drawn without replacement (Cochran, Sampling Techniques, 6.3).
    rest = tokens - tokens.sum() / weights[chosen].sum() * weights[chosen]
    left = max(0.0, 1 - count * share / len(documents))
    error = 2 * float(np.sqrt(count * rest.var(ddof=1) * left) / tokens.sum()) if count > 1 else 0.0
    of = f"{len(documents):,} documents" if share == 1 else f"documents in {percent(share)} of the text"
    source = f"estimated from {count:,} of the {of}" if left else "counted"
    seconds = (read - start) + (time.process_time() - read) * float(sizes.sum() / sizes[chosen].sum())
    counts = factor * float(tokens.sum()), factor * len(encoded.ids), len(documents) / share
    found = Split(*counts, float(sizes.sum()) / share, seconds / share, source, error)
    return found, list(encoded.text), share


def _read(corpus: Corpus, split: str, render: Render | None) -> tuple[list[Document], float]:
    """Returns documents of a split and their share of its text: all of a small one, beginnings of a large one's files."""
    if corpus.dataset in BROUGHT:
        every = corpus.model_copy(update={"limit": 0})
        return [*select_split(brought_documents(corpus.dataset, EVERY), every, split)], 1 / EVERY
    paths = find_files(corpus_sources(corpus, split)[0])
    total, groups = sum(Path(path).stat().st_size for path in paths), [paths]
    if total > READ_BYTES and not corpus.limit:
        places = np.linspace(0, len(paths) - 1, min(SPREAD, len(paths))).round().astype(int)
        groups = [[paths[place]] for place in places]
    documents, part = list[Document](), 0.0
    for group in groups:
        size, names = 0, [*map(glob.escape, group)]
        own = {"train": names, "validation": names if corpus.validation else []}
        reader = read_documents(corpus if group is paths else corpus.model_copy(update=own), split, render)
        for document in reader:
            documents.append(document)
            size += len(document.text.encode("utf-8", "replace")) + 1
            if size > READ_BYTES / len(groups):
                part += _bytes_read(group, document, size)
                break
        else:
            part += sum(Path(path).stat().st_size for path in group)
        del reader  # it holds the file open
    return documents, min(1.0, part / max(total, 1))


def _bytes_read(paths: list[str], last: Document, size: int) -> float:
    """Returns how many bytes of files are read after their document `last` and `size` bytes of text."""
    name, _, number = last.name.rpartition(":")
    path = locate(name)
    sizes = [Path(each).stat().st_size for each in paths]
    opened = {file.path: getattr(file, "position", 0) for file in psutil.Process().open_files()}
    part = float(opened.get(str(Path(path).resolve()), 0) or size)  # how far the file is read, if the system tells
    if path.lower().endswith(".parquet"):
        part = sizes[paths.index(path)] * (int(number) + 1) / parquet.read_metadata(path).num_rows
    return sum(sizes[: paths.index(path)]) + min(part, sizes[paths.index(path)])


def read_size(path: Path) -> Split:
    """Reads the size of a split that has been written."""
    with hdf5.open(path, "corpus") as file:
        names = ("tokens", "sentence_offset", "document_name_offset", "text")
        tokens, sentences, documents, text_bytes = (float(len(file[name])) for name in names)
    return Split(tokens, sentences - 1, documents - 1, text_bytes, 0.0, "read from its file")
