"""One memory of a run: what triggers its key, and what its value promotes."""

import functools
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from markupsafe import Markup

from ffkv.activations.trigger_file import HISTOGRAM_EDGES
from ffkv.base.errors import UserError
from ffkv.corpus.shared_prefixes import prefix_number
from ffkv.run.results import indexes
from ffkv.run.results.memory_columns import example_columns, prediction_columns, with_columns
from ffkv.run.results.memory_name import expert_name, memory_name, whole_number
from ffkv.run.results.readings import READINGS
from ffkv.run.results.run_files import RunFiles
from ffkv.run.results.sought import kept_patterns, seek_patterns
from ffkv.run.results.text import examples_table, number, percent, summary, table, tokens_table, visible

if TYPE_CHECKING:
    from ffkv.run.results.run import Run

SHOWN = 5  # rows of each table in a notebook's summary
ROWS = 8192  # values that are read at a time
COEFFICIENT_BYTES = 2**25  # of coefficients that are read at a time
ROUNDING = 1e-12  # a sum of squared deviations below it, relative to the squares, is rounding of equal coefficients


class Memory:
    """A memory: a key with its trigger examples, and a value with the tokens that it promotes.

    Only the rows of this memory are read, when they are asked for. Tables that are attributes are kept as long as this
    object lives. Every reading raises a `UserError` if a file is missing, damaged, or of another model, tokenizer or corpus.

    Attributes:
        layer: the layer, from 0.
        memory: the memory in its layer, from 0.
        name: both in one word: "L3.17".
        run: the run.
        row: its place among the memories of all layers.
        unit: in a mixture of experts "expert 2, unit 17" or "shared, unit 3"; "" in other layers.
    Examples:
        >>> memory = ffkv.open("results/tiny").memory("L1.0")
        >>> memory.promotes(3).columns.tolist()  # the top tokens of the value
        ['token', 'id', 'log_probability', 'probability']
        >>> memory.triggers.columns.tolist()[:4]  # the max-activating examples of the key
        ['rank', 'coefficient', 'text', 'last_token']
    """

    def __init__(self, run: "Run", layer: int, memory: int):
        """Use `Run.memory`."""
        self.run, self.layer, self.memory = run, layer, memory
        self.name = memory_name(layer, memory)
        self.unit = run.anatomy.layers[layer].unit(memory)
        self.row = run.anatomy.layer_offset[layer] + memory

    @property
    def expert(self) -> str:
        """The name of its expert, such as "L3.e5"; "" if it is of none that a router chooses."""
        experts = enumerate(self.run.anatomy.layers[self.layer].experts)
        return next((expert_name(self.layer, n) for n, own in experts if own.start <= self.memory < own.stop), "")

    def __repr__(self) -> str:
        return f"<Memory {self.name} of {self.run.name}{self.run.told_reading}>"

    def _repr_html_(self) -> Markup:
        numbers, unit = self.statistics, [self.unit] if self.unit else []
        fires = f"fires on {percent(numbers['firing_rate'])} of prefixes"
        facts = [*unit, fires, f"maximum coefficient {number(numbers['maximum_coefficient'])}"]
        labels = [[visible(row.label), str(row.prefixes)] for row in self.patterns.head(SHOWN).itertuples()]
        promoted = min(SHOWN, len(self.run.vocabulary), self.run.settings.values.top_tokens)
        return summary(
            f"Memory {self.name} of {self.run.name}",
            facts,
            examples_table("Trigger examples", self.triggers.head(SHOWN)),
            examples_table("Negative trigger examples", self.negative_triggers.head(SHOWN)),
            table("Patterns", ["pattern", "trigger examples"], labels),
            tokens_table(f"The value promotes{self.run.told_reading}", self.promotes(promoted)),
        )

    @functools.cached_property
    @with_columns
    def triggers(self) -> pd.DataFrame:
        """The trigger examples, the highest coefficient first, one row per example."""
        return pd.DataFrame(example_columns(self.run.files, self.layer, self.memory, "positive"))

    @functools.cached_property
    def negative_triggers(self) -> pd.DataFrame:
        """The prefixes with the most negative coefficients, the most negative first, with the columns of `triggers`.

        There are no rows if coefficients are never negative, or if the run does not keep negative coefficients.
        """
        return pd.DataFrame(example_columns(self.run.files, self.layer, self.memory, "negative"))

    @with_columns
    def promotes(self, count: int = 10) -> pd.DataFrame:
        """Returns the tokens with the highest logits of the value alone. A positive coefficient promotes them.

        Returns:
            One row per token, the highest logit first.
        Raises:
            UserError: the run keeps fewer tokens than `count`.
        """
        return pd.DataFrame(prediction_columns(self.run.files, self.layer, self.memory, "top", count))

    @functools.cached_property
    @with_columns
    def reads(self) -> pd.DataFrame:
        """The tokens whose embeddings excite the memory most strongly, the strongest first (docs/translation.md).

        No rows if the run did not measure it (setting `translation.reading_texts`), or the factors of the memory are not known.
        """
        if not indexes.has_read_tokens(self.run.files):
            return pd.DataFrame(columns=["factor", "token", "id", "auc", "permuted_auc"])
        found = self.run.files.memory_rows("keys/read_tokens", self.layer, self.memory).explode("tokens")
        found["token"] = indexes.token_texts(found["tokens"].to_numpy(int), self.run.vocabulary)
        names = ["factor", "token", "tokens", "auc", "permuted_auc"]
        return found[names].rename(columns={"tokens": "id"}).reset_index(drop=True)

    def demotes(self, count: int = 10) -> pd.DataFrame:
        """Returns the tokens with the lowest logits of the value alone, the lowest first. A negative coefficient promotes them.

        Columns and errors are those of `promotes`.
        """
        return pd.DataFrame(prediction_columns(self.run.files, self.layer, self.memory, "bottom", count))

    @with_columns
    def similar(self, by: str = "value", count: int = 10) -> pd.DataFrame:
        """Returns the memories of the run that are most similar to this one, the most similar first, one row per memory.

        Keys are compared by what they detect, not by their vectors: a gated layer has two vectors per key, and the norm
        in front of the layer stretches them. Keys that detect the same have coefficients that rise and fall together.

        Args:
            by: "value": by the cosine of the values; "coefficients": by the correlation of the coefficients over the
                sampled validation prefixes; "triggers": by trigger examples that both have.
            count: the most rows.
        Raises:
            UserError: `by` is something else, or `count` is not positive.
        """
        ways = {"value": by_value, "coefficients": by_coefficients, "triggers": by_triggers}
        if by not in [*ways] or whole_number("count", count) < 1:
            raise UserError(
                f"similar(by={by!r}, count={count}): by is 'value', 'coefficients' or 'triggers', and count is 1 or"
                " more."
            )
        return ways[by](self.run.files, self.row, count)

    @functools.cached_property
    @with_columns
    def patterns(self) -> pd.DataFrame:
        """The patterns in the trigger examples, those in the most examples first, one row per pattern.

        There are no rows if the memory is not among the sampled keys (see `sampled` and `seek_patterns`), or if its
        trigger examples have no pattern.
        """
        files = self.run.files
        table = indexes.trigger_patterns.in_memory(files)
        if table is None:
            table = indexes.sort_patterns(files, files.memory_rows("keys/patterns", self.layer, self.memory))
        return self._own(table)

    @functools.cached_property
    def sampled(self) -> bool:
        """Whether the run sought patterns in the memory's trigger examples (setting `keys.per_layer`)."""
        kept = indexes.sampled_keys.in_memory(self.run.files)
        if kept is not None:
            return bool(kept[self.row])
        rows = self.run.files.memory_rows("keys/by_prefix", self.layer, self.memory)
        return bool((rows["sample"] == "trigger").any())

    def seek_patterns(self) -> pd.DataFrame:
        """Seeks patterns in the trigger examples of a memory that is not among the sampled keys.

        The first call of a run measures what random prefixes show by chance, which takes seconds. What was found is kept
        in `results/.<run>.sought/`, for as long as data and settings of the run stay the same.

        Returns:
            The columns of `patterns`. `q_value` is the share of false patterns among those of this memory alone. If the
            patterns could not be kept, `attrs["unkept"]` of the table says why.
        Raises:
            UserError: as `Run.memory`.
        """
        return self._own(seek_patterns(self.run.files, self.layer, self.memory))

    @property
    def pattern(self) -> str:
        """The pattern that most trigger examples have, in words; "" if they have none. It is sought if the run did not."""
        patterns = self.patterns if self.sampled else self.seek_patterns()
        return str(patterns["label"].iloc[0]) if len(patterns) else ""

    @property
    def sought(self) -> pd.DataFrame | None:
        """What `seek_patterns` has found and kept, here or in the explorer, in an earlier session too; None if nothing."""
        kept = kept_patterns(self.run.files, self.layer, self.memory)
        return None if kept is None else self._own(kept)

    @functools.cached_property
    @with_columns
    def labels(self) -> pd.DataFrame:
        """What people and machines see in the trigger examples, one row per annotator and pattern (docs/annotation.md).

        There are no rows if nobody judged the memory's key, or if whoever did saw no pattern.
        """
        return self._own(indexes.labels(self.run.files))

    @functools.cached_property
    @with_columns
    def explanations(self) -> pd.DataFrame:
        """How machines explain the memory, and how good that is, one row per machine (docs/annotation.md).

        There are no rows if no machine explained it.
        """
        return self._own(indexes.explanations(self.run.files))

    def _own(self, table: pd.DataFrame) -> pd.DataFrame:
        """Returns the memory's rows of a table in the order of the memories, which has the column `row`."""
        own = slice(*np.searchsorted(table["row"].to_numpy(), [self.row, self.row + 1]).tolist())
        return table.iloc[own].drop(columns=["layer", "memory", "row"]).reset_index(drop=True)

    @functools.cached_property
    def behaviours(self) -> pd.DataFrame:
        """The behaviours of which the memory is a candidate, and its exact effects on them (docs/behaviours.md).

        There are no rows if the run has no behaviours, or if the memory is a candidate of none.

        Columns:
            those of the table `behaviour_memories`, see docs/formats.md.
        """
        return self._own(indexes.behaviours(self.run.files))

    @functools.cached_property
    def concepts(self) -> pd.DataFrame:
        """The tasks of concepts that the memory separates alone, the largest AUC first, in whatever direction (docs/settings.md).

        There are no rows if the run has no concepts, or if the memory separates none.

        Columns:
            those of the table `concepts/memories`, see docs/formats.md.
        """
        return self._own(indexes.concepts(self.run.files))

    @functools.cached_property
    @with_columns
    def effects(self) -> pd.DataFrame:
        """What the removal of the memory does, beside controls, one row per side and reach (docs/interventions.md).

        There are no rows if the memory is not among those that the run changed.
        """
        return self._own(indexes.effects_by_memory(self.run.files))

    @functools.cached_property
    def statistics(self) -> pd.Series:
        """Numbers about the memory, by name. The names are the columns of `Run.memories`."""
        files, table = self.run.files, indexes.statistics.in_memory(self.run.files)
        if table is not None:
            return table.iloc[self.row].drop(["layer", "memory", "name"]).rename(self.name)
        with files.open_triggers() as file:
            key = indexes.key_statistics(file, slice(self.row, self.row + 1))
        by_memory = files.memory_rows(f"{READINGS[files.reading].files}by_memory", self.layer, self.memory)
        value = indexes.value_statistics(indexes.in_reading(by_memory), files.vocabulary)
        frames = [key, value]
        if indexes.has_roles(files):
            frames.append(indexes.role_statistics(files.memory_rows("roles/by_memory", self.layer, self.memory)))
        numbers = {name: frame[name][0] for frame in frames for name in frame}
        if indexes.has_effects(files):
            removed = indexes.total_effect(files.memory_rows("intervention/by_memory", self.layer, self.memory))
            numbers["effect"] = removed.iloc[0] if len(removed) else np.nan
        return pd.Series(numbers, name=self.name)

    @functools.cached_property
    @with_columns
    def histogram(self) -> pd.DataFrame:
        """How often the coefficient falls into each bin, over the prefixes of every eighth sentence, one row per bin.

        The first bin holds all coefficients that are not positive.
        """
        with self.run.files.open_triggers() as file:
            counts = file["histogram"][self.row]
        return pd.DataFrame({"low": HISTOGRAM_EDGES[:-1], "high": HISTOGRAM_EDGES[1:], "prefixes": counts})


def by_value(files: RunFiles, row: int, count: int) -> pd.DataFrame:
    """Finds the memories whose values have the highest cosine with that of memory `row`.

    All values are read once, a block at a time, so that memory does not grow with the model.
    """
    with files.open_values() as file:
        values = file["value"]
        value = values[row] / max(np.linalg.norm(values[row]), np.finfo(np.float32).tiny)
        cosine = np.empty(len(values), np.float32)
        for start in range(0, len(values), ROWS):
            block = values[start : start + ROWS]
            length = np.sqrt(np.einsum("ij,ij->i", block, block))
            cosine[start : start + len(block)] = block @ value / np.maximum(length, np.finfo(np.float32).tiny)
    return _ranked(files, row, count, "cosine", cosine.astype(float))


def by_coefficients(files: RunFiles, row: int, count: int) -> pd.DataFrame:
    """Finds the memories whose coefficients have the highest correlation with those of memory `row`.

    All are read once, layer by layer as they are stored, a block of prefixes at a time. There are no such memories if the
    coefficient of memory `row` never changes.
    """
    with files.open_sampled_prefixes() as file:
        m = file["m"]
        own = m[:, row].astype(float)
        own -= own.mean()
        own_square = float(own @ own)
        product, total, square = np.zeros((3, m.shape[1]))
        for layer in itertools.starmap(slice, itertools.pairwise(files.anatomy.layer_offset)):
            block = max(1, COEFFICIENT_BYTES // (8 * max(1, layer.stop - layer.start)))
            for start in range(0, len(m), block):
                part = m[start : start + block, layer].astype(float)
                product[layer] += own[start : start + block] @ part
                total[layer] += part.sum(0)
                square[layer] += np.einsum("ij,ij->j", part, part)
        spread = square - total**2 / len(m)
    changes = spread > ROUNDING * square
    correlation = np.full(len(product), -np.inf)
    if changes[row]:
        correlation[changes] = product[changes] / np.sqrt(own_square * spread[changes])
    return _ranked(files, row, count, "correlation", correlation)


def by_triggers(files: RunFiles, row: int, count: int) -> pd.DataFrame:
    """Finds the memories that share the most trigger examples (the same prefix) with memory `row`."""
    places = indexes.trigger_places(files)
    sentence, position = places.sentence[row], places.position[row]
    exists = sentence >= 0
    memory, rank = np.nonzero(np.isin(places.sentence, sentence[exists]))  # few are; only these are looked at closely
    prefixes = prefix_number(places.sentence[memory, rank], places.position[memory, rank])
    both = np.isin(prefixes, prefix_number(sentence[exists], position[exists]))
    shared = np.bincount(memory[both], minlength=len(places.sentence))
    return _ranked(files, row, count, "shared", shared, 0)


def _ranked(
    files: RunFiles, row: int, count: int, name: str, values: np.ndarray, above: float = -np.inf
) -> pd.DataFrame:
    """Returns the memories other than `row` whose values [memory] are the largest ones `above` a number, the largest first;
    of equal values the first one first.
    """
    values[row] = above
    best = np.argsort(-values, kind="stable")[:count]
    best = best[values[best] > above]
    layers, memories = files.anatomy.places_of(best)
    names = [memory_name(*place) for place in zip(layers.tolist(), memories.tolist())]
    return pd.DataFrame({"layer": layers, "memory": memories, "name": names, name: values[best]})
