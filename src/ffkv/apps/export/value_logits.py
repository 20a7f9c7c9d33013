"""Logits of values, for formats that show them: those of the top and bottom tokens, and a histogram of all."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ffkv.run.results import indexes
from ffkv.run.results.run import Run
from ffkv.run.trace.coefficients import head_of, value_logits

BINS = 50  # of the histogram of logits


@dataclass(frozen=True)
class ValueLogits:
    """A value and its logits."""

    vector: np.ndarray  # the value [d]
    top: np.ndarray  # logits of the top tokens that the run keeps [rank]
    bottom: np.ndarray  # logits of the bottom tokens that the run keeps [rank]
    heights: np.ndarray  # number of tokens in each of `BINS` equal bins between the lowest and the highest logit [bin]
    edges: np.ndarray  # their edges [bin + 1]


def logit_reader(run: Run, device: str) -> Callable[[int, np.ndarray], list[ValueLogits]]:
    """Makes what reads the logits of the values of some memories of a layer, in order."""
    head, offsets = head_of(run, device), run.anatomy.layer_offset
    kept = [indexes.kept_tokens(run.files, end)[0] for end in ("top", "bottom")]

    def read(layer: int, memories: np.ndarray) -> list[ValueLogits]:
        found: list[ValueLogits] = []
        rows = offsets[layer] + memories
        for chunk, vectors, logits in value_logits(run, head, layer, memories):
            ids = (torch.from_numpy(tokens[rows[chunk]].astype(np.int64)).to(logits.device) for tokens in kept)
            ends = [logits.gather(1, tokens).cpu().numpy() for tokens in ids]
            found += map(ValueLogits, vectors, *ends, *histograms(logits))
        return found

    return read


def histograms(logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Histograms of the rows of logits [row, token]: numbers of tokens [row, bin], and edges [row, bin + 1]."""
    lowest, highest = logits.amin(1, keepdim=True), logits.amax(1, keepdim=True)
    width = (highest - lowest).clamp(min=torch.finfo(torch.float32).tiny)
    bins = ((logits - lowest) / width * BINS).long().clamp_(0, BINS - 1)
    heights = torch.zeros(len(logits), BINS, dtype=torch.int64, device=logits.device)
    heights.scatter_add_(1, bins, torch.ones_like(bins))
    steps = torch.linspace(0, 1, BINS + 1, device=logits.device)
    return heights.cpu().numpy(), (lowest + (highest - lowest) * steps).cpu().numpy()
