"""The files of a run, each checked for the model, tokenizer and corpus that it belongs to."""

import functools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import h5py
import pandas as pd

from ffkv.base.files import hdf5, tables
from ffkv.base.files.checksums import verify_sum
from ffkv.base.files.fault import unreadable
from ffkv.base.files.provenance import Foreign, check_identities
from ffkv.base.parts import Part
from ffkv.base.settings import Settings
from ffkv.branches.registry import BRANCHES
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.model.anatomy import Anatomy
from ffkv.model.checkpoint.vocabulary import FILE, read_vocabulary
from ffkv.run.results.expected import TABLES
from ffkv.run.results.run_tables import unknown

SPLITS = ("train", "validation")
# The split that a file's numbers are about, by the first folders of its path, or by its name.
SPLIT_OF = {
    "triggers": "train",
    "sampled_prefixes": "validation",
    "annotation": "train",
    **{branch.name: branch.split for branch in BRANCHES.values()},
    **{str(Path(table.path).parent): table.split for table in TABLES.values() if table.split},
}


def split_of(name: Path | str) -> str | None:
    """The split that the numbers of a file are about, by its path below the run's folder; None of one without a split."""
    first, *more = Path(name).parts
    known = SPLIT_OF.get(f"{first}/{more[0]}") if more else None
    return known or SPLIT_OF.get(first.removesuffix(".h5"))


class RunFiles:
    """The stored files of a run. Each one is checked when it is read; see `Run`, which describes the attributes."""

    def __init__(self, folder: Path, settings: Settings, anatomy: Anatomy):
        """Use `ffkv.open`."""
        self.folder, self.settings, self.anatomy = folder, settings, anatomy
        self._corpora_read: dict[str, Corpus] = {}
        self._kept_files: dict[Path, h5py.File] | None = None
        self._opening, self._stack = threading.Lock(), ExitStack()

    @property
    def name(self) -> str:
        """The run's name: the name of its folder."""
        return self.folder.resolve().name

    @functools.cached_property
    def corpora(self) -> dict[str, dict[str, Any]]:
        """Facts about the corpus of each split ("train", "validation").

        A dictionary per split: `counts` (of the documents and sentences that were read or left out), `settings` (the
        section `corpus` of the settings), `tokens` and `sentences` (their numbers), `corpus_hash`, `beginning` (what the
        model reads in front of every sentence, and why), `source` (the data set of the hub, its revision and commit, else
        "").

        Raises:
            UserError: see `hdf5.open`; or the splits are of two commits of a data set, so that texts may be in both.
        """
        facts, kept = {}, ("tokens", "sentences", "corpus_hash", "beginning")
        for split in SPLITS:
            with hdf5.open(self._corpus_file(split), "corpus", self.anatomy.identity) as file:
                texts = {name: json.loads(file.attrs[name]) for name in ("counts", "settings")}
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
        if split not in SPLITS:
            raise unknown("split", split, list(SPLITS))
        return self.folder / "corpus" / f"{split}.h5"

    def corpus(self, split: str = "train") -> Corpus:
        """The sentences of a split. Trigger examples are from "train"."""
        if split not in self._corpora_read:
            self._corpora_read[split] = read_corpus(self._corpus_file(split), self.anatomy.identity)
        return self._corpora_read[split]

    @functools.cached_property
    def vocabulary(self) -> Sequence[str]:
        """The text of every token id."""
        with hdf5.open(self.folder / "model" / FILE, "vocabulary", self.anatomy.identity):
            return read_vocabulary(self.folder / "model")

    def identity(self, split: str) -> dict[str, Any]:
        """The hashes of the run's model, tokenizer and corpus, which files of this split must share."""
        return {**self.anatomy.identity, "corpus_hash": self.corpora[split]["corpus_hash"]}

    def keep_open(self) -> None:
        """From now on, keeps the files of memories open and their statistics in memory, as the explorer needs it.

        A file is then checked once, when it is opened.
        """
        self._kept_files = {}

    @contextmanager
    def _open(self, name: str, kind: str, belongs_to: Mapping[str, Any]) -> Iterator[h5py.File]:
        """A file of the run as `hdf5.open` gives it; one that is kept open if `keep_open` was called."""
        path = self.folder / name
        if self._kept_files is None:
            with hdf5.open(path, kind, belongs_to) as file:
                yield file
            return
        with self._opening:
            if path not in self._kept_files:
                self._kept_files[path] = self._stack.enter_context(hdf5.open(path, kind, belongs_to))
        with hdf5.reading(path):
            yield self._kept_files[path]

    def open_triggers(self) -> AbstractContextManager[h5py.File]:
        """`triggers.h5`, open for reading, after its model, tokenizer and corpus were checked."""
        return self._open("triggers.h5", "triggers", self.identity("train"))

    def open_projections(self, layer_group: int) -> AbstractContextManager[h5py.File]:
        """The projections of the values of one layer group, open for reading, after their model was checked."""
        return self._open(f"values/projections/{layer_group}.h5", "projections", self.anatomy.identity)

    def open_values(self) -> AbstractContextManager[h5py.File]:
        """`values.h5`, open for reading, after its model was checked."""
        return self._open("values.h5", "values", self.anatomy.identity)

    def open_sampled_prefixes(self) -> AbstractContextManager[h5py.File]:
        """`sampled_prefixes.h5`, open for reading, after its model, tokenizer and corpus were checked."""
        return self._open("sampled_prefixes.h5", "sampled prefixes", self.identity("validation"))

    @functools.cached_property
    def layer_groups(self) -> list[range]:
        """The layers of each layer group. Steps write one file per group."""
        count = self.settings.layer_groups
        return [Part(index, count).of(len(self.anatomy.layers)) for index in range(count)]

    def details(self, name: str) -> pd.DataFrame:
        """A large table that a step wrote per layer group, all groups together, in the order of the layers.

        Args:
            name: the folder of its files, such as "values/by_memory" or "keys/patterns".
        """
        paths = [self.folder / name / f"{group}.parquet" for group in range(len(self.layer_groups))]
        return tables.read_all(paths, self._identity_of(name))

    def _identity_of(self, name: str) -> dict[str, Any]:
        """What a large table must belong to, `name` as in `details`."""
        split = split_of(name)
        if split is None:
            raise unknown("table", name, [*SPLIT_OF])
        return self.identity(split)

    def layer_group(self, layer: int) -> int:
        """The number of the layer group that a layer belongs to."""
        return next(number for number, layers in enumerate(self.layer_groups) if layer in layers)

    def memory_rows(self, name: str, layer: int, memory: int) -> pd.DataFrame:
        """The rows of one memory in a large table, `name` as in `details`. Only these are read."""
        path = self.folder / name / f"{self.layer_group(layer)}.parquet"
        verify_sum(path)
        try:
            rows = pd.read_parquet(path, filters=[("layer", "==", layer), ("memory", "==", memory)])
        except (OSError, ValueError) as error:
            raise unreadable(path, error) from error
        check_identities(path, rows.attrs, self._identity_of(name))
        return rows
