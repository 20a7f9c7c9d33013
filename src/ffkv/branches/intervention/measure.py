"""Changes memory coefficients in a group of layers while the model runs: of random memories, and of all but a few that are kept."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from ffkv.base.batching import batches
from ffkv.base.files import tables
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.given import Given
from ffkv.branches.intervention.settings import Intervention
from ffkv.branches.intervention.tables import BY_MEMORY, BY_PREFIX, KEPT
from ffkv.branches.intervention.units import LayerModel, add_q_values, intervene, layer_model
from ffkv.model.effects.changes import Prediction, choose_kept, keep_few, predict
from ffkv.model.effects.rerun import Running, Unchanged, run_unchanged


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

    Args:
        layers: their numbers.
        of_layer: gives a layer by its number, see `layer_model`.
        kept: number and token ids of each prefix [prefix].
        count: gets the number of prefixes after each pass.
    Returns:
        Rows of the table `KEPT`.
    """
    anatomy, rows = running.loaded.anatomy, list[dict]()
    chosen, lengths = [anatomy.layers[number] for number in layers], np.array([len(ids) for _, ids in kept])
    for group in batches(lengths, running.batch_tokens) if chosen else ():  # a group of layers can be empty
        prefixes = [kept[place] for place in group]
        found = run_unchanged(running.loaded, chosen, [ids for _, ids in prefixes], running.keeps)
        ends = torch.stack([base.end for base in found[0]])
        predictions = predict(running.head, ends, anatomy.read_as)
        for number, bases in zip(layers, found, strict=True):
            rows += measure_kept(of_layer(number), [n for n, _ in prefixes], bases, predictions)
        count(len(group))
    return sorted(rows, key=lambda row: (row["layer"], row["prefix"]))


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
