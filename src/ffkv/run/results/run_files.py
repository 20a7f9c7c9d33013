"""The files of a run, each checked for the model, tokenizer and corpus that it belongs to."""

import copy
import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import pandas as pd

from ffkv.activations.prefix_file import SampledPrefixes
from ffkv.activations.trigger_file import Triggers
from ffkv.base.doors import brought_by
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5, tables
from ffkv.base.files.datasets import Checked
from ffkv.base.files.stored import Foreign, not_of_ffkv, unreadable
from ffkv.base.lookup import find, refuse_strange_entries
from ffkv.base.settings.messages import suggestion
from ffkv.base.steps import Part
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import EMBEDDED, Settings
from ffkv.branches.translation.maps import Maps
from ffkv.branches.values.projections import Projections
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.model.anatomy import Anatomy
from ffkv.model.checkpoint.vocabulary import FILE, Vocabulary, read_vocabulary
from ffkv.model.values_file import ValuesFile
from ffkv.run.results.expected import TABLES, table_of, unmeasured
from ffkv.run.results.readings import READINGS

SPLITS = ("train", "validation")
# What describes the datasets of a file, by its kind.
RECORDS: dict[str, Any] = {
    "triggers": Triggers,
    "sampled prefixes": SampledPrefixes,
    "projections": Projections,
    "translation maps": Maps,
    "values": ValuesFile,
    "corpus": Corpus,
    "vocabulary": Vocabulary,
}
# The split that a file's numbers are about, by the first folders of its path, or by its name.
SPLIT_OF = {
    "triggers": "train",
    "sampled_prefixes": "validation",
    "annotation": "train",
    **{branch.name: branch.split for branch in BRANCHES.values() if branch.split},
    **{str(Path(table.path).parent): table.split for table in TABLES.values() if table.split},
}


def split_of(name: Path | str) -> str | None:
    """The split that the numbers of a file are about, by its path below the run's folder; None if about none."""
    first, *more = Path(name).parts
    known = SPLIT_OF.get(f"{first}/{more[0]}") if more else None
    return known or SPLIT_OF.get(first.removesuffix(".h5"))


def leaves(path: Path | str) -> bool:
    """Tells whether a path that a file of a run names may lead out of the folder that it starts in."""
    return Path(path).is_absolute() or ".." in Path(path).parts


def read_table(path: Path) -> pd.DataFrame:
    """Reads a CSV file. Text of strangers stays text, also where it reads "nan" or "1".

    A column without any value becomes a column of NaN: a CSV file cannot say of which type it is.
    """
    name = f"{path.parent.name}/{path.name}"
    known = table_of(name)
    texts = known.foreign if known else []
    frame = checked(path, name, tables.read(path, texts=texts))
    empty = frame.columns[frame.isna().all()]
    return frame.assign(**{column: float("nan") for column in empty if column not in texts})


def checked(path: Path, name: str, frame: pd.DataFrame) -> pd.DataFrame:
    """Returns a table that was read, with empty columns where an earlier ffkv wrote none.

    `name`: its path below the folder of the run. Raises `Foreign` if it is not as described.
    """
    if not (known := table_of(name)):
        return frame
    if problem := known.problem(frame):
        raise not_of_ffkv(path, problem)
    return known.completed(frame)


def read_jobs(folder: Path, settings: Settings) -> pd.DataFrame:
    """Tells how much time and memory each job of a run took, one row per job.

    There are no rows if Snakemake wrote no benchmark files. Files of earlier runs with more shards or layer groups
    are left out, and so is the report's own file.

    Columns:
        rule: the rule.
        part: its split, shard or group of layers, behind the behaviour and "/" if it is of one; "" of a rule with one job.
        seconds: time of the job.
        memory: its highest peak, MiB.
        ended: when its file was written last, in seconds since 1970.

    Raises:
        UserError: a file cannot be read. One that is half-written is left out.
    """
    place, model = folder / "benchmarks", settings.model
    unused = {"report.tsv", *["train.tsv"] * (model.checkpoint != EMBEDDED), *["unpack.tsv"] * (not model.is_unpacked)}
    found = []
    for path in find(place, "**/*.tsv"):
        name = path.relative_to(place)
        parts = settings.shards if path.parent.name in ("triggers", "sampled_prefixes") else settings.layer_groups
        if str(name) in unused or (path.stem.isdigit() and int(path.stem) >= parts):
            continue
        rule, *part = name.with_suffix("").parts
        try:
            measured = pd.read_csv(path, sep="\t", encoding_errors="replace").apply(pd.to_numeric, errors="coerce")
            took, peak = measured["s"].sum(), measured["max_rss"].max()
            found.append((rule, "/".join(part), took, peak, path.stat().st_mtime))
        except OSError as error:
            raise unreadable(path, error) from error
        except (ValueError, KeyError):  # a power cut left the file half-written
            continue
    return pd.DataFrame(found, columns=["rule", "part", "seconds", "memory", "ended"])


def unknown(word: str, name: object, valid: list[str], none: str = "There is none at all.") -> UserError:
    """Returns the error for a name that does not exist, with the one that is most like it, and all names that do. `none`: without any."""
    choices = f"Choose one of: {', '.join(valid)}." if valid else none
    return UserError(f"There is no {word} {str(name)!r}.{suggestion(name, valid)} {choices}")


class RunFiles:
    """The files of a run. Each one is checked for the model, tokenizer and corpus that it belongs to when it is read.

    Attributes:
        folder, settings, anatomy: those of the run.
        reading: how values and states are read: by the "head", or through a map first, one of `readings`.
    Examples:
        >>> files = ffkv.open("results/tiny").files
        >>> files.details("values/by_memory").columns.tolist()[:2]
        ['layer', 'memory']
        >>> with files.open_triggers() as file:
        ...     file["coefficient"].shape == (256, files.settings.triggers.per_key)
        True
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        anatomy: Anatomy,
        keep_open: bool = False,
        annotations: Path | None = None,
    ):
        """Use `ffkv.open`, which describes the arguments."""
        self.folder, self.settings, self.anatomy = folder, settings, anatomy
        self.reading = "head"
        self.kept: dict[Any, Any] = {}  # what indexes have read
        self.lock = threading.RLock()  # held while an index reads
        self._corpora_read: dict[str, Corpus] = {}
        self._annotations = annotations
        self._keep_open, self._opening, self._stack = keep_open, threading.Lock(), ExitStack()
        self._open_files: dict[Path, h5py.File] = {}

    @property
    def readings(self) -> list[str]:
        """The readings of `READINGS` that the run has: "head", and maps that precede it."""
        own = READINGS if BRANCHES["translation"].is_in(self.settings) else ["head"]
        return [name for name in own if READINGS[name].applies(self.settings)]

    def read_as(self, reading: str) -> "RunFiles":
        """Returns the same files in a reading of `READINGS`. What is open or in memory is shared.

        Raises:
            UserError: there is no such reading, or the run does not have it.
        """
        if reading not in READINGS:
            raise unknown("reading", reading, [*READINGS])
        if reading not in self.readings:
            both = "both and translation.fit to jacobian" if reading == "jacobian" else "both"
            wanted = "all" if len(self.readings) > 1 else both
            have = f"{self.folder} has values and states in these readings only: {', '.join(self.readings)}."
            raise UserError(
                f"{have} Set values.readout to {wanted}, see docs/translation.md, and run the workflow again."
            )
        files = copy.copy(self)
        files.reading = reading
        return files

    @functools.cached_property
    def annotations(self) -> Path:
        """Where what people say of the run lies: by default `annotations/<run>`, beside `results/<run>`.

        Raises UserError if the settings of the run, or a link, lead elsewhere: a file of a run does not choose where ffkv writes.
        """
        if self._annotations:
            return self._annotations
        results, named = self.folder.resolve(), Path(self.settings.annotation.folder)
        place = results.parent.parent / named / results.name
        if leaves(named) or place.resolve() != place:
            raise UserError(
                f"{self.folder / 'settings.json'} names {named} as the folder of annotations (annotation.folder). That leads to"
                f" {place.resolve()}, and a file of a run cannot choose where ffkv reads and writes. If you want that folder, name"
                f" it yourself: --annotations {place.resolve()}, in Python ffkv.open(..., annotations=...)."
            )
        refuse_strange_entries(place)
        return place

    @functools.cached_property
    def corpora(self) -> dict[str, dict[str, Any]]:
        """Facts about the corpus of each split ("train", "validation").

        A dictionary per split: `counts` (of the documents and sentences that were read or left out), `settings` (the section
        `corpus` of the settings), `tokens` and `sentences` (their numbers), `corpus_hash`, `beginning` (what the model reads in
        front of every sentence, and why), `source` (the data set of the hub, its revision and commit, else "").

        Raises:
            UserError: see `hdf5.open`; or the splits are of two commits of a data set, so that texts may be in both.
        """
        facts, kept = {}, ("tokens", "sentences", "corpus_hash", "beginning")
        for split in SPLITS:
            with hdf5.open(self._corpus_file(split), "corpus", self.anatomy.identity) as file:
                texts = {name: hdf5.parsed(file, name) for name in ("counts", "settings")}
                commit = file.attrs.get("dataset_commit", "")
                source = f"revision {file.attrs['dataset_revision']}, commit {commit}" if commit else ""
                facts[split] = texts | {name: file.attrs[name] for name in kept} | {"source": source}
        if len({about["source"] for about in facts.values()}) > 1:
            raise Foreign(
                f"The splits in {self.folder / 'corpus'} are of different versions of the data set"
                f" ({'; '.join(about['source'] for about in facts.values())}), so that a text may be in both."
                " Make both again."
            )
        return facts

    def _corpus_file(self, split: str) -> Path:
        return self.folder / "corpus" / f"{split}.h5"

    def corpus(self, split: str = "train") -> Corpus:
        """Returns the sentences of a split. Trigger examples are from "train"."""
        if split not in SPLITS:
            raise unknown("split", split, list(SPLITS))
        if split not in self._corpora_read:
            sizes = {"token_id": self.anatomy.vocabulary}
            self._corpora_read[split] = read_corpus(self._corpus_file(split), self.anatomy.identity, sizes)
        return self._corpora_read[split]

    @functools.cached_property
    def vocabulary(self) -> Sequence[str]:
        """The text of every token id."""
        with hdf5.open(self.folder / "model" / FILE, "vocabulary", self.anatomy.identity):
            return read_vocabulary(self.folder / "model")

    def identity(self, split: str) -> dict[str, Any]:
        """Returns the hashes of the run's model, tokenizer and corpus, which files of this split must share."""
        return {**self.anatomy.identity, "corpus_hash": self.corpora[split]["corpus_hash"]}

    @contextmanager
    def _open(self, name: str, kind: str, split: str = "", **own: int | None) -> Iterator[Checked]:
        """Opens a file. `own`: lengths of dimensions that differ from those of the model; None: the file alone tells."""
        path, its = self.folder / name, self.anatomy
        belongs_to = self.identity(split) if split else its.identity
        *layers, memories = its.layer_offset
        sizes = {"layer": len(layers), "memory": memories, "width": its.width, "token_id": its.vocabulary}
        sizes |= {"sentence": int(self.corpora[split]["sentences"])} if split else {}
        known = {name: size for name, size in {**sizes, **own}.items() if size is not None}
        if not self._keep_open:
            with hdf5.open(path, kind, belongs_to) as file:
                yield Checked(file, RECORDS[kind], known)
            return
        with self._opening:
            if path not in self._open_files:
                self._open_files[path] = self._stack.enter_context(hdf5.open(path, kind, belongs_to))
        with hdf5.reading(path):
            yield Checked(self._open_files[path], RECORDS[kind], known)

    def open_triggers(self) -> AbstractContextManager[Checked]:
        """`triggers.h5`, open for reading, after its model, tokenizer and corpus were checked."""
        return self._open("triggers.h5", "triggers", "train")

    def open_projections(self, layer_group: int) -> AbstractContextManager[Checked]:
        """Returns the projections of the values of one layer group, open for reading, after their model was checked."""
        path = f"{READINGS[self.reading].files}projections/{layer_group}.h5"
        return self._open(path, "projections", memory=None)  # readers tell of other groups of layers

    def open_maps(self, layer_group: int) -> AbstractContextManager[Checked]:
        """Returns the maps of one layer group, open for reading, after their model was checked."""
        layers = len(self.layer_groups[layer_group])
        return self._open(f"{READINGS[self.reading].files}maps/{layer_group}.h5", "translation maps", layer=layers)

    def open_values(self) -> AbstractContextManager[Checked]:
        """`values.h5`, open for reading, after its model was checked."""
        return self._open("values.h5", "values")

    def open_sampled_prefixes(self) -> AbstractContextManager[Checked]:
        """`sampled_prefixes.h5`, open for reading, after its model, tokenizer and corpus were checked."""
        return self._open("sampled_prefixes.h5", "sampled prefixes", "validation")

    @functools.cached_property
    def unmeasured(self) -> dict[str, list[str]]:
        """What an earlier ffkv, which made the run, did not measure, see `expected.unmeasured`."""
        return unmeasured(self.folder, self.settings)

    @functools.cached_property
    def table_files(self) -> dict[str, Path]:
        """The CSV file of each table that `Run.table` reads, by the table's name: the file's without its ending.

        A table that only an earlier run with other settings needed is left out. Of two with one name, ffkv's own counts.
        """
        unused = {table.path for table in TABLES.values() if not table.applies(self.settings)}
        unused |= {path for branch in BRANCHES.values() for path in branch.files(self.settings, absent=True)}

        def is_own(path: Path) -> bool:
            return f"{path.parent.name}/{path.name}" in TABLES and not brought_by("branches", path.parent.name)

        paths = sorted(find(self.folder, "*/*.csv"), key=is_own)
        return {path.stem: path for path in paths if f"{path.parent.name}/{path.name}" not in unused}

    def benchmarks(self) -> pd.DataFrame:
        """Tells how much time and memory each rule of the workflow took, one row per rule.

        Columns:
            rule: the rule.
            jobs: number of jobs.
            seconds: time of all jobs together.
            longest: time of the longest job, seconds.
            memory: highest peak of a job, MiB.

        Raises:
            UserError: see `ffkv.run.results.run_files.read_jobs`.
        """
        jobs = read_jobs(self.folder, self.settings).groupby("rule", sort=False, as_index=False)
        seconds = {"jobs": ("seconds", "size"), "seconds": ("seconds", "sum"), "longest": ("seconds", "max")}
        return jobs.agg(**seconds, memory=("memory", "max"))

    @functools.cached_property
    def layer_groups(self) -> list[range]:
        """The layers of each layer group. Steps write one file per group."""
        count = self.settings.layer_groups
        return [Part(index, count).of(len(self.anatomy.layers)) for index in range(count)]

    def details(self, name: str) -> pd.DataFrame:
        """Returns a large table that a step wrote per layer group, all groups together, in the order of the layers.

        Args:
            name: the folder of its files, such as "values/by_memory" or "keys/patterns".
        """
        paths = [self.folder / self._part(name, group) for group in range(len(self.layer_groups))]
        return checked(self.folder / name, f"{name}/0.parquet", tables.read_all(paths, self._identity_of(name)))

    def _part(self, name: str, group: int) -> str:
        if f"{name}/{{group}}.parquet" not in TABLES:
            known = [str(Path(path).parent) for path in TABLES if path.endswith("/{group}.parquet")]
            raise unknown("table", name, known)
        return f"{name}/{group}.parquet"

    def _identity_of(self, name: str) -> dict[str, Any]:
        split = split_of(name)
        return self.identity(split) if split else dict(self.anatomy.identity)

    def layer_group(self, layer: int) -> int:
        """Returns the number of the layer group that a layer belongs to."""
        return next(number for number, layers in enumerate(self.layer_groups) if layer in layers)

    def memory_rows(self, name: str, layer: int, memory: int) -> pd.DataFrame:
        """Returns the rows of one memory in a large table, `name` as in `details`. Only these are read."""
        only = [("layer", "==", layer), ("memory", "==", memory)]
        return self.file_rows(self._part(name, self.layer_group(layer)), only)

    def file_rows(self, name: str, only: Any = None) -> pd.DataFrame:
        """Returns the rows of one file of a large table. `name`: its path below the folder; `only`: see `tables.read`."""
        return checked(self.folder / name, name, tables.read_all([self.folder / name], self._identity_of(name), only))
