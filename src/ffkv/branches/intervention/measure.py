"""Changes memory coefficients in a group of layers while the model runs: of random memories, and of all but a few that are kept."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.base.batching import batches, to_device
from ffkv.base.files import tables
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.given import Given
from ffkv.branches.intervention.settings import Intervention
from ffkv.branches.intervention.tables import BY_MEMORY, BY_PREFIX, KEPT
from ffkv.branches.intervention.units import LayerModel, add_q_values, intervene, layer_model
from ffkv.model.effects.changes import Prediction, choose_kept, keep_few, measure_effects, predict
from ffkv.model.effects.rerun import Running, Unchanged, rerunning_layers, run_unchanged


class Measured(NamedTuple):
    """What interventions in a group of layers did. docs/formats.md lists the columns."""

    by_prefix: pd.DataFrame  # one row per memory, side, prefix, change and reach
    by_memory: pd.DataFrame  # one row per memory, side and reach
    kept: pd.DataFrame  # one row per prefix, choice and number of kept memories


def measure_interventions(given: Given, settings: Intervention = Intervention(), seed: int = 0) -> Measured:
    """Changes the coefficients of random memories of a group of layers, with controls (docs/interventions.md).

    The model computes in float32, whatever the type of its weights, because a contribution is small beside the
    residual. `settings`: how many memories, prefixes and controls.
    """
    sentence, position, count = given.sampled("sentence"), given.sampled("position"), len(given.sampled("sentence"))
    drawn = random_stream(seed, Purpose.KEPT_PREFIXES).choice(count, min(settings.top_k_prefixes, count), replace=False)
    # Of every layer.
    kept = [(n, given.validation.prefix_ids(sentence[n], position[n])) for n in np.sort(drawn).tolist()]
    examples, top, sentences = given.triggers, given.projections, given.train
    with given.running() as its:
        if not its.keeps:
            say("Prefixes are run again as a whole: this model keeps no keys and values as others do.")
        of_layer = partial(layer_model, its, triggers=examples, settings=settings, seed=seed)
        by_prefix, by_memory = [], []
        for layer in given.each_layer("interventions"):
            prefix_rows, memory_rows = intervene(of_layer(layer), examples, top, sentences)
            by_prefix += prefix_rows
            by_memory += memory_rows
        with progress(len(kept), "prefixes", "kept memories") as bar:
            of_kept = keep(its, given.layers, of_layer, kept, bar.update)
    return Measured(
        tables.frame(BY_PREFIX, by_prefix, given.train_identity),
        tables.identify(add_q_values(BY_MEMORY.frame(by_memory)), given.train_identity),
        tables.frame(KEPT, of_kept, given.sample_identity),
    )


def keep(
    running: Running,
    layers: Sequence[int],
    of_layer: Callable[[int], LayerModel],
    kept: Sequence[tuple[int, np.ndarray]],
    count: Callable[[int], object],
) -> list[dict]:
    """Keeps a few memories of each of some layers on some prefixes.

    Prefixes of similar length run together. One pass of the unchanged model serves all layers.

    `layers`: their numbers. `of_layer`: gives a layer by its number, see `layer_model`. `kept`: number and token ids of each
    prefix [prefix]. `count`: gets the number of prefixes after each pass. Returns rows of the table `KEPT`.
    """
    loaded, rows, rerun = running.loaded, list[dict](), rerunning_layers(running)
    models, lengths = [of_layer(number) for number in layers], np.array([len(ids) for _, ids in kept])
    for group in batches(lengths, running.batch_tokens) if models else ():  # a group of layers can be empty
        numbers, ids = zip(*(kept[place] for place in group), strict=True)
        found = run_unchanged(loaded, [model.layer for model in models], ids, running.keeps)
        predictions = predict(running.head, torch.stack([base.end for base in found[0]]), loaded.anatomy.read_as)
        every_m = [torch.stack([base.m for base in bases]) for bases in found]
        on_cpu = torch.cat([m.to(every_m[0].device) for m in every_m], 1).cpu().numpy()  # a GPU is waited for once
        m = np.split(on_cpu, np.cumsum([m.shape[1] for m in every_m])[:-1], axis=1)
        room = max(1, running.batch_tokens // (len(group) * (len(choices(models[0].settings)) + 1)))
        for first in range(0, len(models), room):
            part = slice(first, first + room)
            changes = [*map(partial(changes_of_kept, numbers), models[part], found[part], m[part])]
            ends = rerun([model.layer for model in models[part]], found[part], changes)
            rows += measure_kept(models[part], numbers, ends, predictions)
        count(len(group))
    return sorted(rows, key=lambda row: (row["layer"], row["prefix"]))


def changes_of_kept(numbers: Sequence[int], model: LayerModel, bases: Sequence[Unchanged], m: np.ndarray) -> Tensor:
    """Chooses the memories of a layer that are kept on prefixes; returns by what o changes if all others become their means.

    `numbers`: which of the sampled prefixes these are [prefix]. `bases`: what the unchanged model does on them [prefix]. `m`:
    coefficients of the layer on them [prefix, memory]. Returns [prefix, choice, d].
    """
    drawn = [random_stream(model.seed, Purpose.KEPT_MEMORIES, model.layer.index, number) for number in numbers]
    kept = choose_kept(m, model.norms, model.settings.top_k, drawn)
    given = m, model.mean.astype(np.float32), np.array([[base.factor] for base in bases], np.float32), kept
    own, mean, factor, few = (to_device(each, str(model.values.device)) for each in given)
    return keep_few(own, mean, model.values, factor, few)


def measure_kept(
    models: Sequence[LayerModel], numbers: Sequence[int], ends: Sequence[Sequence[Tensor]], predictions: Prediction
) -> list[dict]:
    """Tells what it does to keep a few memories: rows of `KEPT`.

    `models`: the layers whose other memories change. `numbers`: which of the sampled prefixes these are [prefix]. `ends`: what
    the head reads then [layer][prefix][choice, d]. `predictions`: what the unchanged model predicts after the prefixes.
    """
    its, rows = models[0].running, list[dict]()
    of_prefixes = torch.stack([torch.stack([*of_layer]) for of_layer in ends], 1)  # [prefix, layer, choice, d]
    no_token, read_as = [torch.zeros(0, dtype=torch.long)] * len(numbers), its.loaded.anatomy.read_as
    about = [(model, *choice) for model in models for choice in choices(models[0].settings)]
    measured = measure_effects(its.head, [*of_prefixes.flatten(1, 2)], predictions, no_token, read_as)
    for number, effects in zip(numbers, measured, strict=True):
        found = zip(about, effects.changed.tolist(), effects.divergence.tolist(), strict=True)
        rows += [
            {"layer": model.layer.index, "prefix": number, "choice": choice}
            | {"kept": len(model.norms) if kept is None else kept, "unchanged": not changed, "divergence": divergence}
            for (model, choice, kept), changed, divergence in found
        ]
    return rows


def choices(settings: Intervention) -> list[tuple[str, int | None]]:
    """Returns which memories are kept, and how many, in the order of `choose_kept`. None: all."""
    return [*((choice, count) for choice in ("largest", "random") for count in settings.top_k), ("all", None)]
