"""Trigger examples of every key (paper section 3.1): one pass over the corpus, nothing stored but the top t."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ffkv.activations import packing
from ffkv.activations.batches import Batch, describe
from ffkv.activations.pass_state import PassState, start, triggers_of
from ffkv.activations.resume import ProgressFile, resuming
from ffkv.activations.stages import Stage, count_tokens, stages_of
from ffkv.activations.trigger_file import Triggers
from ffkv.base.errors import UserError
from ffkv.base.parts import WHOLE, Part
from ffkv.base.process.progress import progress
from ffkv.base.settings import Activations
from ffkv.base.settings import Triggers as TriggerSettings
from ffkv.base.terminal import say
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.beginning import (
    KeysValues,
    can_read_on,
    empty_cache,
    join_beginnings,
    keep_beginning,
    read_on,
)
from ffkv.model.tap.tap import tap

if TYPE_CHECKING:
    from transformers import DynamicCache

OnCoefficients = Callable[[Batch, Layer, Tensor, Tensor | None], None]

Run = Callable[..., None]  # see `coefficients`


def find_triggers(
    loaded: LoadedModel,
    corpus: Corpus,
    settings: TriggerSettings,
    batching: Activations,
    shard: Part = WHOLE,
    progress_file: ProgressFile | None = None,
) -> Triggers:
    """The top t prefixes of every key, and its statistics, over one shard of a corpus.

    Every proper prefix of every sentence competes: its first j >= 1 tokens after BOS, without the whole sentence, which
    no token follows. It competes with its coefficient m_i at its last token. One forward pass of a sentence gives the
    coefficients of all its prefixes. A prefix that several sentences begin with competes once, in one of them, unless
    `settings.identical_prefixes` is "each"; the statistics count it in every one of them. If a layer's coefficients can be
    negative, the lowest ones are kept apart by the same rules.

    Args:
        loaded: the proven model.
        corpus: the train split.
        settings: which prefixes compete, and how many are kept per key.
        batching: how sentences are cut into batches.
        shard: which part of the corpus.
        progress_file: where the state is saved from time to time and continued from; the result is the same.
    Raises:
        UserError: the empty prefix is to compete, but there is no BOS; the corpus has more than 2^31 prefixes; or
            coefficients overflow.
    """
    check(corpus, settings)
    competing = CompetingPrefixes(corpus, settings.identical_prefixes == "once", settings.include_empty_prefix)
    state = start(loaded.anatomy.layers, settings, loaded.devices)
    pays = any(stage.others for stage in stages_of(competing, batching, shard))
    if pays and not can_read_on(loaded):
        say("Sentences that begin alike are each read whole: this model cannot read on from a beginning.", error=True)
        pays = False
    stages, total = stages_of(competing, batching, shard, read_on=pays), count_tokens(competing, batching, shard)
    with (
        resuming(progress_file, state) as save_if_due,
        coefficients(loaded) as run,
        progress(total, "tokens", "triggers", state.tokens) as bar,
    ):
        for batch in run_stages(stages, competing, loaded.device, state, run):
            state.count(batch)
            bar.update(batch.tokens)
            save_if_due()
    return triggers_of(state, competing, loaded)


def run_stages(
    stages: Iterable[Stage], competing: CompetingPrefixes, device: str, state: PassState, run: Run
) -> Iterator[Batch]:
    """Adds the batches of stages to a state, all but the first `state.batches`, which it has already; yields each one."""
    end, done = 0, state.batches
    for stage in stages:
        number, end = end, end + len(stage)
        if end <= done:
            continue
        kept: list[KeysValues] = []
        for sentences in stage.whole:
            added, number = number < done, number + 1
            if added and not stage.others:
                continue
            batch, cache = describe(competing, sentences, device), empty_cache() if stage.others else None
            run(batch, _ignore if added else state.add, cache)  # of one that was added only the beginnings are needed
            if cache is not None:
                kept.append(keep_beginning(cache, stage.begin))
                del cache  # as large as the whole batch
            if not added:
                yield batch
        beginnings = join_beginnings(kept)
        kept.clear()
        for sentences, like in zip(stage.others, stage.like, strict=True):
            added, number = number < done, number + 1
            if not added:
                batch = describe(competing, sentences, device, stage.begin)
                run(batch, state.add, read_on(beginnings, torch.from_numpy(like)))
                yield batch


def _ignore(_batch: Batch, _layer: Layer, _m: Tensor, _gate: Tensor | None) -> None:
    """Receives coefficients that are not needed."""


def check(corpus: Corpus, settings: TriggerSettings) -> None:
    """Refuses a corpus whose triggers cannot be found.

    Raises:
        UserError: see `find_triggers`.
    """
    if settings.include_empty_prefix and not len(corpus.bos):
        raise UserError(
            "triggers.include_empty_prefix needs a BOS token in front of sentences: set corpus.bos to 'always'."
        )
    if len(corpus.tokens) + len(corpus) >= packing.PLACES:
        raise UserError(
            f"The corpus has {len(corpus.tokens):,} tokens; at most 2^31 can be told apart. Set corpus.limit."
        )


@contextlib.contextmanager
def coefficients(loaded: LoadedModel) -> Iterator[Run]:
    """Yields `run(batch, on_coefficients, cache)`: one forward pass of a batch, which reads on from a cache if it has one.

    It calls `on_coefficients(batch, layer, m, gate)` for each layer as soon as the model has computed it: the batch on the
    layer's device; m in float32, 0 where the batch leaves prefixes out [sentence, token, key]; gate tells whether the gate
    is positive, and is None if the layer has no gates.
    """
    batches: dict[torch.device, Batch] = {}
    on_coefficients: OnCoefficients
    gate: Tensor | None = None

    def on_tensor(layer: Layer, quantity: str, tensor: Tensor) -> None:
        nonlocal gate
        if quantity == "g":  # comes before the layer's m
            gate = tensor
            return
        layer_gate, gate = gate, None
        if tensor.device not in batches:
            batches[tensor.device] = next(iter(batches.values())).on(tensor.device)
        batch = batches[tensor.device]
        with zeroed(tensor, batch.left_out):
            on_coefficients(batch, layer, tensor.float(), layer_gate)

    with tap(loaded.model, loaded.anatomy.layers, "gm") as forward:

        def run(next_batch: Batch, receiver: OnCoefficients, cache: DynamicCache | None = None) -> None:
            nonlocal on_coefficients
            on_coefficients = receiver
            batches.clear()
            batches[next_batch.ids.device] = next_batch
            forward(
                next_batch.ids, on_tensor, **({} if cache is None else {"past_key_values": cache, "use_cache": True})
            )

        yield run


@contextlib.contextmanager
def zeroed(m: Tensor, left_out: Tensor | None) -> Iterator[None]:
    """Inside the `with` statement, coefficients [sentence, token, key] are 0 at some flat positions; None for no position.

    Afterwards they are what they were: the model goes on with them, and later tokens depend on them.
    """
    if left_out is None:
        yield
        return
    rows = m.view(-1, m.shape[-1])
    original = rows[left_out]
    rows[left_out] = 0
    yield
    rows[left_out] = original
