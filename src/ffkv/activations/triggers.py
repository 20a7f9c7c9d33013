"""Trigger examples of every key (paper section 3.1): one pass over the corpus, nothing stored but the top t.

On a GPU, one kernel adds what a batch says to the statistics, and finds the triggers in it: it reads each coefficient once.
Operations of torch, one after the other, would read and write the coefficients some forty times, and the processor would
take longer to start them than the GPU takes for a layer of a small model. Triton comes with torch for CUDA.
"""

import contextlib
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.batches import Batch, Batching, batches_of, check_longest, describe, in_cache
from ffkv.activations.resume import STATISTICS, ProgressFile, on_host, resuming
from ffkv.activations.statistics import Statistics, sums
from ffkv.activations.top_t import PLACES, TopT, unpack
from ffkv.activations.trigger_file import NONE, Negative, Triggers
from ffkv.base.errors import UserError, one_line
from ffkv.base.process.progress import progress
from ffkv.base.settings import Triggers as TriggerSettings
from ffkv.base.steps import WHOLE, Part
from ffkv.base.terminal import say
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.tap import OnTensor, tap

# A program of the kernel reads so many keys of so many sentences, one sentence after the other, so many tokens at a time. It is
# one warp: each thread has keys of its own.
KEYS, SENTENCES, TOKENS = 128, 4, 8


def find_triggers(
    loaded: LoadedModel,
    corpus: Corpus,
    settings: TriggerSettings,
    batching: Batching,
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
            counts = state.batches + 1, state.tokens + batch.tokens, state.prefixes + batch.prefixes
            state.batches, state.tokens, state.prefixes = counts
            bar.update(batch.tokens)
            save_if_due()
    return triggers_of(state, competing, loaded)


def check(corpus: Corpus, settings: TriggerSettings) -> None:
    """Refuses a corpus whose triggers cannot be found, see `find_triggers`."""
    if settings.include_empty_prefix and not len(corpus.bos):
        raise UserError(
            "triggers.include_empty_prefix needs a BOS token in front of sentences: set corpus.bos to 'always'."
        )
    if len(corpus.tokens) + len(corpus) >= PLACES:
        raise UserError(
            f"The corpus has {len(corpus.tokens):,} tokens; at most 2^31 can be told apart. Set corpus.limit."
        )


@functools.cache
def can_scan(device: torch.device) -> bool:
    """Tells whether the kernel runs on a device: a GPU, with Triton, which needs a C compiler to start a kernel."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    try:
        from ffkv.activations.scan_kernel import nothing

        nothing[(1,)](torch.zeros(1, dtype=torch.int32, device=device))
    except Exception as error:
        told = "Operations of torch find triggers, which takes longer."
        say(f"Triton starts no kernel here ({one_line(error, 200)}). {told}", error=True)
        return False
    return True


def scan(found: Statistics, batch: Batch, m: Tensor, gate: Tensor | None, two_sided: bool) -> Tensor:
    """Adds the coefficients of one layer on one batch to its statistics; returns the best prefix of each sentence.

    `batch`, `m`, `gate`: see `PassState.add`. Only prefixes that compete are read. `two_sided`: whether negative coefficients are
    counted, and the lowest of each sentence are returned, too. Returns packed triggers, see `top_t`: of the highest coefficients,
    and of the lowest [1 or 2, sentence, key].
    """
    from ffkv.activations.scan_kernel import kernel  # Triton is not on every machine

    sentences, _, keys = m.shape
    triggers = m.new_empty(2 if two_sided else 1, sentences, keys, dtype=torch.int64)
    names = ("total", "fires", "fires_negative", "maximum", "minimum")
    kernel[(-(-keys // KEYS), -(-sentences // SENTENCES))](
        m.contiguous(),
        m if gate is None else gate.contiguous().view(torch.uint8),
        batch.multiplicity,
        batch.histogram_times,
        batch.place,
        triggers,
        *(getattr(found, name) for name in names),
        found.finite.view(torch.uint8),
        found.histogram,
        *m.shape,
        before=batch.competing.start or 0,
        has_gate=gate is not None,
        two_sided=two_sided,
        per_program=SENTENCES,
        block_tokens=TOKENS,
        block_keys=KEYS,
        num_warps=1,
    )
    return triggers


@dataclass
class PassState:
    """The state of a trigger pass."""

    highest: list[TopT]  # the top t of positive coefficients [layer]
    lowest: list[TopT]  # the top t of negative coefficients [layer]; empty if they are not kept
    statistics: list[Statistics]  # the statistics [layer]
    batches: int = 0  # number of batches of the shard that have been seen
    tokens: int = 0  # number of their tokens
    prefixes: int = 0  # number of prefixes of the corpus that they stand for

    def add(self, batch: Batch, layer: Layer, m: Tensor, gate: Tensor | None) -> None:
        """Adds the coefficients of one layer on one batch, which is on the layer's device.

        `m`: coefficients [sentence, token, key]. `gate`: whether the gate is positive, of the shape of m; None without gates.
        """
        statistics = self.statistics[layer.index]
        two_sided = bool(self.lowest) and layer.signed
        tops = [self.highest[layer.index], *([self.lowest[layer.index]] if two_sided else [])]
        if can_scan(m.device) and tops[0].one_prefix:
            for top, triggers in zip(tops, scan(statistics, batch, m, gate, two_sided)):
                top.merge(triggers)
            return
        m, gate = m.float(), None if gate is None else gate[:, batch.competing]
        with zeroed(m, batch.left_out):
            extremes = self._count(batch, layer, m, two_sided)
            for top, of_sentences in zip(tops, extremes):
                top.enter(m[:, batch.competing], of_sentences, gate, batch.place)

    def _count(self, batch: Batch, layer: Layer, m: Tensor, two_sided: bool) -> list[Tensor]:
        """Adds to sums and extremes; returns the largest and, if asked, the smallest coefficient of each sentence."""
        peaks, troughs = (m.new_empty(len(m), m.shape[-1]) for _ in range(2))
        statistics, parts = self.statistics[layer.index], []
        for rows in in_cache(m):
            parts.append(sums(m[rows].flatten(0, 1), batch.multiplicity[rows].flatten(), two_sided))
            torch.amax(m[rows, batch.competing], 1, out=peaks[rows])
            if two_sided:
                torch.amin(m[rows, batch.competing], 1, out=troughs[rows])
        statistics.add(torch.stack(parts), peaks, troughs if two_sided else None)
        # Weights take long, and few prefixes need them.
        for counted, times in ((batch.in_histogram, None), (batch.in_histogram_again, batch.times_again)):
            if counted is not None and len(counted):
                statistics.add_histogram(m.flatten(0, 1).index_select(0, counted), times)
        return [peaks, troughs]

    def settle(self) -> None:
        """Inserts all pending candidates."""
        for top in [*self.highest, *self.lowest]:
            top.settle()


def start(layers: Sequence[Layer], settings: TriggerSettings, devices: Sequence[torch.device]) -> PassState:
    """Returns the state before any batch. The state of a layer is on the layer's own device [layer]."""

    def tops(sign: int) -> list[TopT]:
        one_prefix = settings.one_prefix_per_sentence
        placed = zip(layers, devices, strict=True)
        return [TopT(layer.memories, settings.per_key, sign, one_prefix, device) for layer, device in placed]

    negative = settings.negative and any(layer.signed for layer in layers)
    statistics = [Statistics(layer.memories, device) for layer, device in zip(layers, devices, strict=True)]
    return PassState(tops(1), tops(-1) if negative else [], statistics)


def adding(state: PassState, batch: Batch) -> OnTensor:
    """Returns what a forward pass of a batch passes its gates g and coefficients m to: it adds them to a state."""
    gates: dict[int, Tensor] = {}
    batch_on = functools.cache(batch.on)  # of a model on several devices each gets the batch once

    def add(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if quantity == "g":  # comes before the layer's m
            gates[layer.index] = tensor
            return
        state.add(batch_on(tensor.device), layer, tensor, gates.pop(layer.index, None))

    return add


def triggers_of(state: PassState, competing: CompetingPrefixes, loaded: LoadedModel) -> Triggers:
    """Returns the triggers and statistics of a finished pass. Raises UserError if coefficients overflowed."""
    found = on_host(state)
    counted = {name: np.concatenate(found[name]) for name in STATISTICS}
    if not counted.pop("finite").all():
        raise loaded.anatomy.overflow("Memory coefficients")
    fires_negative, minimum = counted.pop("fires_negative"), counted.pop("minimum")
    matrices = [matrix for layer in loaded.anatomy.layers for matrix in layer.second_matrices]
    gated = np.repeat([bool(matrix.gate) for matrix in matrices], [matrix.memories for matrix in matrices])  # [memory]
    negative = None
    if state.lowest:
        negative = Negative(**_examples(competing, found["lowest"], -1, gated), fires=fires_negative, minimum=minimum)
    return Triggers(
        layer_offset=np.asarray(loaded.anatomy.layer_offset),
        prefixes=state.prefixes,
        attributes={},
        negative=negative,
        **_examples(competing, found["highest"], 1, gated),
        **counted,
    )


def _examples(
    competing: CompetingPrefixes, layers: Sequence[np.ndarray], sign: int, gated: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the fields of `TriggerExamples`, all but `fires`, from the packed triggers of each layer [key, rank]."""
    corpus = competing.corpus
    starts = corpus.offsets[:-1] + np.arange(len(corpus))  # place of each sentence's empty prefix
    table, parts = dict[str, np.ndarray](), []
    places = len(corpus.tokens) + len(corpus)
    if places <= sum(packed.size for packed in layers):  # it is quicker to look up each place once
        every = np.arange(NONE, places)
        every[1:][corpus.offsets[1:] + np.arange(len(corpus))] = NONE  # nothing follows a whole sentence
        table = _at_places(competing, starts, every)
    # A layer at a time: unpacked triggers are several times as large as packed ones.
    for packed, own in zip(layers, np.split(gated, np.cumsum([len(packed) for packed in layers])[:-1]), strict=True):
        size, place, gate = (tensor.numpy() for tensor in unpack(torch.from_numpy(packed)))
        part = {name: values[place + 1] for name, values in table.items()} or _at_places(competing, starts, place)
        exists = place >= 0
        part["coefficient"] = np.where(exists, sign * size, size)
        part["gate"] = np.where(exists & own[:, None], np.where(gate, 1, -1), 0).astype(np.int8)
        part["count"] = exists.sum(1).astype(np.int32)
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _at_places(competing: CompetingPrefixes, starts: np.ndarray, place: np.ndarray) -> dict[str, np.ndarray]:
    """Returns what is known of the prefixes at places of the corpus; of any shape, -1 for no prefix."""
    exists = place >= 0
    sentence = np.searchsorted(starts, np.where(exists, place, 0), side="right") - 1
    position = np.where(exists, place - starts[sentence], 0)
    w, count, multiplicity = competing.next_token(sentence, position)
    known = {
        "sentence": np.where(exists, sentence, NONE),
        "position": position,
        "next_token": np.where(exists, w, NONE),
        "multiplicity": np.where(exists, multiplicity, 0),
        "next_count": np.where(exists, count, 0),
    }
    return {name: values.astype(np.int32) for name, values in known.items()}


@contextlib.contextmanager
def zeroed(m: Tensor, left_out: Tensor | None) -> Iterator[None]:
    """Inside the `with` statement, coefficients [sentence, token, key] are 0 at some flat positions; None: at none.

    Afterwards they are what they were: the model goes on with them, and later tokens depend on them.
    """
    if left_out is None:
        yield
        return
    rows = m.view(-1, m.shape[-1])
    original = rows.index_select(0, left_out)
    rows.index_fill_(0, left_out, 0)
    yield
    rows.index_copy_(0, left_out, original)
