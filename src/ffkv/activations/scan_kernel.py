"""The kernel of `scan`, which says what it does. Arrays are flat there; `sentence`, `token` and `key` are numbers."""

# mypy: ignore-errors

import triton
import triton.language as tl

from ffkv.activations import statistics, top_t, trigger_file

FINE, FINE_BITS = tl.constexpr(trigger_file.FINE), tl.constexpr(trigger_file.FINE_BITS)
PLACES = tl.constexpr(top_t.PLACES)
PLACE_SHIFT, ROUGH_SHIFT = tl.constexpr(top_t.PLACE_SHIFT), tl.constexpr(top_t.ROUGH_SHIFT)
PER_UNIT = tl.constexpr(1 / trigger_file.FIXED_POINT)
MANTISSA, LEAST_BIN = tl.constexpr(statistics.MANTISSA), tl.constexpr(statistics.BEFORE)
BINS = tl.constexpr(statistics.LAST_BIN + 1)


@triton.jit
def nothing(place):
    """Shows that kernels start."""
    tl.store(place, 1)


@triton.jit
def compete(value, token, tokens, best, at):
    """Returns the digits that count of the best prefix so far, -1 for none, and its token [key], after some tokens."""
    digits = tl.where(value > 0, value.to(tl.int32, bitcast=True) & ~FINE, -1)
    top = tl.max(digits, 0)
    first = tl.min(tl.where(digits == top[None, :], token[:, None], tokens), 0)  # of tied ones the first wins
    return tl.maximum(best, top), tl.where(top > best, first, at)


@triton.jit
def store_packed(triggers, m, gates, chosen, place, exists, is_key, sign: tl.constexpr, has_gate: tl.constexpr):
    """Writes what `top_t.pack` says of the chosen coefficients [key], or 0 where none exists."""
    gate = tl.load(gates + chosen, mask=is_key, other=0).to(tl.int64) if has_gate else 0
    value = sign * tl.load(m + chosen, mask=is_key, other=0).to(tl.float32)
    bits = value.to(tl.int32, bitcast=True).to(tl.int64)
    rough, rest = (bits >> FINE_BITS) << ROUGH_SHIFT, (bits & FINE) << 1
    tl.store(triggers, tl.where(exists, rough | ((PLACES - 1 - place) << PLACE_SHIFT) | rest | gate, 0), mask=is_key)


@triton.jit
def kernel(
    m,
    gates,
    multiplicity,
    histogram_times,
    first_place,
    triggers,
    total,
    fires,
    fires_negative,
    maximum,
    minimum,
    finite,
    histogram,
    sentences,
    tokens,
    keys,
    before: tl.constexpr,
    has_gate: tl.constexpr,
    two_sided: tl.constexpr,
    per_program: tl.constexpr,
    block_tokens: tl.constexpr,
    block_keys: tl.constexpr,
):
    """Reads `block_keys` keys of `per_program` sentences, `block_tokens` tokens at a time. `before`: tokens of BOS."""
    key = tl.program_id(0) * block_keys + tl.arange(0, block_keys)
    is_key = key < keys
    exact = multiplicity.dtype.element_ty
    added = tl.zeros([block_keys], exact)
    positive, negative = tl.zeros([block_keys], exact), tl.zeros([block_keys], exact)
    largest, smallest = tl.zeros([block_keys], tl.float32), tl.zeros([block_keys], tl.float32)
    for number in range(per_program):
        sentence = (tl.program_id(1) * per_program + number).to(tl.int64)
        if sentence < sentences:
            # Digits that count of the best prefix so far, and its token, of both signs.
            best, lowest = tl.full([block_keys], -1, tl.int32), tl.full([block_keys], -1, tl.int32)
            at, lowest_at = tl.zeros([block_keys], tl.int32), tl.zeros([block_keys], tl.int32)
            for start in range(0, tokens, block_tokens):
                token = start + tl.arange(0, block_tokens)
                times = tl.load(multiplicity + sentence * tokens + token, mask=token < tokens, other=0)
                competes = (times > 0)[:, None] & is_key[None, :]
                here = (sentence * tokens + token)[:, None] * keys + key[None, :]
                value = tl.load(m + here, mask=competes, other=0).to(tl.float32)
                added += tl.sum(value * times[:, None], 0)
                positive += tl.sum(tl.where(value > 0, times[:, None], 0), 0)
                largest = tl.maximum(largest, tl.max(value, 0))
                best, at = compete(value, token, tokens, best, at)
                if two_sided:
                    negative += tl.sum(tl.where(value < 0, times[:, None], 0), 0)
                    smallest = tl.minimum(smallest, tl.min(value, 0))
                    lowest, lowest_at = compete(-value, token, tokens, lowest, lowest_at)
                counted = tl.load(histogram_times + sentence * tokens + token, mask=token < tokens, other=0)
                if tl.sum(counted, 0) > 0:
                    exponent = value.to(tl.int32, bitcast=True) >> MANTISSA
                    bin_of = tl.where(exponent > 0, tl.minimum(tl.maximum(exponent - LEAST_BIN, 1), BINS - 1), 0)
                    added_times = counted.to(tl.int64)[:, None] + tl.zeros([block_tokens, block_keys], tl.int64)
                    tl.atomic_add(
                        histogram + key[None, :] * BINS + bin_of, added_times, mask=(added_times > 0) & is_key[None, :]
                    )
            place = tl.load(first_place + sentence) - before
            chosen = (sentence * tokens + at) * keys + key
            own = triggers + sentence * keys + key
            store_packed(own, m, gates, chosen, place + at, best >= 0, is_key, 1, has_gate)
            if two_sided:
                chosen = (sentence * tokens + lowest_at) * keys + key
                own += sentences * keys
                store_packed(own, m, gates, chosen, place + lowest_at, lowest >= 0, is_key, -1, has_gate)
    # Whole numbers, so that the order in which programs add them changes nothing.
    units = tl.floor(added.to(tl.float64) * PER_UNIT + 0.5).to(tl.int64)
    tl.atomic_add(total + key, units, mask=is_key)
    tl.atomic_add(fires + key, positive.to(tl.int64), mask=is_key)
    tl.atomic_max(maximum + key, largest, mask=is_key)
    if two_sided:
        tl.atomic_add(fires_negative + key, negative.to(tl.int64), mask=is_key)
        tl.atomic_min(minimum + key, smallest, mask=is_key)
    is_finite = added - added == 0
    tl.store(finite + key, tl.zeros([block_keys], tl.uint8), mask=is_key & (is_finite == 0))
