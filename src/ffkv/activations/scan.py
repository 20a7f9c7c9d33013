"""One kernel adds what a GPU's batch says to the statistics, and finds the triggers in it: it reads each coefficient once.

Operations of torch, one after the other, would read and write the coefficients some forty times, and the processor would
take longer to start them than the GPU takes for a layer of a small model. Triton comes with torch for CUDA.
"""

import functools
import importlib.util

import torch
from torch import Tensor

from ffkv.activations.batches import Batch
from ffkv.activations.statistics import Statistics
from ffkv.base.terminal import say

# A program of the kernel reads so many keys of so many sentences, one sentence after the other, so many tokens at a time. It is
# one warp: each thread has keys of its own.
KEYS, SENTENCES, TOKENS = 128, 4, 8


@functools.cache
def can_scan(device: torch.device) -> bool:
    """Tells whether the kernel runs on a device: a GPU, with Triton, which needs a C compiler to start a kernel."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    try:
        from ffkv.activations.scan_kernel import nothing

        nothing[(1,)](torch.zeros(1, dtype=torch.int32, device=device))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        say(
            f"Triton starts no kernel here ({reason}). Operations of torch find triggers, which takes longer.",
            error=True,
        )
        return False
    return True


def scan(found: Statistics, batch: Batch, m: Tensor, gate: Tensor | None, two_sided: bool) -> Tensor:
    """Adds the coefficients of one layer on one batch to its statistics; returns the best prefix of each sentence.

    Args:
        found: the statistics.
        batch, m, gate: see `PassState.add`. Only prefixes that compete are read.
        two_sided: whether negative coefficients are counted, and the lowest of each sentence are returned, too.
    Returns:
        Packed triggers, see `packing`: of the highest coefficients, and of the lowest [1 or 2, sentence, key].
    """
    from ffkv.activations.scan_kernel import kernel  # Triton is not on every machine

    sentences, tokens, keys = m.shape
    triggers = m.new_empty(2 if two_sided else 1, sentences, keys, dtype=torch.int64)
    kernel[(-(-keys // KEYS), -(-sentences // SENTENCES))](
        m.contiguous(),
        m if gate is None else gate.contiguous().view(torch.uint8),
        batch.multiplicity,
        batch.histogram_times,
        batch.place,
        triggers,
        found.total,
        found.fires,
        found.fires_negative,
        found.maximum,
        found.minimum,
        found.finite.view(torch.uint8),
        found.histogram,
        sentences,
        tokens,
        keys,
        before=batch.competing.start or 0,
        has_gate=gate is not None,
        two_sided=two_sided,
        per_program=SENTENCES,
        block_tokens=TOKENS,
        block_keys=KEYS,
        num_warps=1,
    )
    return triggers
