"""A finished run as a Python object. Everything that is asked of a run is read here, and nothing is written."""

import copy
import functools
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import pandas as pd
from markupsafe import Markup

from ffkv.base.errors import UserError
from ffkv.base.files.fault import as_path
from ffkv.base.lookup import is_dir
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.run.results.memory import Memory
from ffkv.run.results.memory_name import check_memory, parse_memory_name, whole_number
from ffkv.run.results.run_files import RunFiles, read_settings, read_table, unknown
from ffkv.run.results.search import find
from ffkv.run.results.text import number, percent, summary, table, visible

if TYPE_CHECKING:  # the model needs torch, which takes seconds to import
    from ffkv.run.results.run_model import RunModel

# transformers changes classes of its own while it loads a model: two threads at once would leave them changed.
_loading = threading.Lock()


def open(path: Path | str, keep_open: bool = False) -> "Run":
    """Opens a finished run.

    Only `settings.json` and `model/anatomy.json` are read. All else is read when it is asked for.

    Args:
        path: the run's folder, `results/<run>`.
        keep_open: whether HDF5 files stay open, for programs that read many memories. A file is then checked once, when
            it is opened; else at each reading.
    Raises:
        UserError: the folder is missing, holds no run or the run of another ffkv, or one of the two files is damaged.
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> run.name, len(run.anatomy.layers)
        ('tiny', 2)
    """
    folder = as_path(path)
    if not is_dir(folder):
        raise UserError(f"{folder} is not a folder. Name the folder of a run, such as results/demo.")
    return Run(RunFiles(folder, read_settings(folder), read_anatomy(folder / "model"), keep_open))


def check_run(given: Any) -> None:
    """Refuses what is no run, such as the name of its folder.

    Raises:
        UserError: it is none.
    """
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
    Examples:
        >>> run = ffkv.open("results/tiny")
        >>> run.memory("L1.17")
        <Memory L1.17 of tiny>
        >>> run.table("figure_5_rank")["layer"].tolist()
        [0, 1]
        >>> len(run.memories(sort="contribution", layer=1))  # a row per memory, the largest contribution first
        128
    """

    def __init__(self, files: RunFiles):
        """Use `ffkv.open`."""
        self.files, self.folder, self.name = files, files.folder, files.folder.resolve().name
        self.settings, self.anatomy = files.settings, files.anatomy
        self._models: dict[str, RunModel] = {}

    def __repr__(self) -> str:
        layers, memories = len(self.anatomy.layers), self.anatomy.layer_offset[-1]
        return (
            f"<Run {self.name}{self.told_reading}: {self.anatomy.checkpoint}, {layers} layers, {memories:,} memories>"
        )

    @functools.cached_property
    def translated(self) -> "Run":
        """The same run with values and states read through the maps to the last layer (docs/translation.md).

        Tokens that memories promote and demote, searches, `memories`, traces and graphs are those of the translated reading.
        Tables, figures, `layers` and exports are those of the run. Only runs with `values.readout: both` have it.

        Raises:
            UserError: the run reads values and states by the head only.
        Examples:
            >>> run = ffkv.open("results/tiny").translated
            >>> run.memory("L1.17")
            <Memory L1.17 of tiny, translated>
            >>> run.memory("L1.17").promotes(3).columns.tolist()  # the top tokens of the value, translated
            ['token', 'id', 'log_probability', 'probability']
        """
        other = copy.copy(self)
        other.files = self.files.read_as("translated")
        return other

    @property
    def told_reading(self) -> str:
        """What stands behind the name of a list of tokens: "" if the head reads it as it is, else ", translated"."""
        return "" if self.files.reading == "head" else f", {self.files.reading}"

    # Tables

    @functools.cached_property
    def layers(self) -> pd.DataFrame:
        """The layers, one row per layer.

        Columns:
            layer: the layer, from 0.
            memories: number of memories.
            kind: how the layer is built, such as "plain" or "gated".
            gated: whether coefficients are products of a gate and another factor.
            signed: whether coefficients can be negative.
            dead: number of memories without a trigger example.
            agreement: share of the other memories whose top token, as the head reads it, follows the strongest trigger
                example (figure 4).
        """
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
        """Returns a table that a figure or a section of the report shows. You may change it: each call reads the file
        again.

        Texts from the corpus stay texts, also where a text reads "nan" or "1".

        Args:
            name: the file's name without its ending, such as "figure_4_agreement". See `tables`.
        Raises:
            UserError: there is no table of this name; lists the names that exist.
        """
        if not isinstance(name, str) or name not in self.files.table_files:
            raise unknown(f"table in {self.folder} called", name, self.tables)
        return read_table(self.files.table_files[name])

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

    def memories(
        self,
        promotes: str | int | None = None,
        text: str | None = None,
        sort: str | None = None,
        minimum: float | None = None,
        *,
        demotes: str | int | None = None,
        pattern: str | None = None,
        behaviour: str | None = None,
        collection: str | None = None,
        layer: int | None = None,
        between: Mapping[str, tuple[float | None, float | None]] | None = None,
        any_case: bool = False,
        expression: bool = False,
        ascending: bool = False,
    ) -> pd.DataFrame:
        """Returns the memories with their statistics; all of them, or those that a search finds.

        Args:
            promotes: only memories that keep this token among the top tokens of their value: its text or its id. Blanks
                at the two ends of a text do not count: "church" finds " church" too.
            text: only memories with a trigger example whose text contains this, to the letter.
            sort: the column to sort by. The largest value comes first; equal values keep the order of the memories. By
                default "promoted_probability" for a search by `promotes`, else "coefficient_with_text" for a search by
                `text`, else "examples_with_pattern" for a search by `pattern`, else "behaviour_effect" for a search by
                `behaviour` ("behaviour_contrast" if no effect was measured), else the order of the memories.
            minimum: only memories whose value in the sorted column is at least this.
            demotes: only memories that keep this token among the bottom tokens of their value, as `promotes`.
            pattern: only memories that have a pattern whose label contains this, in capital or small letters. Patterns
                that people and machines saw count, too, and so do the labels by which machines explain memories.
            behaviour: only memories that are candidates of the behaviour of this name (docs/behaviours.md).
            collection: only memories of this named list, such as "starred".
            layer: only memories of this layer, from 0.
            between: only memories whose numbers are in these ranges: a column, and its lowest and highest value. None
                stands for no limit, as in {"firing_rate": (0.1, None)}.
            any_case: capital and small letters of `promotes` and `demotes` are the same.
            expression: `text` is a regular expression. A trigger example has it if the first match in its sentence lies
                within the prefix.
            ascending: the smallest value of the sorted column comes first.
        Returns:
            One row per memory. You may change the table.
        Columns:
            layer: the layer, from 0.
            memory: the memory in its layer, from 0.
            name: both in one word: "L3.17".
            firing_rate: share of the prefixes on which the coefficient is positive.
            mean_coefficient: mean over all prefixes.
            maximum_coefficient: highest coefficient; 0 if none is positive.
            trigger_examples: number of trigger examples that are kept.
            negative_rate: share of the prefixes on which the coefficient is negative. This column and all others about
                negative coefficients exist only if the run keeps negative coefficients.
            minimum_coefficient: lowest coefficient; 0 if none is negative.
            negative_trigger_examples: number of negative trigger examples that are kept.
            norm: length of the value.
            contribution: mean coefficient over the trigger examples times the norm: the length of what the memory
                typically adds.
            top_token: the token with the highest logit of the value alone.
            top_probability: its probability.
            tied: whether several tokens share the highest logit.
            bottom_token: the token with the lowest logit.
            next_token: the token that follows the strongest trigger example; "" if there is none.
            rank: number of tokens with a higher logit than next_token; -1 if there is none.
            agrees: whether top_token is next_token.
            matching: number of trigger examples that top_token follows.
            first_match: the first of them, from 0; -1 if there is none.
            negative_next_token: the token that follows the most negative trigger example.
            negative_agrees: whether bottom_token is negative_next_token.
            key_value_cosine, gate_value_cosine, gate_up_cosine: cosines of what the memory reads and writes, and key_value_q, gate_value_q,
                gate_up_q: their adjusted p-values (docs/roles.md). These columns and the following are those of the table
                `roles/by_memory` (docs/formats.md); a run that is not finished may lack them.
            role, output_role: what the memory does to the direction that it reads, and to the logits.
            ignored_share, unigram_cosine, unigram_correlation: of the value, in directions of the head.
            logit_variance, logit_skewness, logit_kurtosis: of the logits that the value writes.
            next_in_top, next_in_bottom, last_in_top, last_in_bottom: shares of trigger examples.
            both_positive, both_negative, gate_negative, up_negative: numbers of trigger examples, in models with gates.
            effect: mean change of the log-probabilities of the value's top tokens, in nats, when the memory is removed
                on its trigger examples (total, docs/interventions.md); NaN if the run did not remove it. The column
                exists only if the run removes memories.
            promoted_token: for a search by `promotes`: the token that was found.
            promoted_rank: its place among the top tokens, from 0.
            promoted_probability: its probability.
            promoted_weight: its probability times firing_rate: memories that never fire have 0.
            examples_with_text: for a search by `text`: number of trigger examples that contain the text.
            coefficient_with_text: their highest coefficient.
            demoted_token, demoted_rank, demoted_probability: for a search by `demotes`, among the bottom tokens.
            pattern_found: for a search by `pattern`: the label of the pattern in the most trigger examples.
            examples_with_pattern: number of trigger examples that have it; 0 if it is the explanation of a machine.
            explanation_detection: the highest detection score of an explanation with the text; only if a machine
                explained memories.
            behaviour_effect: for a search by `behaviour`: by how much the logit of the answer, minus that of the wrong answer,
                falls when the memory is patched (total); NaN if no effect was measured.
            behaviour_q: its p-value among random memories, adjusted for all candidates.
            behaviour_screen: the effect as one backward pass estimates it, second half of the prompts.
            behaviour_contrast: contribution on the prompts minus that on the prompts that they are compared with.
            detects: for a search by `collection`: the label of the pattern in the most trigger examples; "" if none is
                known.
            note: the notes on the memory; "" if there is none.
            added_by: who put it into the list.
            added: when, in UTC.
        Raises:
            UserError: the model has no such token; there is no such column, layer, behaviour or list; a range is none, or its lowest
                value is above its highest; `minimum` without a sorted column; or the regular expression is none or
                takes too long.
        """
        search = {key: value for key, value in locals().items() if key != "self"}
        return find(self.files, **search).table()

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
            UserError: the checkpoint is gone, its weights have changed, or there is no such device.
        """
        from ffkv.model.checkpoint.load import load
        from ffkv.run.results.run_model import RunModel

        with _loading:
            if not isinstance(device, str) or device not in self._models:
                folder = self.folder / "model"
                self._models[device] = RunModel(**vars(load(folder, device)), folder=folder)
            return self._models[device]
