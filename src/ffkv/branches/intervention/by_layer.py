"""Interventions by layer: draws memories, prefixes and controls, and measures them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.last_token import for_each_last_token
from ffkv.activations.trigger_file import Triggers
from ffkv.base.batching import batches
from ffkv.base.settings import Intervention
from ffkv.branches.intervention.measure import LayerModel, measure_kept, measure_units
from ffkv.branches.intervention.sample import Place, Unit, choose_silent, sample_units
from ffkv.branches.intervention.significance import compare_with_controls
from ffkv.branches.values.projections import Projections
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.measured import predict
from ffkv.model.effects.rerun import Rerun, run_unchanged
from ffkv.model.head.head import Head
from ffkv.model.value_vectors import values_in_place


class Inputs(NamedTuple):
    """What the interventions on every layer read. The model computes in float32.

    `kept`: number and token ids of the prefixes on which a few memories are kept, see `keep`. `keeps`: see `rerun.keeps`.
    `reruns`: see `rerunning` [layer].
    """

    loaded: LoadedModel
    head: Head
    examples: Triggers
    projections: Projections
    train: Corpus
    kept: list[tuple[int, np.ndarray]]
    keeps: bool
    reruns: Sequence[Rerun]
    settings: Intervention
    batch_tokens: int
    seed: int


def intervene(inputs: Inputs, number: int) -> tuple[list[dict], list[dict]]:
    """Changes the coefficients of random memories of one layer, by its number.

    Returns:
        Rows of the tables `BY_PREFIX` and `BY_MEMORY` (without q-values).
    """
    layer, top_token = inputs.loaded.anatomy.layers[number], inputs.projections.top_token
    model = _layer_model(inputs, layer)
    units = sample_units(inputs.examples, number, model.norms, inputs.settings, inputs.seed)
    top = top_token[inputs.projections.layer == number][:, : inputs.settings.tokens].astype(np.int64)
    places = [*dict.fromkeys(place for unit in units for place in unit.places)]
    next_token = {
        place: int(token) for unit in units for place, token in zip(unit.places, unit.next_tokens, strict=True)
    }
    ids = {place: inputs.train.prefix_ids(*place) for place in places}
    silent = _silent_places(model, units, places, [*ids.values()], inputs.batch_tokens)
    tokens, other_tokens = [top[unit.memory] for unit in units], [top[unit.other] for unit in units]
    found = measure_units(model, units, tokens, other_tokens, silent, ids, next_token)
    by_prefix = [row for unit in found for row in unit.rows]
    by_memory = [row for unit in found for row in compare_with_controls(unit)]
    return by_prefix, by_memory


def keep(inputs: Inputs, numbers: Sequence[int], count: Callable[[int], object]) -> list[dict]:
    """Keeps a few memories of each of some layers, by their numbers, on the prefixes `inputs.kept`.

    Prefixes of similar length run together. One pass of the unchanged model serves all layers. `count` gets the number of
    prefixes after each pass.

    Returns:
        Rows of the table `KEPT`.
    """
    layers = [inputs.loaded.anatomy.layers[number] for number in numbers]
    lengths, rows = np.array([len(ids) for _, ids in inputs.kept]), []
    for group in batches(lengths, inputs.batch_tokens) if layers else ():  # a group of layers can be empty
        prefixes = [inputs.kept[place] for place in group]
        found = run_unchanged(inputs.loaded, layers, [ids for _, ids in prefixes], inputs.keeps)
        ends = torch.stack([base.end for base in found[0]])
        predictions = predict(inputs.head, ends, inputs.loaded.anatomy.read_as)
        for layer, bases in zip(layers, found, strict=True):
            rows += measure_kept(_layer_model(inputs, layer), [n for n, _ in prefixes], bases, predictions)
        count(len(group))
    return sorted(rows, key=lambda row: (row["layer"], row["prefix"]))


def _layer_model(inputs: Inputs, layer: Layer) -> LayerModel:
    v, _ = values_in_place(inputs.loaded.model, layer)
    norms = v.double().norm(dim=1).cpu().numpy()
    mean = inputs.examples.mean[inputs.examples.rows(layer.index)]
    ways = (inputs.keeps, inputs.reruns[layer.index], inputs.batch_tokens)
    return LayerModel(inputs.loaded, inputs.head, layer, v, norms, mean, *ways, inputs.settings, inputs.seed)


def _silent_places(
    model: LayerModel, units: Sequence[Unit], places: Sequence[Place], rows: Sequence[np.ndarray], batch_tokens: int
) -> list[list[Place]]:
    """Chooses, for each unit, prefixes of the other units on which it is silent [unit][prefix]."""
    m = np.zeros((len(units), len(places)), np.float32)
    memories = [unit.memory for unit in units]

    def on_tensor(numbers: np.ndarray, layer: Layer, quantity: str, tensor: Tensor) -> None:
        m[:, numbers] = tensor[:, memories].float().cpu().numpy().T

    for_each_last_token(model.loaded, [model.layer], "m", rows, batch_tokens, on_tensor)
    silent = []
    for unit, m_of_unit in zip(units, m, strict=True):
        own = np.array([place in unit.places for place in places])
        others = np.flatnonzero(~own)
        chosen = choose_silent(m_of_unit[own], m_of_unit[others], model.settings.silent_below, model.settings.examples)
        silent.append([places[number] for number in others[chosen]])
    return silent
