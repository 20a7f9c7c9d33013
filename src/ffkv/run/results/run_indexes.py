"""What searches and comparisons ask of all memories of a run again and again. It is read once, and then kept in memory."""

import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.settings import Settings
from ffkv.branches.intervention.branch import BRANCH as INTERVENTION
from ffkv.branches.intervention.tables import BY_MEMORY
from ffkv.corpus.shared_prefixes import prefix_number
from ffkv.model.anatomy import Anatomy
from ffkv.run.results.explanations import COLUMNS as EXPLANATION
from ffkv.run.results.explanations import explanations
from ffkv.run.results.run_files import RunFiles


class TriggerPlaces(NamedTuple):
    """Where the trigger examples of all memories are, of positive coefficients.

    Attributes:
        sentence: sentence in the train split; -1 if there is none [memory, rank].
        position: length of the prefix in tokens [memory, rank].
        coefficient: its coefficient, the highest first [memory, rank].
    """

    sentence: np.ndarray
    position: np.ndarray
    coefficient: np.ndarray

    @property
    def prefix(self) -> np.ndarray:
        """Each prefix as one number, the same in all memories; -1 if there is none [memory, rank]."""
        return np.where(self.sentence >= 0, prefix_number(self.sentence, self.position), -1)


class RunIndexes(RunFiles):
    """The stored files of a run, and what is kept in memory of them."""

    def __init__(self, folder: Path, settings: Settings, anatomy: Anatomy):
        """Use `ffkv.open`."""
        super().__init__(folder, settings, anatomy)
        self._kept_tokens: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    @functools.cached_property
    def spellings(self) -> dict[str, list[int]]:
        """The ids of all tokens by their text without blanks at its two ends."""
        ids: dict[str, list[int]] = {}
        for number, text in enumerate(self.vocabulary):
            ids.setdefault(text.strip(), []).append(number)
        return ids

    @functools.cached_property
    def spellings_in_any_case(self) -> dict[str, list[int]]:
        """As `spellings`, and capital letters count as small ones."""
        ids: dict[str, list[int]] = {}
        for text, numbers in self.spellings.items():
            ids.setdefault(text.casefold(), []).extend(numbers)
        return ids

    def kept_tokens(self, end: str) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that the run keeps of each value's prediction, and their log-probabilities, both [memory, rank].

        Args:
            end: "top" or "bottom".
        """
        if end not in self._kept_tokens:
            names = ("layer", "memory", f"{end}_token", f"{end}_log_probability")
            groups = []
            for group in range(len(self.layer_groups)):
                with self.open_projections(group) as file:
                    groups.append([file[name][...] for name in names])
            layer, memory, tokens, log_probability = map(np.concatenate, zip(*groups))
            offset = np.asarray(self.anatomy.layer_offset)
            if not np.array_equal(offset[layer] + memory, np.arange(offset[-1])):
                raise UserError(
                    f"{self.folder / 'values/projections'} does not hold every memory once. Run the workflow again."
                )
            self._kept_tokens[end] = tokens, log_probability
        return self._kept_tokens[end]

    def kept_tokens_of(self, row: int, end: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Those of one memory, if those of all memories are in memory; else None."""
        kept = self._kept_tokens.get(end)
        return None if kept is None else (kept[0][row], kept[1][row])

    @functools.cached_property
    def trigger_places(self) -> TriggerPlaces:
        """Where the trigger examples of all memories are."""
        with self.open_triggers() as file:
            return TriggerPlaces(*(file[name][...] for name in TriggerPlaces._fields))

    def trigger_places_of(self, row: int) -> TriggerPlaces | None:
        """Those of one memory [rank], if those of all memories are in memory; else None."""
        places: TriggerPlaces | None = vars(self).get("trigger_places")
        if places is None:
            return None
        count = int(np.count_nonzero(places.sentence[row] >= 0))
        return TriggerPlaces(*(each[row, :count] for each in places))

    @functools.cached_property
    def trigger_patterns(self) -> pd.DataFrame:
        """The patterns in the trigger examples of all sampled keys: `keys/patterns`, with the memory's row in flat arrays.

        They are in the order of the memories; of one memory, those in the most trigger examples come first.
        """
        return self._in_order(self.details("keys/patterns"))

    def trigger_patterns_of(self, layer: int, memory: int) -> pd.DataFrame:
        """Those of one memory. Only these are read, unless `keep_open` was called."""
        if self._kept_files is None:
            return self._in_order(self.memory_rows("keys/patterns", layer, memory))
        row, rows = self.anatomy.layer_offset[layer] + memory, self.trigger_patterns["row"].to_numpy()
        return self.trigger_patterns.iloc[slice(*np.searchsorted(rows, [row, row + 1]).tolist())].reset_index(drop=True)

    @functools.cached_property
    def labels(self) -> pd.DataFrame:
        """The patterns that people and machines saw in trigger examples, with the memory's row in flat arrays.

        They are in the order of the memories, then of the annotators. There are none if nobody judged keys of the run.

        Columns:
            annotator: "person:<name>" or "machine:<name>".
            layer, memory: the memory.
            pattern: number of the pattern, from 0.
            family: "shallow" or "semantic".
            label: the pattern in the annotator's words.
            prefixes: number of trigger examples that have it.
            ranks: these trigger examples, as in the column `rank` of `Memory.triggers`.
            row: the memory's row.
        """
        path = self.folder / "annotation" / "patterns.parquet"
        names = ["annotator", "layer", "memory", "pattern", "family", "label", "prefixes", "ranks"]
        if not path.exists():
            return pd.DataFrame(columns=[*names, "row"])
        table = tables.read_all([path], self.identity("train"))
        table = table[(table["sample"] == "trigger") & (table["occasion"] == 0)][names]
        first = np.asarray(self.anatomy.layer_offset)[table["layer"].to_numpy()]
        table = table.assign(row=first + table["memory"].to_numpy())
        return table.sort_values(["row", "annotator", "pattern"], ignore_index=True)

    @functools.cached_property
    def explanations(self) -> pd.DataFrame:
        """How machines explain memories, and how good that is, one row per machine and memory, with the memory's row in flat arrays.

        They are in the order of the memories, then of the machines. There are none if no machine explained any.

        Columns:
            annotator: "machine:<name>".
            layer, memory: the memory.
            label: the explanation; "" if the machine gave none.
            refusal: why there is none.
            detection, same_word, fuzzing, simulation: scores of the label (docs/annotation-machine.md); NaN where there is none.
            detection_of_other, ...: the same scores of the label of another memory: the baseline.
            intruder: score of the memory itself, without a label.
            row: the memory's row.
        """
        paths = [self.folder / "annotation" / f"machine_{name}.parquet" for name in ("labels", "scores")]
        if not all(path.exists() for path in paths):  # of an earlier ffkv, or nobody said anything
            return pd.DataFrame(columns=[*EXPLANATION, "row"])
        table = explanations(*(tables.read_all([path], self.identity("train")) for path in paths))
        first = np.asarray(self.anatomy.layer_offset)[table["layer"].to_numpy()]
        return table.assign(row=first + table["memory"].to_numpy()).sort_values(["row", "annotator"], ignore_index=True)

    def _in_order(self, patterns: pd.DataFrame) -> pd.DataFrame:
        patterns = patterns[patterns["sample"] == "trigger"].drop(columns="sample")
        first = np.asarray(self.anatomy.layer_offset)[patterns["layer"].to_numpy()]
        patterns = patterns.assign(row=first + patterns["memory"].to_numpy())
        order = {"row": True, "prefixes": False, "q_value": True, "pattern": True}
        return patterns.sort_values([*order], ascending=[*order.values()], ignore_index=True)

    @functools.cached_property
    def values_by_memory(self) -> pd.DataFrame:
        """The table `values/by_memory` of all layers, in the order of flat arrays: row `layer_offset[l] + i` is memory (l, i)."""
        counts = [layer.memories for layer in self.anatomy.layers]
        layer, memory = np.repeat(np.arange(len(counts)), counts), np.concatenate([np.arange(n) for n in counts])
        by_memory = self.details("values/by_memory")
        if not np.array_equal(by_memory[["layer", "memory"]], np.stack([layer, memory], 1)):
            raise UserError(
                f"{self.folder / 'values/by_memory'} does not hold every memory once. Run the workflow again."
            )
        return by_memory

    @functools.cached_property
    def effects_by_memory(self) -> pd.DataFrame:
        """The table `intervention/by_memory` of all layers. It is empty for a run that has none, of an earlier ffkv perhaps."""
        paths = [self.folder / f"intervention/by_memory/{group}.parquet" for group in range(len(self.layer_groups))]
        if INTERVENTION.is_in(self.settings) and all(path.exists() for path in paths):
            return self.details("intervention/by_memory")
        return pd.DataFrame(columns=BY_MEMORY.names)
