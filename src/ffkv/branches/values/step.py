"""Projects values onto the vocabulary, and summarizes their agreement with the triggers."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.activations.trigger_file import NONE, read_triggers
from ffkv.base.files import tables
from ffkv.base.files.datasets import datasets_of
from ffkv.base.process.progress import progress
from ffkv.base.settings import Values
from ffkv.base.steps import Work
from ffkv.branches.values import summaries
from ffkv.branches.values.compare import compare
from ffkv.branches.values.projections import Projections
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model import values_file
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.vocabulary import read_vocabulary
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.model.head.topk import highest, log_probabilities, lowest, moments, rank


def project_values(
    model: Path | str,
    values: Path | str,
    triggers: Path | str,
    settings: Values = Values(),
    work: Work = Work(),
) -> tuple[Projections, pd.DataFrame]:
    """Projects the values of a group of layers onto the vocabulary and compares them with their keys' triggers.

    Args:
        model: folder of the model step.
        values: file `values.h5`.
        triggers: file `triggers.h5`.
        settings: `projection` and `top_tokens` are used.
        work: the device and the layers to read.
    Returns:
        The projections, and one row per memory: see `ffkv.branches.values.compare.compare`.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; the layer group does not exist; the model
            has no single output embedding and `projection` is "unembedding".
    Examples:
        >>> files = ["results/tiny/model", "results/tiny/values.h5", "results/tiny/triggers.h5"]
        >>> projections, by_memory = ffkv.project_values(*files, ffkv.settings.Values(top_tokens=5))
        >>> projections.top_token.shape  # [memory, rank]
        (256, 5)
    """
    anatomy = read_anatomy(Path(model))
    stored = values_file.read_values(Path(values), work.part.of(len(anatomy.layers)), anatomy.identity)
    examples = read_triggers(Path(triggers), anatomy.identity)
    w = examples.next_token[examples.layer_offset[stored.layer] + stored.memory, 0]
    head = load_head(Path(model), work.device, settings.projection)
    projections, ranks = project(head, stored, settings.top_tokens, w)
    attributes = {**anatomy.identity, "projection": settings.projection}
    table = tables.identify(compare(projections, ranks, examples), examples.attributes)
    return replace(projections, attributes=attributes), table


def project(head: Head, values: values_file.Values, count: int, w: np.ndarray) -> tuple[Projections, np.ndarray]:
    """Projects the values of some layers onto the vocabulary: p_i = softmax(head(v_i)) (paper section 4).

    `count`: number of highest tokens, and of lowest tokens, to keep per value. `w`: the token that follows the first
    trigger example of each key [row]; -1 if there is none. Returns the projections without attributes; and the rank of w_i
    in the projection of v_i, int32 [row]: the number of tokens with a strictly greater logit, -1 if there is no w_i.
    """
    total, tokens = len(values.value), min(count, head.vocabulary)
    # Allocated before the loop: small arrays between large ones that are freed would keep that memory from being reused.
    sizes, parts = {"memory": total, "rank": tokens}, datasets_of(Projections, ("layer", "memory", "norm"))
    arrays = {name: np.zeros(part.shape(sizes), part.dtype) for name, (part,) in parts.items()}
    ranks = np.zeros(total, np.int32)
    with progress(total, "values", "projections") as bar:
        for layer in np.unique(values.layer).tolist():
            rows = np.flatnonzero(values.layer == layer)
            vectors = torch.from_numpy(values.value[rows])
            constant = head.logits(torch.zeros_like(vectors[:1]), layer)  # what biases in the head give to every vector
            for chunk, logits in head.chunks(vectors, layer):
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


def summarize_values(
    by_memory: Iterable[Path | str],
    model: Path | str,
    triggers: Path | str,
    train: Path | str,
    settings: Values = Values(),
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups into the tables of figures 4 to 6 and of table 2.

    Args:
        by_memory: the tables `values/by_memory/<group>.parquet`, each once.
        model: folder of the model step.
        triggers: file `triggers.h5`.
        train: file `corpus/train.h5`.
        settings: `predictive` and `bins` are used.
        seed: seed of the permutations.
    Returns:
        The tables by the stem of their file.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model or corpus; a layer is missing or repeated.
    Examples:
        >>> by_memory = [f"results/tiny/values/by_memory/{group}.parquet" for group in (0, 1)]
        >>> files = ["results/tiny/model", "results/tiny/triggers.h5", "results/tiny/corpus/train.h5"]
        >>> list(ffkv.summarize_values(by_memory, *files)["figure_5_rank"]["layer"])
        [0, 1]
    """
    anatomy = read_anatomy(Path(model))
    examples = read_triggers(Path(triggers), anatomy.identity)
    sentences = read_corpus(Path(train), examples.attributes)
    table = tables.read_all(by_memory, examples.attributes)
    tables.check_layers(table, ["layer", "memory"], set(range(len(anatomy.layers))), "--by-memory")
    predictive = summaries.select_predictive(table, settings.predictive)
    tokens = read_vocabulary(Path(model))
    once, empty = examples.settings.shared_prefixes_compete == "once", examples.settings.include_empty_prefix
    competing = CompetingPrefixes(sentences, once, empty)
    return {
        "figure_4_agreement": summaries.summarize_agreement(table, competing.count_next_tokens(len(tokens)), seed),
        "figure_5_rank": summaries.summarize_rank(table),
        "figure_6_top_probability": summaries.summarize_top_probability(table, settings.bins),
        "table_2_predictive_values": summaries.describe_predictive(predictive, examples, sentences, tokens),
        "table_2_predictive_layers": summaries.count_predictive(predictive, len(anatomy.layers)),
    }
