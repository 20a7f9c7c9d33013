"""Projects values onto the vocabulary, and compares them with their keys' trigger examples (paper section 4)."""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.activations.trigger_file import NONE, Triggers
from ffkv.base.files import tables
from ffkv.base.files.datasets import datasets_of
from ffkv.base.process.progress import progress
from ffkv.branches.given import Given
from ffkv.branches.values.projections import Projections
from ffkv.branches.values.settings import Values
from ffkv.model import values_file
from ffkv.model.head.lens import Lens
from ffkv.model.head.topk import highest, log_probabilities, lowest, moments, rank


def project_values(given: Given, settings: Values = Values()) -> tuple[Projections, pd.DataFrame]:
    """Projects the values of a group of layers onto the vocabulary and compares them with their keys' triggers.

    `settings`: `projection` and `top_tokens` are used. Returns the projections, and one row per memory: see `compare`.
    """
    stored, examples = given.values_of(given.layers), given.triggers
    w = examples.next_token[examples.layer_offset[stored.layer] + stored.memory, 0]
    projections, ranks = project(given.head(settings.projection), stored, settings.top_tokens, w)
    attributes = {**given.identity, "projection": settings.projection}
    table = tables.identify(compare(projections, ranks, examples), given.train_identity)
    return replace(projections, attributes=attributes), table


def project(lens: Lens, values: values_file.Values, count: int, w: np.ndarray) -> tuple[Projections, np.ndarray]:
    """Projects the values of some layers onto the vocabulary: p_i = softmax(head(v_i)), or what another lens reads (paper section 4).

    `count`: number of highest tokens, and of lowest tokens, to keep per value. `w`: the token that follows the first
    trigger example of each key [row]; -1 if there is none. Returns the projections without attributes; and the rank of w_i
    in the projection of v_i, int32 [row]: the number of tokens with a strictly greater logit, -1 if there is no w_i.
    """
    total, tokens = len(values.value), min(count, lens.vocabulary)
    # Allocated before the loop: small arrays between large ones that are freed would keep that memory from being reused.
    sizes, parts = {"memory": total, "rank": tokens}, datasets_of(Projections, ("layer", "memory", "norm"))
    arrays = {name: np.zeros(part.shape(sizes), part.dtype) for name, (part,) in parts.items()}
    ranks = np.zeros(total, np.int32)
    with progress(total, "values", "projections") as bar:
        for layer in np.unique(values.layer).tolist():
            rows = np.flatnonzero(values.layer == layer)
            vectors = torch.from_numpy(values.value[rows])
            constant = lens.change(torch.zeros_like(vectors[:1]), layer)  # what biases in the head give to every vector
            for chunk, logits in lens.chunks(vectors, layer, change=True):
                for name, result in (describe_logits(logits, count) | moments(logits, constant)).items():
                    arrays[name][rows[chunk]] = result.cpu().numpy()
                w_of_chunk = torch.from_numpy(w[rows[chunk]].astype(np.int64)).to(logits.device)
                ranks[rows[chunk]] = rank(logits, w_of_chunk.clamp(min=0)).cpu().numpy()
                bar.update(chunk.stop - chunk.start)
    ranks[w == NONE] = -1
    return Projections(layer=values.layer, memory=values.memory, norm=values.norm, attributes={}, **arrays), ranks


def describe_logits(logits: Tensor, count: int) -> dict[str, Tensor]:
    """Returns the fields of `Projections` that depend on logits [row, vocabulary]."""
    top, bottom = highest(logits, count), lowest(logits, count)
    of_top, of_bottom = log_probabilities(logits, torch.cat([top.ids, bottom.ids], 1)).chunk(2, 1)
    return {
        "top": top.first,
        "tied": top.tied,
        "top_token": top.ids,
        "top_log_probability": of_top,
        "bottom": bottom.first,
        "bottom_token": bottom.ids,
        "bottom_log_probability": of_bottom,
    }


def compare(projections: Projections, ranks: np.ndarray, triggers: Triggers) -> pd.DataFrame:
    """Compares values of some layers with the trigger examples of their keys (paper section 4, figures 4 to 6).

    `ranks`: rank of w_i in the projection of v_i [row]; -1 if the key has no trigger example. Returns the table `BY_MEMORY`.
    """
    rows = triggers.layer_offset[projections.layer] + projections.memory
    next_tokens = triggers.next_token[rows]
    matches = (next_tokens == projections.top[:, None]) & (next_tokens != NONE)
    table = pd.DataFrame(
        {
            "layer": projections.layer,
            "memory": projections.memory,
            "norm": projections.norm,
            "contribution": projections.norm * triggers.coefficient[rows].sum(1) / np.maximum(triggers.count[rows], 1),
            "top_token": projections.top,
            "top_probability": np.exp(projections.top_log_probability[:, 0]),
            "tied": projections.tied,
            "bottom_token": projections.bottom,
            "triggers": triggers.count[rows],
            "next_token": next_tokens[:, 0],
            "rank": ranks,
            "agrees": matches[:, 0],
            "matching": matches.sum(1),
            "first_match": np.where(matches.any(1), matches.argmax(1), -1),
        }
    )
    if triggers.negative:
        table["negative_triggers"] = triggers.negative.count[rows]
        table["negative_next_token"] = triggers.negative.next_token[rows, 0]
        table["negative_agrees"] = table["negative_next_token"] == table["bottom_token"]
    return table.astype({"matching": np.int32, "first_match": np.int32})
