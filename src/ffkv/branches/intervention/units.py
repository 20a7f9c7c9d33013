"""Changes the coefficients of random memories of one layer on prefixes, and compares each memory with its controls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.activations.last_token import for_each_last_token
from ffkv.activations.trigger_file import Triggers
from ffkv.base.batching import batches, to_device
from ffkv.base.files.columns import REACHES
from ffkv.base.multiple_tests import permutation_p, q_values
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.intervention.settings import Intervention
from ffkv.branches.intervention.tables import DIRECTIONS, MEMORIES, OWN, PLACEBO, SIMILAR
from ffkv.branches.values.projections import Projections
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import Layer
from ffkv.model.effects.changes import Effects, measure_effects, other_memories, predict, scaled, similar_memories
from ffkv.model.effects.rerun import Running, changed_ends, run_unchanged
from ffkv.model.keys_and_values import values_in_place

SIDES = ("positive", "negative")
Place = tuple[int, int]  # sentence and position of a prefix


class Unit(NamedTuple):
    """A memory on one side of zero, with the trigger examples on which it is changed."""

    memory: int  # its number in the layer
    side: str  # "positive" or "negative": the sign of its coefficients
    places: list[Place]  # sentence and position of each trigger example [prefix]
    next_tokens: np.ndarray  # the token that follows most often [prefix]
    controls: np.ndarray  # the random memories that it is compared with, by their numbers in the layer [control]
    # another changed memory of the layer, whose top tokens are measured as well; itself if there is no other
    other: int


@dataclass(frozen=True)
class LayerModel:
    """One layer of a model that runs."""

    running: Running
    layer: Layer
    values: Tensor  # v [memory, d]
    norms: np.ndarray  # their lengths, float64 [memory]
    mean: np.ndarray  # mean coefficients over the train split [memory]
    settings: Intervention
    seed: int


class Changes(NamedTuple):
    """Some changes of o on one prefix, all of one unit and of one kind."""

    unit_index: int  # number of the unit among those of the layer
    # the columns that name unit and prefix: with the unit's coefficient, and the length of its contribution
    about: dict[str, Any]
    tokens: dict[str, np.ndarray]  # ids of the tokens that are measured, by what they are: "top", "other", "next"
    source: str  # see `ffkv.branches.intervention.tables`
    labels: list[tuple[str, float]]  # of each change: ("scale", c) or ("mean", NaN) [change]; none of controls
    rows: np.ndarray  # along which vector o changes: its row among those of `vectors_of` [change]
    weights: np.ndarray  # by which multiple of it [change]


@dataclass
class UnitResults:
    """The measurements of one unit. Lists have an entry per prefix."""

    rows: list[dict] = field(default_factory=list)  # rows of the table `intervention/by_prefix`
    # mean change of the log-probabilities of the unit's tokens, by reach and source: [prefix][control]
    controls: dict[tuple[str, str], list[np.ndarray]] = field(default_factory=dict)
    # the same for the removal and the tokens of another memory, by reach [prefix]
    other: dict[str, list[float]] = field(default_factory=dict)

    def note(self, changes: Changes, reach: str, effects: Effects, wanted: np.ndarray) -> None:
        """Adds what changes of the unit do. `effects`: theirs, on the tokens `wanted`, which ascend."""
        columns = {name: np.searchsorted(wanted, ids) for name, ids in changes.tokens.items()}
        log_p = {name: effects.log_p[:, at].mean(1).numpy() for name, at in columns.items()}
        if changes.source not in (OWN, PLACEBO):
            self.controls.setdefault((reach, changes.source), []).append(log_p["top"])
            return
        about = changes.about | {"source": changes.source, "reach": reach}
        for row, (change, scale) in enumerate(changes.labels):
            measured = {name: log_p[name][row] for name in ("top", "next")}
            measured |= {"divergence": float(effects.divergence[row]), "changed": bool(effects.changed[row])}
            self.rows.append(about | {"change": change, "scale": scale} | measured)
            if changes.source == OWN and scale == 0:
                self.other.setdefault(reach, []).append(log_p["other"][row])


def layer_model(running: Running, number: int, triggers: Triggers, settings: Intervention, seed: int) -> LayerModel:
    """Returns a layer of a model that runs, by its number, with what interventions on it need."""
    layer = running.loaded.anatomy.layers[number]
    v, _ = values_in_place(running.loaded.model, layer)
    norms = v.double().norm(dim=1).cpu().numpy()
    return LayerModel(running, layer, v, norms, triggers.mean[triggers.rows(number)], settings, seed)


def intervene(
    model: LayerModel, triggers: Triggers, projections: Projections, train: Corpus
) -> tuple[list[dict], list[dict]]:
    """Changes the coefficients of random memories of one layer: rows of `BY_PREFIX` and of `BY_MEMORY`, without q-values."""
    number, settings = model.layer.index, model.settings
    units = sample_units(triggers, number, model.norms, settings, model.seed)
    top = projections.top_token[projections.layer == number][:, : settings.tokens].astype(np.int64)
    places = [*dict.fromkeys(place for unit in units for place in unit.places)]
    following = ((place, token) for unit in units for place, token in zip(unit.places, unit.next_tokens, strict=True))
    next_token = {place: int(token) for place, token in following}
    ids = {place: train.prefix_ids(*place) for place in places}
    silent = _silent_places(model, units, places, [*ids.values()])
    tokens = [top[unit.memory] for unit in units]
    other_tokens = [top[unit.other] for unit in units]
    found = measure_units(model, units, tokens, other_tokens, silent, ids, next_token)
    by_prefix = [row for unit in found for row in unit.rows]
    return by_prefix, [row for unit in found for row in compare_with_controls(unit)]


def sample_units(triggers: Triggers, layer: int, norms: np.ndarray, settings: Intervention, seed: int) -> list[Unit]:
    """Draws memories of a layer among the living ones, and what they are compared with.

    A living memory has a trigger example, and a value that is not 0. The draws of one layer depend on no other layer.
    `norms`: lengths of its values [memory].
    """
    rows = triggers.rows(layer)
    alive = np.flatnonzero((triggers.count[rows] > 0) & (norms > 0))
    drawn = random_stream(seed, Purpose.CHANGED_MEMORIES, layer)
    memories = np.sort(drawn.choice(alive, min(settings.memories, len(alive)), replace=False))
    units = []
    for number, memory in enumerate(memories.tolist()):
        row, other = rows.start + memory, int(memories[(number + 1) % len(memories)])
        for side, examples in zip(SIDES, (triggers, triggers.negative), strict=True):
            if examples is None or not examples.count[row]:
                continue
            generator = random_stream(seed, Purpose.CONTROL_MEMORIES, layer, memory, SIDES.index(side))
            controls = other_memories(memory, norms, settings.controls, generator)
            stored = int(examples.count[row])
            generator = random_stream(seed, Purpose.CHANGED_PREFIXES, layer, memory, SIDES.index(side))
            ranks = np.sort(generator.choice(stored, min(settings.examples, stored), replace=False))
            places = [*zip(examples.sentence[row, ranks].tolist(), examples.position[row, ranks].tolist(), strict=True)]
            units.append(Unit(memory, side, places, examples.next_token[row, ranks], controls, other))
    return units


def _silent_places(
    model: LayerModel, units: Sequence[Unit], places: Sequence[Place], rows: Sequence[np.ndarray]
) -> list[list[Place]]:
    """Chooses, for each unit, prefixes of the other units on which it is silent [unit][prefix]."""
    m = np.zeros((len(units), len(places)), np.float32)
    memories = [unit.memory for unit in units]

    def on_tensor(numbers: np.ndarray, layer: Layer, quantity: str, tensor: Tensor) -> None:
        m[:, numbers] = tensor[:, memories].float().cpu().numpy().T

    for_each_last_token(model.running.loaded, [model.layer], "m", rows, model.running.batch_tokens, on_tensor)
    silent = []
    for unit, m_of_unit in zip(units, m, strict=True):
        own = np.array([place in unit.places for place in places])
        others = np.flatnonzero(~own)
        chosen = choose_silent(m_of_unit[own], m_of_unit[others], model.settings.silent_below, model.settings.examples)
        silent.append([places[number] for number in others[chosen]])
    return silent


def choose_silent(own: np.ndarray, others: np.ndarray, share: float, count: int) -> np.ndarray:
    """Chooses prefixes on which a memory is nearly silent, the largest coefficients first; of equal ones the first.

    Where the coefficient is exactly 0, as it mostly is with ReLU or experts, a removal changes nothing, so it shows nothing.

    `own`: its coefficients on its own trigger examples [prefix]. `others`: those on other prefixes [other prefix]. `share`:
    largest size of a coefficient that counts as silent, as a share of the mean size of `own`. `count`: how many are chosen
    at most. Returns numbers of other prefixes.
    """
    sizes = np.abs(others.astype(np.float64))
    order = np.argsort(-sizes, kind="stable")
    silent = (sizes > 0) & (sizes <= share * np.abs(own.astype(np.float64)).mean())
    return order[silent[order]][:count]


def measure_units(
    model: LayerModel,
    units: Sequence[Unit],
    tokens: Sequence[np.ndarray],
    other_tokens: Sequence[np.ndarray],
    silent: Sequence[Sequence[Place]],
    ids: dict[Place, np.ndarray],
    next_token: dict[Place, int],
) -> list[UnitResults]:
    """Changes the coefficients of some memories of a layer on their trigger examples. Prefixes of similar length run together.

    `tokens`: ids of the top tokens of each unit's value [unit][token]; `other_tokens`: those of its other memory. `silent`:
    prefixes on which each unit is silent [unit][prefix]. `ids`: token ids of each prefix, with what precedes every sentence.
    `next_token`: the token that follows each prefix.
    """
    its, found, all_places = model.running, [UnitResults() for _ in units], [*ids]
    lengths, read_as = np.array([len(row) for row in ids.values()], np.int64), its.loaded.anatomy.read_as
    vectors, norms = vectors_of(model, units)
    for group in batches(lengths, its.batch_tokens):
        places = [all_places[number] for number in group]
        (bases,) = run_unchanged(its.loaded, [model.layer], [ids[place] for place in places], its.keeps)
        changes = []
        for base, place, m in zip(bases, places, torch.stack([base.m for base in bases]).cpu().numpy(), strict=True):
            following = np.array([next_token[place]])
            read = [{"top": top, "other": other, "next": following} for top, other in zip(tokens, other_tokens)]
            changes.append(_changes_on(model, units, silent, read, norms, m, base.factor, place))
        read_ids = [[ids for part in parts for ids in part.tokens.values()] for parts in changes]
        wanted = [np.unique(np.concatenate(ids_of_prefix)) for ids_of_prefix in read_ids]
        flat, device = [part for parts in changes for part in parts], str(vectors.device)
        rows = to_device(np.concatenate([part.rows for part in flat]), device)
        weights = to_device(np.concatenate([part.weights for part in flat]).astype(np.float32), device)
        counts = [sum(len(part.rows) for part in parts) for parts in changes]
        moves = (weights[:, None] * vectors[rows]).split(counts)
        predictions = predict(its.head, torch.stack([base.end for base in bases]), read_as)
        ends = changed_ends(its.loaded, model.layer, its.reruns[model.layer.index], bases, moves)
        on_cpu = [torch.from_numpy(own) for own in wanted]
        # After the last layer both reaches are the same.
        effects = {
            id(own): measure_effects(its.head, own, predictions, on_cpu, read_as)
            for own in {id(own): own for own in ends.values()}.values()
        }
        for n, parts in enumerate(changes):
            sizes = [len(part.rows) for part in parts]
            for reach, own in ends.items():
                pieces = zip(*(tensor.split(sizes) for tensor in effects[id(own)][n]), strict=True)
                for part, piece in zip(parts, pieces, strict=True):
                    found[part.unit_index].note(part, reach, Effects(*piece), wanted[n])
    order = {place: number for number, place in enumerate(all_places)}
    for of_unit in found:
        of_unit.rows.sort(key=lambda row: order[row["sentence"], row["position"]])
    return found


def vectors_of(model: LayerModel, units: Sequence[Unit]) -> tuple[Tensor, np.ndarray]:
    """Returns the vectors along which o changes [vector, d], and their lengths, float64 [vector].

    They are all values of the layer, then random directions of each unit, which it draws.
    """
    count, values = model.settings.directions, model.values
    drawn = np.zeros((len(units), count, values.shape[1]), np.float32)
    for own, unit in zip(drawn, units, strict=True):
        parts = model.layer.index, unit.memory, SIDES.index(unit.side)
        own[:] = random_stream(model.seed, Purpose.CONTROL_DIRECTIONS, *parts).standard_normal(own.shape, np.float32)
    directions = drawn.reshape(-1, drawn.shape[2])
    norms = np.linalg.norm(directions.astype(np.float64), axis=1)
    vectors = torch.cat([values, to_device(directions, str(values.device))])
    return vectors, np.concatenate([model.norms, norms])


def _changes_on(
    model: LayerModel,
    units: Sequence[Unit],
    silent: Sequence[Sequence[Place]],
    read: Sequence[dict[str, np.ndarray]],
    norms: np.ndarray,
    m_all: np.ndarray,
    factor: float,
    place: Place,
) -> list[Changes]:
    """Returns all changes on one prefix: of the units whose trigger example it is, then of those that are silent there.

    `silent`, `read`: the prefixes on which each unit is silent, and the tokens that are measured [unit]. `norms`: see `vectors_of`.
    `m_all`: coefficients of all memories of the layer [memory]. `factor`: s.
    """
    own, placebo, settings = [], [], model.settings
    for n, unit in enumerate(units):
        if place not in unit.places and place not in silent[n]:
            continue
        m = float(m_all[unit.memory])
        size = abs(factor * m) * float(norms[unit.memory])
        about = {"layer": model.layer.index, "memory": unit.memory, "side": unit.side, "sentence": place[0]}
        kind = partial(Changes, n, about | {"position": place[1], "coefficient": m, "size": size}, read[n])
        if place in silent[n]:  # the removal (zero ablation) of a unit that is silent there
            placebo.append(kind(PLACEBO, [("scale", 0.0)], np.array([unit.memory]), scaled(m, factor, [0.0])))
        if place not in unit.places:
            continue
        parts = model.layer.index, unit.memory, SIDES.index(unit.side), *place
        generator = random_stream(model.seed, Purpose.SIMILAR_MEMORIES, *parts)
        near = similar_memories(unit.memory, m_all, model.norms, settings.similar_size, settings.similar, generator)
        directions = len(model.norms) + n * settings.directions + np.arange(settings.directions)
        labels = [*(("scale", scale) for scale in settings.scales), ("mean", np.nan)]
        weights = [*scaled(m, factor, settings.scales), factor * (float(model.mean[unit.memory]) - m)]
        as_long = -math.copysign(size, factor * m)  # so that another value is treated as the memory's own one would be
        own += [
            kind(OWN, labels, np.full(len(labels), unit.memory), np.array(weights)),
            kind(MEMORIES, [], unit.controls, as_long / norms[unit.controls]),
            kind(DIRECTIONS, [], directions, as_long / norms[directions]),
            kind(SIMILAR, [], near, -factor * m_all[near]),
        ]
    return [part for part in own if len(part.rows)] + placebo


def compare_with_controls(unit: UnitResults) -> list[dict]:
    """Returns the effects of the removal (c = 0) of one unit over its prefixes: rows of `BY_MEMORY` without q-values.

    What was not measured is NaN.
    """
    rows = []
    for reach in REACHES:
        of_reach = [row for row in unit.rows if row["reach"] == reach and row["scale"] == 0]
        removed = pd.DataFrame([row for row in of_reach if row["source"] == OWN])
        placebo = [row["top"] for row in of_reach if row["source"] == PLACEBO]
        first = removed.iloc[0]
        own = float(removed["top"].mean())
        # Each control on the same prefixes. A layer whose other values are all 0 has none.
        by_control = np.mean(unit.controls.get((reach, MEMORIES), [[]]), axis=0)
        others = float(by_control.mean()) if len(by_control) else np.nan
        similar = [each.mean() for each in unit.controls.get((reach, SIMILAR), [])]
        directions = unit.controls.get((reach, DIRECTIONS))
        rows.append(
            {name: first[name] for name in ("layer", "memory", "side", "reach")}
            | {"prefixes": len(removed), "silent_prefixes": len(placebo), "similar_prefixes": len(similar)}
            | {name: float(removed[name].mean()) for name in ("coefficient", "size")}
            | {
                "own": own,
                "random_memories": others,
                "random_directions": float(np.mean(directions)) if directions else np.nan,
                "similar_size": float(np.mean(similar)) if similar else np.nan,
                "placebo": float(np.mean(placebo)) if placebo else np.nan,
                "other_tokens": float(np.mean(unit.other[reach])),
                "specific": own - others,
                "p_value": permutation_p(own, by_control),
            }
            | {name: float(removed[name].mean()) for name in ("next", "divergence", "changed")}
        )
    return rows


def add_q_values(by_memory: pd.DataFrame) -> pd.DataFrame:
    """Adds q_value: p-values adjusted for all memories of the layer and the reach (Benjamini-Hochberg)."""
    adjusted = by_memory.groupby(["layer", "reach"])["p_value"].transform(lambda p: q_values(p.to_numpy(), len(p)))
    return by_memory.assign(q_value=adjusted)
