"""A finished run, and an expert of it, as Python objects. What is asked of a run is read here, and nothing is written."""

import contextlib
import copy
import functools
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import pandas as pd
from markupsafe import Markup

from ffkv.base.errors import UserError
from ffkv.base.lookup import as_path, exists, is_dir, refuse_strange_entries
from ffkv.base.settings import documents
from ffkv.base.steps import Work
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.run.results.expected import EARLIER, TABLES, read_settings
from ffkv.run.results.memory import Memory
from ffkv.run.results.memory_columns import with_columns
from ffkv.run.results.memory_name import check_memory, expert_name, find_expert, parse_memory_name, whole_number
from ffkv.run.results.run_files import RunFiles, read_table, unknown
from ffkv.run.results.search import Search, find
from ffkv.run.results.text import number, percent, summary, table, visible

if TYPE_CHECKING:  # the model needs torch, which takes seconds to import
    from ffkv.run.results.run_model import RunModel

# transformers changes classes of its own while it loads a model: two threads at once would leave them changed.
_loading = threading.Lock()


def open(
    path: Path | str, keep_open: bool = False, trust_remote_code: bool = False, annotations: Path | str | None = None
) -> "Run":
    """Opens a finished run.

    Only `settings.json` and `model/anatomy.json` are read. All else is read when it is asked for.

    Args:
        path: the run's folder, `results/<run>`.
        keep_open: whether HDF5 files stay open, for programs that read many memories. A file is then checked once, when
            it is opened; else at each reading.
        trust_remote_code: whether you allow the Python code of the checkpoint, if the model needs it. No file of the run allows it.
        annotations: the folder of the run's annotations; None for `annotations/<run>`, beside `results`, or the folder that
            the setting `annotation.folder` names there.
    Raises:
        UserError: the folder is missing, holds no run or the run of another ffkv, or one of the two files is damaged; or it
            holds a link that leads out of it, a pipe or a device.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> run.name, len(run.anatomy.layers)
        ('tiny', 2)
    """
    folder = as_path(path)
    if not is_dir(folder):
        raise UserError(f"{folder} is not a folder. Name the folder of a run, such as results/demo.")
    if exists(folder / "settings.json"):  # else it is no run, and may be large
        refuse_strange_entries(folder)
    said = None if annotations is None else as_path(annotations)
    files = RunFiles(folder, read_settings(folder), read_anatomy(folder / "model"), keep_open, said)
    return Run(files, trust_remote_code)


def check_run(given: Any) -> None:
    """Refuses what is no run, such as the name of its folder, by a UserError."""
    if not isinstance(given, Run):
        raise UserError(f"run is {given!r}. Open a run first, as in run = ffkv.open('results/demo').")


class Run:
    """A finished run: its settings, model, corpora, tables and memories.

    Every file is checked when it is read. A `UserError` says which file is missing, damaged, or of another model,
    tokenizer or corpus. Files are read when they are asked for, and what was read is kept as long as this object lives.

    Attributes:
        files: the run's files, for programs that read all memories.
        folder: `results/<run>`.
        name: the run's name: the name of its folder.
        settings: the run's complete settings.
        anatomy: how the model is built: its layers, sizes, hashes, and the errors of the proof.
        trust_remote_code: whether the checkpoint's own code may run.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> run.memory("L1.17")
        <Memory L1.17 of tiny>
        >>> run.table("figure_5_rank")["layer"].tolist()
        [0, 1]
        >>> len(run.memories(sort="contribution", layer=1))  # a row per memory, the largest contribution first
        128
    """

    def __init__(self, files: RunFiles, trust_remote_code: bool = False):
        """Use `ffkv.open`."""
        self.files, self.folder, self.name = files, files.folder, files.folder.resolve().name
        self.settings, self.anatomy, self.trust_remote_code = files.settings, files.anatomy, trust_remote_code
        self._models: dict[str, RunModel] = {}

    def __repr__(self) -> str:
        layers, memories = len(self.anatomy.layers), self.anatomy.layer_offset[-1]
        return (
            f"<Run {self.name}{self.told_reading}: {self.anatomy.checkpoint}, {layers} layers, {memories:,} memories>"
        )

    @functools.cached_property
    def translated(self) -> "Run":
        """The same as `read_as("translated")`: through fitted maps to the last layer.

        Examples:
            >>> ffkv.open("results/tiny").translated.memory("L1.17")
            <Memory L1.17 of tiny, translated>
        """
        return self.read_as("translated")

    def read_as(self, reading: str) -> "Run":
        """The same run with values and states in another reading, of `Run.readings` (docs/translation.md).

        Tokens that memories promote and demote, searches, `memories`, traces and graphs are those of the reading. Tables, figures,
        `layers` and exports are those of the run.

        Raises:
            UserError: the run does not have it.
        Examples:
            >>> run = ffkv.open("results/tiny").read_as("jacobian")
            >>> run.memory("L1.17").promotes(3).columns.tolist()  # the top tokens of the value, through the lens
            ['token', 'id', 'log_probability', 'probability']
        """
        other = copy.copy(self)
        other.files = self.files.read_as(reading)
        return other

    @property
    def readings(self) -> list[str]:
        """How values and states can be read: by the "head", "translated", or through the "jacobian" lens."""
        return self.files.readings

    @property
    def told_reading(self) -> str:
        """What stands behind the name of a list of tokens: "" if the head reads it as it is, else ", translated"."""
        return "" if self.files.reading == "head" else f", {self.files.reading}"

    # Tables

    @functools.cached_property
    @with_columns
    def layers(self) -> pd.DataFrame:
        """The layers, one row per layer."""
        layers = pd.DataFrame(
            [(each.index, each.memories, each.kind, each.gated, each.signed) for each in self.anatomy.layers],
            columns=["layer", "memories", "kind", "gated", "signed"],
        )
        agreement = self.table("figure_4_agreement").query("source == 'trigger'").set_index("layer")["rate"]
        dead = self.table("activity").set_index("layer")["dead"]
        return layers.assign(dead=layers["layer"].map(dead), agreement=layers["layer"].map(agreement))

    @property
    def tables(self) -> list[str]:
        """Names of the tables that `table` reads, such as "figure_4_agreement". Figure 2 comes before figure 10."""
        return sorted(self.files.table_files, key=lambda name: re.sub(r"\d+", lambda number: number[0].zfill(2), name))

    def table(self, name: str) -> pd.DataFrame:
        """Returns a table that a figure or a section of the report shows. You may change it: each call returns a copy. The file is
        read again if it has changed.

        Texts from the corpus stay texts, also where a text reads "nan" or "1". Columns that an earlier ffkv did not write are
        empty (`unmeasured`).

        Args:
            name: the file's name without its ending, such as "figure_4_agreement", see `tables`; or that of a large table with its
                folder, such as "values/by_memory", see `RunFiles.details`.
        Raises:
            UserError: the run has no table of this name; says why, or lists the names that exist.
        """
        if isinstance(name, str) and "/" in name:
            return self.files.details(name)
        if not isinstance(name, str) or name not in self.files.table_files:
            if absent := next((path for path in [*self.files.unmeasured, *TABLES] if Path(path).stem == name), None):
                not_made = "the run was not asked for it, or had not made it when you opened it"
                why = EARLIER if absent in self.files.unmeasured else not_made
                raise UserError(f"{self.folder} has no {absent}: {why}.")
            raise unknown(f"table in {self.folder} called", name, self.tables)
        path = self.files.table_files[name]
        with contextlib.suppress(OSError):  # the reader of the file says what is wrong with it
            known = path.stat()
            key = path, known.st_mtime_ns, known.st_size, known.st_ino
            if key not in self.files.kept:
                self.files.kept[key] = read_table(path)
            return self.files.kept[key].copy()
        return read_table(path)

    @property
    def unmeasured(self) -> list[str]:
        """What this ffkv measures and the earlier one that made the run did not: branches, tables, or columns of a table.

        The list is empty if this ffkv made the run. Everything else of an earlier run is there.
        """
        return [name + (f": {', '.join(own)}" if own else "") for name, own in self.files.unmeasured.items()]

    # Memories

    def memory(self, layer: SupportsIndex | str, memory: SupportsIndex | None = None) -> Memory:
        """Returns one memory. Nothing is read yet.

        Args:
            layer: the layer, from 0; or, without `memory`, the name of a memory: "L3.17", "3.17", "3/17", or "L3D17" as
                LM-Debugger writes it.
            memory: the memory in its layer, from 0.
        Raises:
            UserError: the name has another form, or there is no such memory; says which exist.
        """
        if isinstance(layer, str):
            if memory is not None:
                raise UserError(
                    "Name a memory by two numbers, as in memory(3, 17), or by one text, as in memory('L3.17')."
                )
            place = parse_memory_name(layer)
        elif memory is None:
            raise UserError(f"Name the memory too, as in memory({layer}, 17).")
        else:
            place = whole_number("layer", layer), whole_number("memory", memory)
        check_memory(*place, [each.memories for each in self.anatomy.layers])
        return Memory(self, *place)

    def expert(self, name: str) -> "Expert":
        """Returns one expert of a model with experts, by its name: "L3.e5".

        Raises UserError if the name has another form, or there is no such expert.
        """
        return Expert(self, name)

    @functools.partial(with_columns, more="found")
    @documents(Search)
    def memories(
        self,
        promotes: str | int | None = None,
        text: str | None = None,
        sort: str | None = None,
        minimum: float | None = None,
        **options: Any,
    ) -> pd.DataFrame:
        """Returns the memories with their statistics; all of them, or those that a search finds.

        Args:
            {options}
        Returns:
            One row per memory. You may change the table.
        Raises:
            UserError: there is no such option; the model has no such token; there is no such column, layer, behaviour or list; a
                range is none, or its lowest value is above its highest; `minimum` without a sorted column; or the regular
                expression is none or takes too long.
        """
        search = Search(promotes=promotes, text=text, sort=sort, minimum=minimum, **options)
        return find(self.files, search).table()

    def _repr_html_(self) -> Markup:
        anatomy, layers = self.anatomy, self.layers
        facts = [
            visible(anatomy.checkpoint),
            f"{anatomy.architecture}, {number(anatomy.parameters)} parameters",
            f"{len(layers)} layers, {number(layers['memories'].sum())} memories",
            visible(f"corpus {self.settings.corpus.dataset}"),
            f"{number(self.files.corpora['train']['sentences'])} train sentences",
        ]
        rows = [
            [str(row.layer), number(row.memories), row.kind, number(row.dead), percent(row.agreement)]
            for row in layers.itertuples()
        ]
        return summary(
            f"Run {self.name}",
            facts,
            table("Layers", ["layer", "memories", "kind", "dead", "agreement"], rows),
            table("Tables", ["run.table(...)"], [[name] for name in self.tables]),
        )

    # The corpus and the model

    def corpus(self, split: str = "train") -> Corpus:
        """Returns the sentences of a split: "train", which trigger examples are from, or "validation".

        Raises:
            UserError: there is no such split.
        """
        return self.files.corpus(split)

    @property
    def vocabulary(self) -> Sequence[str]:
        """The text of every token id."""
        return self.files.vocabulary

    def model(self, device: str = "auto") -> "RunModel":
        """Returns the model that was proven, in evaluation mode, with its anatomy, head and tokenizer.

        It is loaded from its checkpoint when it is first asked for, and kept as long as this object lives.

        Args:
            device: "auto", "cpu", "cuda" or "cuda:<n>", as the setting `model.device`.
        Raises:
            UserError: the model needs code that was not allowed (`ffkv.open`), the checkpoint is gone, its weights have changed,
                or there is no such device.
        """
        from ffkv.model.checkpoint.load import load_for
        from ffkv.run.results.run_model import RunModel

        with _loading:
            if not isinstance(device, str) or device not in self._models:
                folder = self.folder / "model"
                work = Work(device, batch_tokens=self.settings.batches.tokens, trust_remote_code=self.trust_remote_code)
                loaded = load_for(folder, work, gradients=True)  # a graph differentiates it
                self._models[device] = RunModel(**vars(loaded), folder=folder)
            return self._models[device]


class Expert:
    """An expert that a router chooses. Tables are read when they are asked for; without rows if the run did not measure them.

    Attributes:
        layer: the layer, from 0.
        expert: the expert in its layer, from 0. Shared experts, which read every token, do not count.
        name: both in one word: "L3.e5".
        of: how many experts the layer has.
        run: the run.
    Examples:
        >>> ffkv.open("results/tiny").expert("L1.e2")
        Traceback (most recent call last):
            ...
        ffkv.base.errors.UserError: There is no expert 2 in layer 1. The layer has no experts that a router chooses.
    """

    def __init__(self, run: Run, name: str):
        """Use `Run.expert`."""
        self.run = run
        self.layer, self.expert = find_expert(name, run.anatomy.layers)
        self.name, self.of = expert_name(self.layer, self.expert), len(run.anatomy.layers[self.layer].experts)

    def __repr__(self) -> str:
        return f"<Expert {self.name} of {self.run.name}>"

    @property
    def memories(self) -> pd.DataFrame:
        """Its memories, with the columns of `Run.memories`, those that add the longest vectors to the residual first."""
        return self.run.memories(expert=self.name, sort="contribution")

    @property
    def load(self) -> pd.DataFrame:
        """How many tokens are sent to it: its row of the table `routing_experts`, see docs/formats.md."""
        return self._own("routing_experts")

    @property
    def patterns(self) -> pd.DataFrame:
        """How many tokens with each pattern are sent to it: its rows of the table `routing_patterns`, the smallest q first."""
        return self._own("routing_patterns").sort_values("q", kind="stable", ignore_index=True)

    @property
    def effects(self) -> pd.DataFrame:
        """What it does on behaviours: its rows of the table `behaviour_experts`, see docs/formats.md."""
        return self._own("behaviour_experts")

    def _own(self, name: str) -> pd.DataFrame:
        if name not in self.run.tables:
            return pd.DataFrame(columns=["layer", "expert", "q"])
        return self.run.table(name).query(f"layer == {self.layer} and expert == {self.expert}").reset_index(drop=True)
