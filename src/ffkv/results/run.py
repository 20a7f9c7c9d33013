"""A finished run as a Python object. Everything that is asked of a run is read here, and nothing is written."""

import contextlib
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import pandas as pd
from pydantic import ValidationError

from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.errors import UserError
from ffkv.files import hdf5, tables
from ffkv.files.checksums import verify_sum
from ffkv.files.lazy import Texts
from ffkv.model.anatomy import Anatomy, read_anatomy
from ffkv.parts import Part
from ffkv.results.run_tables import read_benchmarks, read_table, table_files, unknown
from ffkv.settings import Settings

if TYPE_CHECKING:  # the model needs torch, which takes seconds to import
    from ffkv.model.checkpoint.load import LoadedModel

SPLITS = ("train", "validation")


def open(path: Path | str) -> "Run":
    """Opens a finished run. Only `settings.json` and `model/anatomy.json` are read; all else is read when it is asked for.

    Args:
        path: The run's folder, `results/<run>`.
    Returns:
        The run.
    Raises:
        UserError: The folder is missing, holds no run, or one of the two files is damaged.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. Name the folder of a run, such as results/demo.")
    return Run(folder, _read_settings(folder / "settings.json"), read_anatomy(folder / "model"))


def _read_settings(path: Path) -> Settings:
    verify_sum(path)
    try:
        return Settings.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist. Name the folder of a finished run, such as results/demo.") from error
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} does not hold the complete settings of a run: {error}") from error


class Run:
    """A finished run: its settings, model, corpora, tables and memories.

    Every file is checked when it is read: a file that belongs to another model, tokenizer or corpus is refused. Files
    are read when they are asked for, and what was read is kept as long as this object lives.

    Attributes:
        folder: `results/<run>`.
        settings: The run's complete settings.
        anatomy: How the model is built: its layers, sizes, hashes, and the errors of the proof.
    """

    def __init__(self, folder: Path, settings: Settings, anatomy: Anatomy):
        """Use `ffkv.open`."""
        self.folder, self.settings, self.anatomy = folder, settings, anatomy
        self._corpora_read: dict[str, Corpus] = {}

    @property
    def name(self) -> str:
        """The run's name: the name of its folder."""
        return self.folder.resolve().name

    def __repr__(self) -> str:
        """One line for a person."""
        layers, memories = len(self.anatomy.layers), self.anatomy.layer_offset[-1]
        return f"<Run {self.name}: {self.anatomy.checkpoint}, {layers} layers, {memories:,} memories>"

    # Tables

    @functools.cached_property
    def layers(self) -> pd.DataFrame:
        """The layers, one row per layer.

        layer (from 0), memories (number of memories), kind (how the layer is built), gated, signed (whether coefficients
        can be negative), dead (memories without a trigger example), agreement (share of the memories whose value's top
        token follows the strongest trigger example, as in figure 4; NaN where all memories are dead).

        Raises:
            UserError: A table that is needed is missing.
        """
        layers = pd.DataFrame(
            [(each.index, each.memories, each.kind, each.gated, each.signed) for each in self.anatomy.layers],
            columns=["layer", "memories", "kind", "gated", "signed"],
        )
        agreement = self.table("figure_4_agreement").query("source == 'trigger'").set_index("layer")["rate"]
        dead = self.table("activity").set_index("layer")["dead"]
        return layers.assign(dead=layers["layer"].map(dead), agreement=layers["layer"].map(agreement))

    @functools.cached_property
    def _table_files(self) -> dict[str, Path]:
        return table_files(self.folder, self.settings)

    @property
    def tables(self) -> list[str]:
        """Names of the tables that `table` reads, such as "figure_4_agreement"."""
        return sorted(self._table_files)

    def table_file(self, name: str) -> Path:
        """The CSV file of a table.

        Raises:
            UserError: There is no table of this name; lists the names that exist.
        """
        if name not in self._table_files:
            raise unknown(f"table in {self.folder} called", name, self.tables)
        return self._table_files[name]

    def table(self, name: str) -> pd.DataFrame:
        """A table that a figure or a section of the report shows.

        Args:
            name: The file's name without its ending, such as "figure_4_agreement". See `tables`.
        Returns:
            The table. Texts from the corpus stay texts, also where a text reads "nan" or "1". You may change it: each
            call reads the file again.
        Raises:
            UserError: There is no table of this name (the message lists the names that exist), or it is damaged.
        """
        return read_table(self.table_file(name))

    def benchmarks(self) -> pd.DataFrame:
        """How much time and memory each rule of the workflow took.

        Returns:
            One row per rule: rule, jobs (number of jobs), seconds (of all jobs together), longest (seconds of the
            longest job), memory (highest peak, MiB). No rows where Snakemake wrote no benchmark files.
        """
        return read_benchmarks(self.folder / "benchmarks", self.settings)

    # Files that belong together

    @functools.cached_property
    def corpora(self) -> dict[str, dict[str, Any]]:
        """Facts about the corpus of each split ("train", "validation").

        counts (of documents and sentences that were read or left out), settings (of the section `corpus`), tokens,
        sentences, corpus_hash.

        Raises:
            UserError: A corpus is missing, damaged, or of another tokenizer.
        """
        return {split: self._corpus_facts(split) for split in SPLITS}

    def _corpus_facts(self, split: str) -> dict[str, Any]:
        with hdf5.open(self._corpus_file(split), "corpus", self.anatomy.identity) as file:
            facts = {name: file.attrs[name] for name in ("counts", "settings", "tokens", "sentences", "corpus_hash")}
        return {**facts, "counts": json.loads(facts["counts"]), "settings": json.loads(facts["settings"])}

    def _corpus_file(self, split: str) -> Path:
        if split not in SPLITS:
            raise unknown("split", split, list(SPLITS))
        return self.folder / "corpus" / f"{split}.h5"

    def corpus(self, split: str = "train") -> Corpus:
        """The sentences of a split. Trigger examples are from "train".

        Raises:
            UserError: There is no such split, or its file is missing, damaged, or of another tokenizer.
        """
        if split not in self._corpora_read:
            self._corpora_read[split] = read_corpus(self._corpus_file(split), self.anatomy.identity)
        return self._corpora_read[split]

    @functools.cached_property
    def vocabulary(self) -> Texts:
        """The text of every token id.

        Raises:
            UserError: The file is missing, damaged, or of another model.
        """
        with hdf5.open(self.folder / "model" / "vocabulary.h5", "vocabulary", self.anatomy.identity) as file:
            return hdf5.texts(file, "token")

    @contextlib.contextmanager
    def open_triggers(self) -> Iterator[h5py.File]:
        """`triggers.h5`, open for reading, after its model, tokenizer and corpus were checked.

        Raises:
            UserError: The file is missing, damaged, or belongs to another model, tokenizer or corpus.
        """
        identity = {**self.anatomy.identity, "corpus_hash": self.corpora["train"]["corpus_hash"]}
        with hdf5.open(self.folder / "triggers.h5", "triggers", identity) as file:
            yield file

    @contextlib.contextmanager
    def open_projections(self, layer_group: int) -> Iterator[h5py.File]:
        """The projections of the values of one layer group, open for reading, after their model was checked.

        Raises:
            UserError: The file is missing, damaged, or belongs to another model.
        """
        path = self.folder / "values" / "projections" / f"{layer_group}.h5"
        with hdf5.open(path, "projections", self.anatomy.identity) as file:
            yield file

    @functools.cached_property
    def layer_groups(self) -> list[range]:
        """The layers of each layer group. Steps write one file per group."""
        count = self.settings.layer_groups
        return [Part(index, count).of(len(self.anatomy.layers)) for index in range(count)]

    def details(self, name: str) -> pd.DataFrame:
        """A large table that a step wrote per layer group, all groups together.

        Args:
            name: The folder of its files, such as "values/by_memory" or "keys/patterns".
        Returns:
            The rows of all groups, in the order of the layers.
        Raises:
            UserError: A group's file is missing or damaged.
        """
        folder = self.folder / name
        return tables.read_all(folder / f"{group}.parquet" for group in range(len(self.layer_groups)))

    # The model

    def model(self, device: str = "auto") -> "LoadedModel":
        """Loads the model that was proven, from its checkpoint.

        Args:
            device: "auto", "cpu", "cuda" or "cuda:<n>", as the setting `model.device`.
        Returns:
            The model in evaluation mode on the device, with its anatomy.
        Raises:
            UserError: The checkpoint is gone, its weights have changed, or there is no such device.
        """
        from ffkv.model.checkpoint.load import load

        return load(self.folder / "model", device)
