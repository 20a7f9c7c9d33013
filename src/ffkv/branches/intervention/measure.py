"""Measures what interventions on the memories of one layer do, beside their controls."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches
from ffkv.base.files.columns import REACHES
from ffkv.base.settings import Intervention
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.intervention.sample import SIDES, Place, Unit
from ffkv.branches.intervention.tables import DIRECTIONS, MEMORIES, OWN, PLACEBO, SIMILAR
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.changes import (
    as_long_as_removed,
    choose_kept,
    keep_few,
    scaled,
    set_to,
    similar_memories,
)
from ffkv.model.effects.measured import Effects, Prediction, measure_effects, predict
from ffkv.model.effects.reach import changed_ends
from ffkv.model.effects.rerun import Rerun, Unchanged, run_unchanged
from ffkv.model.head.head import Head


@dataclass(frozen=True)
class LayerModel:
    """One layer of a model that runs."""

    loaded: LoadedModel  # the proven model, which computes in float32
    head: Head
    layer: Layer
    values: Tensor  # v [memory, d]
    norms: np.ndarray  # their lengths, float64 [memory]
    mean: np.ndarray  # mean coefficients over the train split [memory]
    keeps: bool  # see `keeps`
    rerun: Rerun  # see `rerunning`
    batch_tokens: int
    settings: Intervention
    seed: int

    def effects(
        self,
        bases: Sequence[Unchanged],
        changes: Sequence[Tensor],
        predictions: Sequence[Prediction],
        tokens: Sequence[Tensor],
        reaches: Sequence[str] = REACHES,
    ) -> dict[str, list[Effects]]:
        """Returns the effects of changes of o at the last token of prefixes [prefix][change, d], by reach [prefix]."""
        ends = changed_ends(self.loaded, self.layer, self.rerun, bases, changes, reaches)
        found: dict[int, list[Effects]] = {}  # the last layer has one list of ends for both
        for own in ends.values():
            if id(own) not in found:
                read_as = self.loaded.anatomy.read_as
                found[id(own)] = measure_effects(self.head, own, predictions, tokens, read_as)
        return {reach: found[id(own)] for reach, own in ends.items()}


class Changes(NamedTuple):
    """Some changes of o on one prefix, all of one unit and of one kind."""

    unit_index: int  # number of the unit among those of the layer
    source: str  # see `ffkv.branches.intervention.tables`
    labels: list[tuple[str, float]]  # of each change: ("scale", c) or ("mean", NaN) [change]; none of controls
    vectors: Tensor  # the changes [change, d]


@dataclass
class UnitResults:
    """The measurements of one unit. Lists have an entry per prefix."""

    rows: list[dict] = field(default_factory=list)  # rows of the table `intervention/by_prefix`
    # mean change of the log-probabilities of the unit's tokens, by reach and source: [prefix][control]
    controls: dict[tuple[str, str], list[np.ndarray]] = field(default_factory=dict)
    # the same for the removal and the tokens of another memory, by reach [prefix]
    other: dict[str, list[float]] = field(default_factory=dict)


def measure_units(
    model: LayerModel,
    units: Sequence[Unit],
    tokens: Sequence[np.ndarray],
    other_tokens: Sequence[np.ndarray],
    silent: Sequence[Sequence[Place]],
    ids: dict[Place, np.ndarray],
    next_token: dict[Place, int],
) -> list[UnitResults]:
    """Changes the coefficients of some memories of a layer on their trigger examples.

    Prefixes of similar length run together.

    Args:
        tokens: ids of the top tokens of each unit's value [unit][token].
        other_tokens: ids of the top tokens of its other memory [unit][token].
        silent: prefixes on which each unit is silent [unit][prefix].
        ids: token ids of each prefix, with what precedes every sentence.
        next_token: the token that follows each prefix.
    """
    found, all_places = [UnitResults() for _ in units], [*ids]
    lengths = np.array([len(row) for row in ids.values()], np.int64)
    for group in batches(lengths, model.batch_tokens):
        places = [all_places[number] for number in group]
        (bases,) = run_unchanged(model.loaded, [model.layer], [ids[place] for place in places], model.keeps)
        changes = [_changes_at(model, units, silent, base, place) for base, place in zip(bases, places, strict=True)]
        read: list[list[dict[str, Sequence[int] | np.ndarray]]] = [
            [
                {"top": tokens[part.unit_index], "other": other_tokens[part.unit_index], "next": [next_token[place]]}
                for part in parts
            ]
            for parts, place in zip(changes, places, strict=True)
        ]
        wanted = [np.unique(np.concatenate([chosen for each in own for chosen in each.values()])) for own in read]
        predictions = predict(model.head, torch.stack([base.end for base in bases]), model.loaded.anatomy.read_as)
        device = predictions[0].p.device
        effects = model.effects(
            bases,
            [torch.cat([part.vectors for part in parts]) for parts in changes],
            predictions,
            [torch.from_numpy(own).to(device) for own in wanted],
        )
        for n, (base, place) in enumerate(zip(bases, places, strict=True)):
            names = [describe(model, units[part.unit_index], base, place) for part in changes[n]]
            for reach, of_prefixes in effects.items():
                _note_prefix(found, changes[n], names, read[n], wanted[n], reach, of_prefixes[n])
    order = {place: number for number, place in enumerate(all_places)}
    for unit in found:
        unit.rows.sort(key=lambda row: order[row["sentence"], row["position"]])
    return found


def _note_prefix(
    found: list[UnitResults],
    changes: Sequence[Changes],
    names: Sequence[dict],
    read: Sequence[dict[str, Sequence[int] | np.ndarray]],
    wanted: np.ndarray,
    reach: str,
    effects: Effects,
) -> None:
    """Notes what all changes on one prefix do.

    `names`: the columns that name unit and prefix, and `read`: the tokens by what they are, of each of `changes`. `effects`: of
    all changes, on the tokens `wanted`, ascending.
    """
    start = 0
    for part, about, by_name in zip(changes, names, read, strict=True):
        own = Effects(*(tensor[start : start + len(part.vectors)] for tensor in effects))
        start += len(part.vectors)
        log_p = {
            name: own.log_p[:, np.searchsorted(wanted, np.asarray(chosen))].mean(1).numpy()
            for name, chosen in by_name.items()
        }
        _note(found[part.unit_index], about | {"source": part.source, "reach": reach}, part.labels, log_p, own)


def _changes_at(
    model: LayerModel, units: Sequence[Unit], silent: Sequence[Sequence[Place]], base: Unchanged, place: Place
) -> list[Changes]:
    """Returns all changes on one prefix."""
    own = (_interventions_on(model, n, unit, base, place) for n, unit in enumerate(units) if place in unit.places)
    placebo = [_removal(model, n, unit, base) for n, unit in enumerate(units) if place in silent[n]]
    return [*itertools.chain.from_iterable(own), *placebo]


def contribution(model: LayerModel, unit: Unit, base: Unchanged) -> tuple[float, float]:
    """Returns the coefficient m_i of a unit on a prefix, and the length of its contribution, |s m_i| ‖v_i‖."""
    m = float(base.m[unit.memory])
    return m, abs(base.factor * m) * float(model.norms[unit.memory])


def describe(model: LayerModel, unit: Unit, base: Unchanged, place: Place) -> dict:
    """Returns the columns that name one unit and one prefix, and the unit's `contribution` there."""
    m, size = contribution(model, unit, base)
    names = {"layer": model.layer.index, "memory": unit.memory, "side": unit.side}
    return names | {"sentence": place[0], "position": place[1], "coefficient": m, "size": size}


def _interventions_on(model: LayerModel, number: int, unit: Unit, base: Unchanged, place: Place) -> list[Changes]:
    """Returns the interventions on a unit on one of its own prefixes, and their controls."""
    settings, parts = model.settings, (model.layer.index, unit.memory, SIDES.index(unit.side))
    (m, size), value, factor = contribution(model, unit, base), model.values[unit.memory], base.factor
    controls = torch.from_numpy(unit.controls).to(value.device)
    drawn = random_stream(model.seed, Purpose.CONTROL_DIRECTIONS, *parts)
    directions = torch.from_numpy(drawn.standard_normal((settings.directions, len(value)), np.float32)).to(value.device)
    drawn = random_stream(model.seed, Purpose.SIMILAR_MEMORIES, *parts, *place)
    m_all, likeness = base.m.cpu().numpy(), (settings.similar_size, settings.similar)
    near = torch.from_numpy(similar_memories(unit.memory, m_all, model.norms, *likeness, drawn)).to(value.device)
    to_mean = set_to(m, value, factor, float(model.mean[unit.memory]))
    own = torch.cat([scaled(m, value, factor, settings.scales), to_mean])
    kinds = [
        Changes(number, OWN, [*(("scale", scale) for scale in settings.scales), ("mean", np.nan)], own),
        Changes(number, MEMORIES, [], as_long_as_removed(factor * m, size, model.values[controls])),
        Changes(number, DIRECTIONS, [], as_long_as_removed(factor * m, size, directions)),
        Changes(number, SIMILAR, [], -factor * base.m.to(value.device)[near][:, None] * model.values[near]),
    ]
    return [changes for changes in kinds if len(changes.vectors)]


def _removal(model: LayerModel, number: int, unit: Unit, base: Unchanged) -> Changes:
    """Returns the removal (zero ablation) of a unit from a prefix on which it is silent."""
    vector = scaled(float(base.m[unit.memory]), model.values[unit.memory], base.factor, [0.0])
    return Changes(number, PLACEBO, [("scale", 0.0)], vector)


def _note(
    found: UnitResults, about: dict, labels: list[tuple[str, float]], log_p: dict[str, np.ndarray], effects: Effects
) -> None:
    """Adds the effects of changes of one unit and one kind on one prefix to the results of the unit."""
    if about["source"] not in (OWN, PLACEBO):
        found.controls.setdefault((about["reach"], about["source"]), []).append(log_p["top"])
        return
    for row, (change, scale) in enumerate(labels):
        measured = {"top": log_p["top"][row], "next": log_p["next"][row], "divergence": float(effects.divergence[row])}
        found.rows.append(about | {"change": change, "scale": scale, **measured, "changed": bool(effects.changed[row])})
        if about["source"] == OWN and scale == 0:
            found.other.setdefault(about["reach"], []).append(log_p["other"][row])


def measure_kept(
    model: LayerModel, numbers: Sequence[int], bases: Sequence[Unchanged], predictions: Sequence[Prediction]
) -> list[dict]:
    """Keeps a few memories of a layer, and sets the coefficients of all others to their means.

    Args:
        numbers: which of the sampled prefixes these are [prefix].
        bases: what the unchanged model does on them [prefix].
        predictions: what it predicts after them [prefix].
    Returns:
        Rows of `KEPT`.
    """
    rows, changes, mean = [], [], torch.from_numpy(model.mean.astype(np.float32)).to(model.values.device)
    for number, base in zip(numbers, bases, strict=True):
        generator = random_stream(model.seed, Purpose.KEPT_MEMORIES, model.layer.index, number)
        sets = choose_kept(base.m.cpu().numpy(), model.norms, model.settings.top_k, generator)
        kept = [torch.from_numpy(memories.copy()).to(mean.device) for _, _, memories in sets]
        changes.append(keep_few(base.m.to(mean.device), mean, model.values, base.factor, kept))
        rows += [
            {"layer": model.layer.index, "prefix": number, "choice": choice, "kept": count} for choice, count, _ in sets
        ]
    no_token = torch.zeros(0, dtype=torch.long, device=predictions[0].p.device)
    effects = model.effects(bases, changes, predictions, [no_token] * len(bases), ["total"])["total"]
    changed, divergence = (torch.cat(each).tolist() for each in zip(*((e.changed, e.divergence) for e in effects)))
    return [
        row | {"unchanged": not new, "divergence": nats}
        for row, new, nats in zip(rows, changed, divergence, strict=True)
    ]
