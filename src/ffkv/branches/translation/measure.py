"""Reads values and states through the maps of their layers."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from ffkv.base.files import tables
from ffkv.branches.given import Given
from ffkv.branches.translation.maps import read_maps
from ffkv.branches.translation.tables import BY_MEMORY, BY_PREFIX
from ffkv.branches.values.project import compare, project
from ffkv.branches.values.projections import Projections
from ffkv.model.head.lens import MappedLens
from ffkv.model.head.topk import predictions


def measure_translation(given: Given) -> tuple[Projections, pd.DataFrame, pd.DataFrame]:
    """Reads the values, and r and y of the sampled prefixes, of a group of layers through their maps: `maps`, or `jacobian_maps`.

    Returns the translated projections; a row per memory and reading, `BY_MEMORY`; and one per prefix, layer and reading, `BY_PREFIX`.
    """
    maps = given.files.get("maps") or given.files["jacobian_maps"]
    plain, examples = given.projections, given.triggers
    fitted, stored = read_maps(maps, given.identity, given.layers), given.values_of(given.layers)
    kind, count = str(plain.attributes["projection"]), plain.top_token.shape[1]
    head = given.head()
    head_of_values = head if kind == "head" else given.head(kind)
    lenses = {
        reading: [MappedLens(each, partial(fitted.map_of, reading)) for each in (head, head_of_values)]
        for reading in fitted.readings
    }
    final = predictions(head, given.end, head.read_as).ids
    found: list[Projections] = []
    by_memory, by_prefix = [], []
    for layer in given.each_layer("translation"):
        states, own = given.states(layer, "yrm"), stored.of_layer(layer)
        w = examples.next_token[examples.layer_offset[layer] + own.memory, 0]
        top = plain.top[plain.layer == layer]
        for reading, (lens, lens_of_values) in lenses.items():
            projected, ranks = project(lens_of_values, own, count, w)
            table = compare(projected, ranks, examples)
            of_head = {"head_top_token": top, "head_agrees": (top == w) & (w >= 0)}
            by_memory.append(table.assign(reading=reading, **of_head))
            r = predictions(lens, states.r, layer, final)
            y = predictions(lens_of_values, states.y, layer, change=True)
            agrees = projected.top[None] == y.ids[:, None]  # memories that predict what y predicts [prefix, memory]
            read = {
                "reading": reading,
                "layer": layer,
                "prefix": np.arange(len(final), dtype=np.int32),
                "top_residual": r.ids,
                "top_ffn": y.ids,
                "final": final,
                "probability": r.probability,
                "tied": r.tied.astype(np.int8) + y.tied,
                "agreeing": ((states.m > 0) & agrees).sum(1).astype(np.int32),
                "agreeing_all": agrees.sum(1).astype(np.int32),
            }
            none = dict.fromkeys(("agreeing", "agreeing_all"), -1) if layer in given.anatomy.of_stream else {}
            by_prefix.append(pd.DataFrame({**read, **none}))
            found += [projected] if reading == fitted.readings[0] else []
    names = {field for field in vars(plain) if field != "attributes"}
    joined = {name: np.concatenate([getattr(each, name) for each in found]) for name in names if found}
    about = {**given.identity, "projection": kind, "readout": fitted.readings[0]}
    return (
        replace(plain, **joined, attributes=about),
        tables.frame(BY_MEMORY, by_memory, given.train_identity),
        tables.frame(BY_PREFIX, by_prefix, given.sample_identity),
    )
