"""Trigger examples of every key (paper section 3.1): one pass over the corpus, nothing stored but the top t."""

import functools
from itertools import islice

from torch import Tensor

from ffkv.activations import packing
from ffkv.activations.batches import Batch, batches_of, check_longest, describe
from ffkv.activations.pass_state import PassState, start, triggers_of
from ffkv.activations.resume import ProgressFile, resuming
from ffkv.activations.trigger_file import Triggers
from ffkv.base.errors import UserError
from ffkv.base.parts import WHOLE, Part
from ffkv.base.process.progress import progress
from ffkv.base.settings import Batches
from ffkv.base.settings import Triggers as TriggerSettings
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.quantities import OnTensor
from ffkv.model.tap.tap import tap


def find_triggers(
    loaded: LoadedModel,
    corpus: Corpus,
    settings: TriggerSettings,
    batching: Batches,
    shard: Part = WHOLE,
    progress_file: ProgressFile | None = None,
) -> Triggers:
    """Finds the top t prefixes of every key, and its statistics, over one shard of the train split.

    Every proper prefix of every sentence competes: its first j >= 1 tokens after BOS, without the whole sentence, which
    no token follows. It competes with its coefficient m_i at its last token. One forward pass of a sentence gives the
    coefficients of all its prefixes. A prefix that several sentences begin with competes once, in one of them, unless
    `settings.shared_prefixes_compete` is "per_sentence"; the statistics count it in every one of them. If a layer's
    coefficients can be negative, the lowest ones are kept apart by the same rules.

    The state is saved into `progress_file` from time to time and continued from there; the result is the same.

    Raises:
        UserError: the empty prefix is to compete, but there is no BOS; the corpus has more than 2^31 prefixes; or
            coefficients overflow.
    """
    check(corpus, settings)
    check_longest(loaded, corpus, batching)
    competing = CompetingPrefixes(corpus, settings.shared_prefixes_compete == "once", settings.include_empty_prefix)
    state = start(loaded.anatomy.layers, settings, loaded.devices)
    total = sum(int(corpus.lengths[sentences].sum()) for sentences in batches_of(competing, batching, shard))
    with (
        resuming(progress_file, state) as save_if_due,
        tap(loaded.model, loaded.anatomy.layers, "gm") as run,
        progress(total, "tokens", "triggers", state.tokens) as bar,
    ):
        for sentences in islice(batches_of(competing, batching, shard), state.batches, None):
            batch = describe(competing, sentences, loaded.device)
            run(batch.ids, adding(state, batch))
            state.count(batch)
            bar.update(batch.tokens)
            save_if_due()
    return triggers_of(state, competing, loaded)


def check(corpus: Corpus, settings: TriggerSettings) -> None:
    """Refuses a corpus whose triggers cannot be found, see `find_triggers`."""
    if settings.include_empty_prefix and not len(corpus.bos):
        raise UserError(
            "triggers.include_empty_prefix needs a BOS token in front of sentences: set corpus.bos to 'always'."
        )
    if len(corpus.tokens) + len(corpus) >= packing.PLACES:
        raise UserError(
            f"The corpus has {len(corpus.tokens):,} tokens; at most 2^31 can be told apart. Set corpus.limit."
        )


def adding(state: PassState, batch: Batch) -> OnTensor:
    """Returns what a forward pass of a batch passes its gates g and coefficients m to: it adds them to a state."""
    gates: dict[int, Tensor] = {}
    batch_on = functools.cache(batch.on)  # of a model on several devices each gets the batch once

    def add(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if quantity == "g":  # comes before the layer's m
            gates[layer.index] = tensor
            return
        own = batch_on(tensor.device)
        state.add(own, layer, tensor, gates.pop(layer.index, None))

    return add
