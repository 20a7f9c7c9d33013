"""`triggers.h5`: trigger examples and statistics of every key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.files import hdf5

NONE = -1  # no sentence, no token
# Floating-point sums depend on their order, and so on the shards; sums of integers do not.
FIXED_POINT = 2.0**-20
# Everything not positive, then powers of two.
HISTOGRAM_EDGES = np.array([-np.inf, 0.0, *2.0 ** np.arange(-6, 5), np.inf], np.float32)
HISTOGRAM_EVERY = 8  # the histogram looks at every eighth sentence: it costs more than the other statistics together


@dataclass(frozen=True)
class TriggerExamples:
    """The trigger examples of every key, of one sign of its coefficient; the furthest from zero first.

    coefficient: memory coefficients, 0 where there is no trigger [memory, rank].
    sentence, position: the trigger prefix, -1 and 0 where there is none [memory, rank].
    next_token: the token that follows it in the corpus, -1 where there is none [memory, rank].
    gate: sign of the gate, 1 or -1; 0 where the memory has none, or where there is no trigger [memory, rank].
    count: how many triggers there are [memory].
    fires: on how many prefixes the coefficient has this sign [memory].
    """

    coefficient: np.ndarray
    sentence: np.ndarray
    position: np.ndarray
    next_token: np.ndarray
    gate: np.ndarray
    count: np.ndarray
    fires: np.ndarray

    @property
    def up(self) -> np.ndarray:
        """Sign of the other factor of a gated memory, m = act(gate) up; 0 where `gate` is [memory, rank]."""
        return np.sign(self.coefficient).astype(np.int8) * self.gate


@dataclass(frozen=True)
class Negative(TriggerExamples):
    """What is kept of negative coefficients. minimum: the smallest, 0 where none is negative [memory]."""

    minimum: np.ndarray


@dataclass(frozen=True)
class Triggers(TriggerExamples):
    """Trigger examples (of positive coefficients) and statistics of every key. Memory (l, i) is row `layer_offset[l] + i`.

    layer_offset: first row of each layer [layer + 1].
    total: sum of the coefficient over all prefixes, in fixed point (units of 2^-20) [memory].
    maximum: its largest value, 0 where none is positive [memory].
    histogram: on how many prefixes it falls into each bin of `HISTOGRAM_EDGES` [memory, bin].
    prefixes: number of prefixes that were looked at.
    attributes: what the file says of itself.
    negative: the other sign; None where the model has no negative coefficients, or where they were not asked for.
    """

    layer_offset: np.ndarray
    total: np.ndarray
    maximum: np.ndarray
    histogram: np.ndarray
    prefixes: int
    attributes: dict[str, Any]
    negative: Negative | None = None

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.layer_offset) - 1

    @property
    def mean(self) -> np.ndarray:
        """Mean coefficient over all prefixes [memory]."""
        return self.total * FIXED_POINT / max(self.prefixes, 1)

    def rows(self, layer: int) -> slice:
        """The rows of a layer's memories."""
        return slice(int(self.layer_offset[layer]), int(self.layer_offset[layer + 1]))


EXAMPLES = {
    "coefficient": (["memory", "rank"], "1", "memory coefficient, furthest from 0 first; 0 where there is no trigger"),
    "sentence": (["memory", "rank"], "sentence", "sentence of the trigger prefix; -1 where there is none"),
    "position": (["memory", "rank"], "token", "length of the trigger prefix, BOS not counted"),
    "next_token": (["memory", "rank"], "token", "id of the token that follows the prefix; -1 where there is none"),
    "gate": (
        ["memory", "rank"],
        "1",
        "sign of the memory's gate: 1 or -1; 0 where it has none, or there is no trigger",
    ),
    "count": (["memory"], "prefix", "number of triggers"),
    "fires": (["memory"], "prefix", "number of prefixes whose coefficient has the triggers' sign"),
}
DESCRIPTIONS = {
    **EXAMPLES,
    "total": (["memory"], "2^-20", "sum of the coefficient over all prefixes, in fixed point"),
    "maximum": (["memory"], "1", "largest coefficient; 0 where none is positive"),
    "histogram": (["memory", "bin"], "prefix", "number of prefixes by coefficient; edges in dataset `histogram_edge`"),
}
NEGATIVE = {**EXAMPLES, "minimum": (["memory"], "1", "smallest coefficient; 0 where none is negative")}


def write_triggers(path: Path, triggers: Triggers) -> None:
    """Writes `triggers.h5`, or a shard of it."""
    with hdf5.create(path, "triggers", {**triggers.attributes, "prefixes": triggers.prefixes}) as file:
        hdf5.put(
            file,
            "layer_offset",
            triggers.layer_offset,
            ["layer_boundary"],
            "memory",
            "first row of each layer; memory i of layer l is row layer_offset[l] + i",
        )
        hdf5.put(
            file,
            "histogram_edge",
            HISTOGRAM_EDGES,
            ["bin_boundary"],
            "1",
            "bin b holds histogram_edge[b] <= coefficient < histogram_edge[b + 1]; the bin that starts at 0 holds positive ones, zeros are in the one below",
        )
        for name, (dimensions, unit, description) in DESCRIPTIONS.items():
            hdf5.put(file, name, getattr(triggers, name), dimensions, unit, description)
        if triggers.negative:
            for name, (dimensions, unit, description) in NEGATIVE.items():
                values = getattr(triggers.negative, name)
                hdf5.put(file, f"negative/{name}", values, dimensions, unit, f"negative side: {description}")


def read_triggers(path: Path, belongs_to: dict[str, Any] | None = None) -> Triggers:
    """Reads `triggers.h5`, or a shard of it.

    Raises:
        UserError: see `hdf5.open`.
    """
    with hdf5.open(path, "triggers", belongs_to) as file:
        side = file.get("negative")
        return Triggers(
            layer_offset=file["layer_offset"][...],
            prefixes=int(file.attrs["prefixes"]),
            attributes=dict(file.attrs),
            negative=None if side is None else Negative(**{name: side[name][...] for name in NEGATIVE}),
            **{name: file[name][...] for name in DESCRIPTIONS},
        )
