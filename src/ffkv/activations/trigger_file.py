"""`triggers.h5`: trigger examples and statistics of every key, in an order that does not depend on batches, threads and device.

The last digits of a coefficient depend on the shape of the batch and on the machine. So the order of triggers looks at
the first 15 significant binary digits only: coefficients that agree in them differ by less than 0.01 % and are tied.
Tied prefixes come in the order of the corpus, also where the list of a key ends.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.base.files import datasets, hdf5
from ffkv.base.files.datasets import LAYER_OFFSET, constant, dataset, group
from ffkv.base.lookup import parse_json
from ffkv.base.settings import Triggers as TriggerSettings

PART_BYTES = 2**25  # of the memories that are read and written together
NONE = -1  # no sentence, no token
# Digits of a float32 that do not count for the order, of the 23 after its first one.
FINE_BITS = 9
FINE = 2**FINE_BITS - 1
# Of each unpacked piece a reader of one memory needs one row.
RANKED: dict[str, Any] = {"dimensions": "memory rank", "chunks": {"memory": 512}}
NUMBERED = RANKED | {"dtype": "int32"}
# Floating-point sums depend on their order, and so on the shards; sums of integers do not.
FIXED_POINT = 2.0**-20
# Everything not positive, then powers of two.
HISTOGRAM_EDGES = np.array([-np.inf, 0.0, *2.0 ** np.arange(-6, 5), np.inf], np.float32)


@dataclass(frozen=True, kw_only=True)
class TriggerExamples:
    """The trigger examples of every key, of one sign of its coefficient."""

    coefficient: np.ndarray = dataset(
        **RANKED, dtype="float32", unit="1", about="memory coefficient, furthest from 0 first; 0 if there is no trigger"
    )
    sentence: np.ndarray = dataset(
        **NUMBERED, unit="sentence", about="sentence of the trigger prefix; -1 if there is none", of="sentence"
    )
    position: np.ndarray = dataset(
        **NUMBERED, unit="token", about="length of the trigger prefix, BOS not counted; 0 if there is none"
    )
    next_token: np.ndarray = dataset(
        **NUMBERED,
        unit="token",
        about="id of the token that follows the prefix, most often if several do; -1 if there is none",
        of="token_id",
    )
    multiplicity: np.ndarray = dataset(
        **NUMBERED,
        unit="sentence",
        about="number of sentences that begin with the prefix; 1 if shared prefixes compete per sentence, 0 if there is none",
    )
    next_count: np.ndarray = dataset(
        **NUMBERED, unit="sentence", about="how many of these sentences have `next_token` after the prefix"
    )
    gate: np.ndarray = dataset(
        **RANKED,
        dtype="int8",
        unit="1",
        about="sign of the memory's gate: 1 or -1; 0 if it has none, or if there is no trigger",
    )
    count: np.ndarray = dataset("memory", "int32", unit="prefix", about="number of triggers")
    fires: np.ndarray = dataset(
        "memory", "int64", unit="prefix", about="number of prefixes whose coefficient has the triggers' sign"
    )

    @property
    def up(self) -> np.ndarray:
        """Sign of the other factor of a gated memory, m = act(gate) up; 0 where `gate` is [memory, rank]."""
        return np.sign(self.coefficient).astype(np.int8) * self.gate


@dataclass(frozen=True, kw_only=True)
class Negative(TriggerExamples):
    """The trigger examples of negative coefficients."""

    minimum: np.ndarray = dataset("memory", "float32", unit="1", about="smallest coefficient; 0 if none is negative")


@dataclass(frozen=True, kw_only=True)
class Triggers(TriggerExamples):
    """Trigger examples (of positive coefficients) and statistics of every key.

    Attributes:
        prefixes: number of prefixes that were looked at.
        attributes: what the file says of itself.
    """

    layer_offset: np.ndarray = dataset("layer_boundary", "int64", unit="memory", about=LAYER_OFFSET, of="memory")
    total: np.ndarray = dataset(
        "memory", "int64", unit="2^-20", about="sum of the coefficient over all prefixes, in fixed point"
    )
    maximum: np.ndarray = dataset("memory", "float32", unit="1", about="largest coefficient; 0 if none is positive")
    histogram: np.ndarray = dataset(
        "memory bin",
        "int64",
        unit="prefix",
        about="number of prefixes by coefficient, of every eighth sentence; edges in dataset `histogram_edge`",
    )
    prefixes: int
    attributes: dict[str, Any]
    histogram_edge: np.ndarray = constant(
        HISTOGRAM_EDGES,
        "bin_boundary",
        unit="1",
        about="bin b holds histogram_edge[b] <= coefficient < histogram_edge[b + 1]; the bin that starts at 0 holds"
        " positive ones, zeros are in the one below",
    )
    negative: Negative | None = group(Negative, about="negative side")

    @property
    def settings(self) -> TriggerSettings:
        """The settings that the triggers were found with."""
        settings = self.attributes["settings"]
        return TriggerSettings.model_validate(parse_json(settings) if isinstance(settings, str) else settings)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.layer_offset) - 1

    @property
    def mean(self) -> np.ndarray:
        """Mean coefficient over all prefixes [memory]."""
        return self.total * FIXED_POINT / max(self.prefixes, 1)

    def rows(self, layer: int) -> slice:
        """Returns the rows of a layer's memories."""
        return slice(int(self.layer_offset[layer]), int(self.layer_offset[layer + 1]))


def rough(coefficient: np.ndarray) -> np.ndarray:
    """Returns whole numbers that sort as the sizes of float32 coefficients do, and are equal for tied ones; -1 for 0."""
    digits = np.abs(coefficient).view(np.int32) >> FINE_BITS
    return np.where(coefficient == 0, -1, digits)


def tied_first(coefficient: np.ndarray) -> np.ndarray:
    """Tells for which keys other trigger examples are tied with the first one [key].

    `coefficient`: that of each trigger example, 0 where there is none [key, rank].
    """
    digits = rough(coefficient[:, :2])
    return (digits.shape[1] > 1) & (digits[:, 0] >= 0) & (digits[:, 0] == digits[:, -1])


COMPRESSED = [part.name for parts in datasets.datasets_of(Triggers).values() for part in parts]


def write_triggers(path: Path | str, triggers: Triggers) -> None:
    """Writes `triggers.h5`, or a shard of it.

    Examples:
        >>> triggers = ffkv.read_triggers("results/tiny/triggers.h5")
        >>> ffkv.write_triggers("copy.h5", triggers)
    """
    memories, per_key = triggers.coefficient.shape
    absent = ["negative"] if triggers.negative is None else []
    parts = (_of_memories(triggers, rows) for rows in row_ranges(memories, per_key, absent))
    write_parts(path, triggers.attributes, triggers.prefixes, parts)


def _of_memories(record: Any, rows: slice) -> Any:
    """Returns a record with some memories only. Their arrays are views."""
    cut = {}
    for field, parts in datasets.datasets_of(record).items():
        if (value := getattr(record, field)) is not None and parts[0].dimensions[0] == "memory":
            cut[field] = _of_memories(value, rows) if is_dataclass(value) else value[rows]
    return replace(record, **cut)


def row_ranges(memories: int, per_key: int, without: Sequence[str] = ()) -> list[slice]:
    """Ranges of memories, of all layers, that are read and written together. They follow from the sizes alone.

    `per_key`: trigger examples per key. `without`: fields that the file lacks.
    """
    sizes = {"memory": 1, "rank": per_key, "layer": 0, "bin": len(HISTOGRAM_EDGES) - 1}
    parts = [part for of_field in datasets.datasets_of(Triggers, without).values() for part in of_field]
    row = sum(np.dtype(part.dtype).itemsize * math.prod(part.shape(sizes)) for part in parts)
    step = max(1, PART_BYTES // row)
    return [slice(start, min(start + step, memories)) for start in range(0, memories, step)]


def write_parts(path: Path | str, attributes: Mapping[str, Any], prefixes: int, parts: Iterable[Triggers]) -> None:
    """Writes `triggers.h5` part by part, so that no more than one has to be in memory.

    `parts`: the memories in order, cut as `row_ranges` cuts them. `prefixes`: number of prefixes that were looked at.
    """
    with hdf5.create(path, "triggers", {**attributes, "prefixes": prefixes}) as file:
        written = 0
        for part in parts:
            if not written:
                sizes = {"memory": int(part.layer_offset[-1]), "rank": part.coefficient.shape[1]}
                sizes |= {"layer": part.layers, "bin": part.histogram.shape[1]}
                datasets.allocate(file, Triggers, sizes, ["negative"] if part.negative is None else [], COMPRESSED)
            stop = written + len(part.coefficient)
            datasets.fill(file, part, "memory", slice(written, stop))
            written = stop


def read_triggers(
    path: Path | str, belongs_to: Mapping[str, Any] | None = None, memories: slice = slice(None)
) -> Triggers:
    """Reads `triggers.h5`, or a shard of it.

    Args:
        path: the file.
        belongs_to: attributes whose identities the file must share, see `hdf5.open`.
        memories: the rows that are read.
    Raises:
        UserError: see `hdf5.open`.
    Examples:
        >>> triggers = ffkv.read_triggers("results/tiny/triggers.h5")
        >>> triggers.coefficient.shape, triggers.sentence.shape  # [memory, rank]
        ((256, 20), (256, 20))
    """
    with hdf5.open(path, "triggers", belongs_to) as file:
        own: dict[str, Any] = {"prefixes": int(file.attrs["prefixes"]), "attributes": dict(file.attrs)}
        return datasets.read(file, Triggers, "memory", memories, **own)


def tokens_seen(examples: TriggerExamples, tokens: np.ndarray, offsets: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the tokens of trigger examples [memory, rank]: the `next` one, and the `last` one of the prefix; -1 if there is none.

    `tokens` and `offsets` are those of the train split (`ffkv.corpus.corpus_file.Corpus`).
    """
    there = (examples.sentence != NONE) & (examples.position > 0)
    places = np.where(there, offsets[examples.sentence] + examples.position - 1, 0)
    return {"next": examples.next_token, "last": np.where(there, tokens[places], NONE)}
