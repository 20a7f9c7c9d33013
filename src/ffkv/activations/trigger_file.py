"""`triggers.h5`: trigger examples and statistics of every key."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.files import datasets, hdf5
from ffkv.files.datasets import LAYER_OFFSET, constant, dataset, group
from ffkv.settings import Triggers as TriggerSettings

NONE = -1  # no sentence, no token
# Floating-point sums depend on their order, and so on the shards; sums of integers do not.
FIXED_POINT = 2.0**-20
# Everything not positive, then powers of two.
HISTOGRAM_EDGES = np.array([-np.inf, 0.0, *2.0 ** np.arange(-6, 5), np.inf], np.float32)


@dataclass(frozen=True, kw_only=True)
class TriggerExamples:
    """The trigger examples of every key, of one sign of its coefficient."""

    coefficient: np.ndarray = dataset(
        "memory rank", "float32", unit="1", about="memory coefficient, furthest from 0 first; 0 if there is no trigger"
    )
    sentence: np.ndarray = dataset(
        "memory rank", "int32", unit="sentence", about="sentence of the trigger prefix; -1 if there is none"
    )
    position: np.ndarray = dataset(
        "memory rank", "int32", unit="token", about="length of the trigger prefix, BOS not counted; 0 if there is none"
    )
    next_token: np.ndarray = dataset(
        "memory rank",
        "int32",
        unit="token",
        about="id of the token that follows the prefix, most often if several do; -1 if there is none",
    )
    multiplicity: np.ndarray = dataset(
        "memory rank",
        "int32",
        unit="sentence",
        about="number of sentences that begin with the prefix; 1 if identical prefixes compete apart, 0 if there is none",
    )
    next_count: np.ndarray = dataset(
        "memory rank", "int32", unit="sentence", about="how many of these sentences have `next_token` after the prefix"
    )
    gate: np.ndarray = dataset(
        "memory rank",
        "int8",
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

    layer_offset: np.ndarray = dataset("layer_boundary", "int64", unit="memory", about=LAYER_OFFSET)
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
        return TriggerSettings.model_validate(json.loads(settings) if isinstance(settings, str) else settings)

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


def write_triggers(path: Path | str, triggers: Triggers) -> None:
    """Writes `triggers.h5`, or a shard of it."""
    with hdf5.create(path, "triggers", {**triggers.attributes, "prefixes": triggers.prefixes}) as file:
        datasets.write(file, triggers)


def read_triggers(path: Path | str, belongs_to: Mapping[str, Any] | None = None) -> Triggers:
    """Reads `triggers.h5`, or a shard of it.

    Args:
        path: the file.
        belongs_to: attributes whose identities the file must share, see `hdf5.open`.
    Raises:
        UserError: see `hdf5.open`.
    """
    with hdf5.open(path, "triggers", belongs_to) as file:
        return datasets.read(file, Triggers, prefixes=int(file.attrs["prefixes"]), attributes=dict(file.attrs))
