"""Indexes: what searches and comparisons ask of all memories of a run, read once and then kept in memory."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import FIXED_POINT, NONE
from ffkv.base.errors import UserError
from ffkv.base.files.datasets import Checked
from ffkv.base.lookup import exists
from ffkv.branches.behaviours.summary_tables import OF_MEMORIES
from ffkv.branches.branch import parts_of, paths
from ffkv.branches.concepts.tables import MEMORIES as CONCEPT_MEMORIES
from ffkv.branches.intervention.branch import BRANCH as INTERVENTION
from ffkv.branches.intervention.tables import BY_MEMORY
from ffkv.branches.roles.tables import ALL_TYPES, OUTPUTS
from ffkv.branches.translation.tables import has_reading
from ffkv.corpus.shared_prefixes import prefix_number
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.readings import READINGS
from ffkv.run.results.run_files import RunFiles, read_table, unknown

LABELS = "annotation/patterns.parquet"
PLACE = ["annotator", "layer", "memory"]
# Of an explanation: packages/ffkv-machines/README.md defines them.
SCORES = ("detection", "same_word", "fuzzing", "simulation")
ALL_SCORES = [*SCORES, *(f"{name}_of_other" for name in SCORES), "intruder"]
EXPLANATION = [*PLACE, "label", "refusal", *ALL_SCORES]
ROLES = {"role": ALL_TYPES, "output_role": OUTPUTS}  # the values of these columns of the statistics

Answer = TypeVar("Answer")


class Index(Generic[Answer]):
    """A function of the files of a run, about all memories. Its answer is kept in memory as long as the files are.

    Several threads may call it: one of them reads, the others wait.
    """

    def __init__(self, read: Callable[..., Answer], of_values: bool = False):
        """`of_values`: whether the answer depends on how the files read values."""
        self._read, self._of_values = read, of_values
        functools.update_wrapper(self, read)

    def _key(self, files: RunFiles, arguments: tuple) -> tuple:
        return self._read, files.reading if self._of_values else "", *arguments

    def __call__(self, files: RunFiles, *arguments: Any) -> Answer:
        """Returns the answer that is kept, else a new one."""
        key = self._key(files, arguments)
        if key not in files.kept:
            with files.lock:
                if key not in files.kept:  # else it was read meanwhile
                    files.kept[key] = self._read(files, *arguments)
        answer: Answer = files.kept[key]
        return answer

    def in_memory(self, files: RunFiles, *arguments: Any) -> Answer | None:
        """Returns the answer if it is in memory; else None, and whoever asks reads the rows of one memory only."""
        return files.kept.get(self._key(files, arguments))


OfValues = functools.partial(Index, of_values=True)


class TriggerPlaces(NamedTuple):
    """Where the trigger examples of all memories are, of positive coefficients."""

    sentence: np.ndarray  # sentence in the train split; -1 if there is none [memory, rank]
    position: np.ndarray  # length of the prefix in tokens [memory, rank]
    coefficient: np.ndarray  # its coefficient, the highest first [memory, rank]

    @property
    def prefix(self) -> np.ndarray:
        """Each prefix as one number, the same in all memories; -1 if there is none [memory, rank]."""
        return np.where(self.sentence >= 0, prefix_number(self.sentence, self.position), -1)


@OfValues
def kept_tokens(files: RunFiles, end: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the "top" or "bottom" tokens that the run keeps of each value, and their log-probabilities, both [memory, rank]."""
    names = ("layer", "memory", f"{end}_token", f"{end}_log_probability")
    groups = []
    for group in range(len(files.layer_groups)):
        with files.open_projections(group) as file:
            groups.append([file[name][...] for name in names])
    layer, memory, tokens, log_probability = map(np.concatenate, zip(*groups))
    _check_places(files, "projections", layer, memory)
    return tokens, log_probability


def _check_places(files: RunFiles, name: str, layer: np.ndarray, memory: np.ndarray) -> None:
    """Refuses rows of the file `name` that are not all memories of the model, each once and in order. Raises UserError."""
    every = files.anatomy.places_of(np.arange(files.anatomy.layer_offset[-1]))
    if not (np.array_equal(layer, every.layer) and np.array_equal(memory, every.memory)):
        raise UserError(
            f"{files.folder}/{READINGS[files.reading].files}{name} does not hold every memory once. Run the workflow again."
        )


@Index
def trigger_places(files: RunFiles) -> TriggerPlaces:
    """Where the trigger examples of all memories are."""
    with files.open_triggers() as file:
        return TriggerPlaces(*(file[name][...] for name in TriggerPlaces._fields))


@Index
def trigger_patterns(files: RunFiles) -> pd.DataFrame:
    """Returns the patterns in the trigger examples of all sampled keys: `keys/patterns`, with the memory's row in flat arrays.

    They are in the order of the memories; of one memory, those in the most trigger examples come first.
    """
    return sort_patterns(files, files.details("keys/patterns"))


def sort_patterns(files: RunFiles, patterns: pd.DataFrame) -> pd.DataFrame:
    """Returns rows of `keys/patterns` that are of trigger examples, as `trigger_patterns` has them."""
    patterns = _with_row(files, patterns[patterns["sample"] == "trigger"].drop(columns="sample"))
    order = {"row": True, "prefixes": False, "q_value": True, "pattern": True}
    return patterns.sort_values([*order], ascending=[*order.values()], ignore_index=True)


def _with_row(files: RunFiles, table: pd.DataFrame) -> pd.DataFrame:
    layer, memory = (table[name].to_numpy(float) for name in ("layer", "memory"))
    memories = np.array([each.memories for each in files.anatomy.layers])
    known = (layer >= 0) & (layer < len(memories)) & (memory >= 0)  # NaN is not
    if not known.all() or (memory >= memories[layer.astype(int)]).any():
        raise UserError(
            f"A table of {files.folder} names memories that its model does not have. Run the workflow again."
        )
    return table.assign(row=np.asarray(files.anatomy.layer_offset)[layer.astype(int)] + memory.astype(int))


@Index
def labels(files: RunFiles) -> pd.DataFrame:
    """Returns the patterns that people and machines saw in trigger examples, with the memory's row in flat arrays.

    They are in the order of the memories, then of the annotators. There are none if nobody judged keys of the run.

    Columns: layer, memory, row, and those of `Memory.labels`.
    """
    names = ["annotator", "layer", "memory", "pattern", "family", "label", "prefixes", "ranks"]
    if not exists(files.folder / LABELS):
        return pd.DataFrame(columns=[*names, "row"])
    table = files.file_rows(LABELS)
    table = _with_row(files, table[(table["sample"] == "trigger") & (table["occasion"] == 0)][names])
    return table.sort_values(["row", "annotator", "pattern"], ignore_index=True)


@Index
def explanations(files: RunFiles) -> pd.DataFrame:
    """How machines explain memories, and how good that is, one row per machine and memory.

    They are in the order of the memories, then of the machines. There are none if no machine explained any.

    Columns: layer, memory, row (in flat arrays), and those of `Memory.explanations`.
    """
    names = [f"annotation/machine_{name}.parquet" for name in ("labels", "scores")]
    if not all(exists(files.folder / name) for name in names):
        return pd.DataFrame(columns=[*EXPLANATION, "row"])
    explained, scores = map(files.file_rows, names)
    whose = scores["label"].map({"other": "_of_other"}).fillna("")
    columns = scores["score"].replace("detection of the same word", "same_word") + whose
    by_score = scores.assign(column=columns).pivot(index=PLACE, columns="column", values="value")
    table = explained.join(by_score.reindex(columns=ALL_SCORES), on=PLACE)[EXPLANATION]
    return _with_row(files, table).sort_values(["row", "annotator"], ignore_index=True)


@OfValues
def values_by_memory(files: RunFiles) -> pd.DataFrame:
    """The table `values/by_memory`, in the order of flat arrays: row `layer_offset[l] + i` is memory (l, i).

    Of files that read values translated, these are the columns of `translation/by_memory`.
    """
    by_memory = in_reading(files.details(f"{READINGS[files.reading].files}by_memory"))
    _check_places(files, "by_memory", by_memory["layer"].to_numpy(), by_memory["memory"].to_numpy())
    return by_memory


def pushed_tokens(files: RunFiles, memories: pd.DataFrame) -> dict[str, Any]:
    """Returns the token that each memory pushes towards with its coefficient m: the one that m v raises most.

    That is the top token of v if m is positive. If m is negative, m v is -|m| v, and it is the bottom token of v.

    Args:
        memories: columns layer, memory, coefficient.
    Returns:
        Columns: `pushes`, the text of the token, "" where m is 0 or not known; `top_probability`, that of the top token
        by v alone, NaN where m is not positive.
    """
    places = np.asarray(files.anatomy.layer_offset)[memories["layer"].to_numpy(int)] + memories["memory"].to_numpy(int)
    values, m = values_by_memory(files).iloc[places], memories["coefficient"].to_numpy(float)
    ids = np.select([m > 0, m < 0], [values["top_token"], values["bottom_token"]], NONE)
    probability = np.where(m > 0, values["top_probability"], np.nan)
    return {"pushes": token_texts(ids, files.vocabulary), "top_probability": probability}


def in_reading(by_memory: pd.DataFrame) -> pd.DataFrame:
    """Returns rows of `values/by_memory` as they are; of `translation/by_memory` those that are no null, as such rows."""
    if "reading" not in by_memory:
        return by_memory
    own = by_memory[by_memory["reading"].isin([*READINGS])].reset_index(drop=True)
    return own.drop(columns=["reading", "head_top_token", "head_agrees"])


@Index
def behaviours(files: RunFiles) -> pd.DataFrame:
    """Returns the candidates of all behaviours in the order of the memories; without rows if the run has none."""
    there = bool(files.settings.behaviours)
    table = read_table(files.table_files[OF_MEMORIES.name]) if there else OF_MEMORIES.frame([])
    return _with_row(files, table).sort_values("row", kind="stable")


def candidates(files: RunFiles, behaviour: str) -> pd.DataFrame:
    """Returns the candidates of a behaviour with their total effects, in the order of the memories.

    Raises UserError if the run has no such behaviour; names those that it has.
    """
    names = [*files.settings.behaviours]
    if behaviour not in names:
        none = f"{files.folder} has no behaviours. Name some in its settings (docs/behaviours.md), and run the workflow again."
        raise unknown(f"behaviour in {files.folder} called", behaviour, names) if names else UserError(none)
    table = behaviours(files)
    return table[(table["behaviour"] == behaviour) & (table["reach"] == "total")]


@Index
def concepts(files: RunFiles) -> pd.DataFrame:
    """Returns the memories that separate tasks of concepts alone, in their order, the largest AUC first, in whatever direction.

    Columns: those of `concepts/memories`, and row (in flat arrays). There are none if the run has no concepts.
    """
    names = [path for path in paths(CONCEPT_MEMORIES.path, parts_of(files.settings)) if exists(files.folder / path)]
    table = pd.concat([CONCEPT_MEMORIES.frame([]), *map(files.file_rows, names)])
    table = _with_row(files, table[table["alone"].astype(bool)])
    order = np.lexsort((-(table["auc"] - 0.5).abs(), table["row"]))
    return table.iloc[order].reset_index(drop=True)


def has_effects(files: RunFiles) -> bool:
    """Tells whether the run has removed memories."""
    return INTERVENTION.is_in(files.settings) and _is_there(files, "intervention/by_memory")


def _is_there(files: RunFiles, name: str) -> bool:
    """Tells whether the run has a large table: one that is not finished may lack it."""
    return all(exists(files.folder / name / f"{group}.parquet") for group in range(len(files.layer_groups)))


@Index
def effects_by_memory(files: RunFiles) -> pd.DataFrame:
    """The table `intervention/by_memory` in the order of the memories, with their rows in flat arrays. It is empty if the run changes no
    memories, or has not done so yet."""
    table = files.details("intervention/by_memory") if has_effects(files) else BY_MEMORY.frame([])
    return _with_row(files, table).sort_values("row", kind="stable")


def effects(files: RunFiles) -> pd.Series:
    """Returns the column `effect` of `Run.memories` of the memories that the run removed, by row in flat arrays."""
    return total_effect(effects_by_memory(files).set_index("row"))


@Index
def sampled_keys(files: RunFiles) -> np.ndarray:
    """Tells of each memory whether the run sought patterns in its trigger examples [memory]."""
    table, found = files.details("keys/by_prefix"), np.zeros(files.anatomy.layer_offset[-1], bool)
    found[_with_row(files, table[table["sample"] == "trigger"])["row"]] = True
    return found


def has_roles(files: RunFiles) -> bool:
    """Tells whether the roles of the run's memories are known."""
    return _is_there(files, "roles/by_memory")


def has_read_tokens(files: RunFiles) -> bool:
    """Tells whether it is known which tokens the run's keys read."""
    return has_reading(files.settings) and _is_there(files, "keys/read_tokens")


def role_statistics(by_memory: pd.DataFrame) -> pd.DataFrame:
    """Takes from rows of `roles/by_memory` the columns of `Run.memories`: not the place, p-values and ranks of examples."""
    return by_memory.drop(columns=["layer", "memory"]).filter(regex="^(?!first_).*(?<!_p)$").reset_index(drop=True)


def of_role(statistics: pd.DataFrame, column: str, wanted: str) -> np.ndarray:
    """Tells whether each memory of the statistics has a role, in the column "role" or "output_role" [memory].

    Raises UserError if there is no such role, or the run does not know the roles of its memories.
    """
    if wanted not in ROLES[column]:
        raise unknown(column.replace("_", " "), wanted, [*filter(None, ROLES[column])])
    if column not in statistics:
        raise UserError(
            "The run lacks the table roles/by_memory, so no role is known. Start snakemake again to make it."
        )
    return (statistics[column] == wanted).to_numpy()


def total_effect(table: pd.DataFrame) -> pd.Series:
    """Takes from rows of `intervention/by_memory` the effect of the removal of positive coefficients on the model."""
    effect: pd.Series = table["own"][(table["side"] == "positive") & (table["reach"] == "total")]
    return effect


def firing_rate(file: Checked, rows: slice = slice(None)) -> np.ndarray:
    """Reads the share of prefixes on which the coefficient is positive [memory]. rows: see `key_statistics`."""
    rate: np.ndarray = file["fires"][rows] / max(int(file.attrs["prefixes"]), 1)
    return rate


def key_statistics(file: Checked, rows: slice = slice(None)) -> pd.DataFrame:
    """Reads how often and how strongly keys fire: the columns of `Run.memories` from firing_rate to negative_trigger_examples.

    `rows`: the memories' rows in the file. Only these are read.
    """
    prefixes = max(int(file.attrs["prefixes"]), 1)
    columns = {
        "firing_rate": firing_rate(file, rows),
        "mean_coefficient": file["total"][rows] * FIXED_POINT / prefixes,
        "maximum_coefficient": file["maximum"][rows],
        "trigger_examples": file["count"][rows],
    }
    if "negative" in file:
        columns |= {
            "negative_rate": file["negative/fires"][rows] / prefixes,
            "minimum_coefficient": file["negative/minimum"][rows],
            "negative_trigger_examples": file["negative/count"][rows],
        }
    return pd.DataFrame(columns)


def value_statistics(by_memory: pd.DataFrame, vocabulary: Sequence[str]) -> pd.DataFrame:
    """Takes from rows of `values/by_memory` the columns of `Run.memories` from norm to negative_agrees.

    Tokens are texts in place of ids. `vocabulary`: the text of every token id.
    """
    repeated = ["layer", "memory", "triggers", "negative_triggers"]
    values = by_memory.drop(columns=repeated, errors="ignore").reset_index(drop=True)
    tokens = {name: token_texts(values[name], vocabulary) for name in values if name.endswith("token")}
    return values.assign(**tokens)


def token_texts(ids: np.ndarray | pd.Series, vocabulary: Sequence[str]) -> list[str]:
    """Returns the text of each token id; "" where the id is -1, which stands for no token."""
    texts = {token: "" if token == NONE else vocabulary[token] for token in np.unique(ids).tolist()}
    return [texts[token] for token in np.asarray(ids).tolist()]


@OfValues
def statistics(files: RunFiles) -> pd.DataFrame:
    """Returns the statistics of all memories, in the order of flat arrays, with the columns of `Run.memories`."""
    by_memory = values_by_memory(files)
    place = by_memory[["layer", "memory"]].astype(np.int64)
    place["name"] = [memory_name(*row) for row in place.itertuples(index=False)]
    with files.open_triggers() as file:
        key = key_statistics(file)
    roles = [role_statistics(files.details("roles/by_memory"))] if has_roles(files) else []
    table = pd.concat([place, key, value_statistics(by_memory, files.vocabulary), *roles], axis=1)
    table = table.assign(effect=effects(files)) if has_effects(files) else table
    if not files.settings.concepts:
        return table
    return table.assign(concepts=np.bincount(concepts(files)["row"], minlength=len(table)))
