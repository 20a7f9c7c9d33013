"""One kernel reads what a GPU's batch adds to triggers and statistics: each coefficient goes through its memory once.

Operations of torch, one after the other, would read and write the coefficients some forty times, which takes as long as a
model of half precision needs to make them. Triton comes with torch for CUDA.
"""

import functools
import importlib.util
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ffkv.activations import packing
from ffkv.activations.batches import Batch
from ffkv.activations.ties import FINE

TOKENS, KEYS, SENTENCES = 8, 128, 16  # that a program of the kernel reads at a time; sentences one after the other


class Scan(NamedTuple):
    """What the kernel finds in a batch of coefficients of one layer."""

    # the packed trigger of each sentence, see `packing`, and those of negative coefficients, if asked [1 or 2, sentence, key]
    triggers: Tensor
    sums: Tensor  # as of `statistics.sums`, of some sentences each [part, 2 or 3, key]
    peaks: Tensor  # largest coefficient of these sentences, at least 0 [part, key]
    troughs: Tensor | None  # their smallest one, at most 0


@functools.cache
def can_scan(device: torch.device) -> bool:
    """Tells whether the kernel runs on a device: a GPU, with Triton."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def scan(batch: Batch, m: Tensor, gate: Tensor | None, two_sided: bool) -> Scan:
    """Reads the coefficients of one layer on one batch.

    The best prefix of each sentence competes. Arguments: see `PassState.add`; `two_sided`: whether the lowest compete, too.
    """
    sentences, tokens, keys = m.shape
    parts, sides = -(-sentences // SENTENCES), 2 if two_sided else 1
    triggers = m.new_empty(sides, sentences, keys, dtype=torch.int64)
    sums = batch.multiplicity.new_empty(parts, 1 + sides, keys)
    extremes = m.new_empty(sides, parts, keys, dtype=torch.float32)
    _kernel()[(-(-keys // KEYS), parts)](
        m.contiguous(),
        m if gate is None else gate.contiguous().view(torch.uint8),
        batch.multiplicity,
        batch.place - (batch.competing.start or 0),
        triggers,
        sums,
        extremes,
        sentences,
        tokens,
        keys,
        has_gate=gate is not None,
        sides=sides,
        fine=FINE,
        fine_bits=packing.FINE_BITS,
        place_shift=packing.PLACE_SHIFT,
        rough_shift=packing.ROUGH_SHIFT,
        places=packing.PLACES,
        per_program=SENTENCES,
        block_tokens=TOKENS,
        block_keys=KEYS,
    )
    return Scan(triggers, sums, extremes[0], -extremes[1] if two_sided else None)


@functools.cache
def _kernel() -> Any:
    import triton  # type: ignore[import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def kernel(  # type: ignore[no-untyped-def]
        m,
        gates,
        multiplicity,
        first_place,
        triggers,
        sums,
        extremes,
        sentences,
        tokens,
        keys,
        has_gate: tl.constexpr,
        sides: tl.constexpr,
        fine: tl.constexpr,
        fine_bits: tl.constexpr,
        place_shift: tl.constexpr,
        rough_shift: tl.constexpr,
        places: tl.constexpr,
        per_program: tl.constexpr,
        block_tokens: tl.constexpr,
        block_keys: tl.constexpr,
    ):
        key = tl.program_id(0) * block_keys + tl.arange(0, block_keys)
        part, parts = tl.program_id(1), tl.num_programs(1)
        is_key = key < keys
        for side in tl.static_range(sides):
            sign = 1 - 2 * side
            total = tl.zeros([block_keys], sums.dtype.element_ty)
            fires = tl.zeros([block_keys], sums.dtype.element_ty)
            extreme = tl.zeros([block_keys], tl.float32)
            for number in range(per_program):
                sentence = (part * per_program + number).to(tl.int64)
                if sentence < sentences:
                    best = tl.full([block_keys], -1, tl.int32)  # digits that count of the best prefix so far
                    at = tl.zeros([block_keys], tl.int32)  # its token
                    for start in range(0, tokens, block_tokens):
                        token = start + tl.arange(0, block_tokens)
                        times = tl.load(multiplicity + sentence * tokens + token, mask=token < tokens, other=0)
                        places_of_m = (sentence * tokens + token)[:, None] * keys + key[None, :]
                        competes = (times > 0)[:, None] & is_key[None, :]
                        value = sign * tl.load(m + places_of_m, mask=competes, other=0).to(tl.float32)
                        total += tl.sum(value * times[:, None], 0)
                        fires += tl.sum(tl.where(value > 0, times[:, None], 0), 0)
                        extreme = tl.maximum(extreme, tl.max(value, 0))
                        digits = tl.where(value > 0, value.to(tl.int32, bitcast=True) & ~fine, -1)
                        top = tl.max(digits, 0)
                        # Of tied coefficients the first one wins.
                        first = tl.min(tl.where(digits == top[None, :], token[:, None], tokens), 0)
                        at = tl.where(top > best, first, at)
                        best = tl.maximum(best, top)
                    chosen = (sentence * tokens + at) * keys + key
                    bits = (sign * tl.load(m + chosen, mask=is_key, other=0).to(tl.float32)).to(tl.int32, bitcast=True)
                    bits = bits.to(tl.int64)
                    place = places - 1 - (tl.load(first_place + sentence) + at)
                    packed = ((bits >> fine_bits) << rough_shift) | (place << place_shift) | ((bits & fine) << 1)
                    if has_gate:
                        packed = packed | tl.load(gates + chosen, mask=is_key, other=0).to(tl.int64)
                    packed = tl.where(best >= 0, packed, 0)
                    tl.store(triggers + (side * sentences + sentence) * keys + key, packed, mask=is_key)
            if side == 0:
                tl.store(sums + part * (1 + sides) * keys + key, total, mask=is_key)
            tl.store(sums + (part * (1 + sides) + 1 + side) * keys + key, fires, mask=is_key)
            tl.store(extremes + (side * parts + part) * keys + key, extreme, mask=is_key)

    return kernel
