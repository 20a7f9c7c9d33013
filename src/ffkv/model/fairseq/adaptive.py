"""Adaptive embeddings and adaptive softmax: the words are split into bands, and rare words have narrower vectors."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ffkv.model.fairseq.configuration import FairseqConfig

ROWS_PER_SUM = 16  # whose logits are summed at a time: few for the memory, enough for all threads


def band_sizes(bands: list[list[int]]) -> list[int]:
    """Returns the number of words of each band."""
    ends = [0, *(end for end, _ in bands)]
    return [stop - start for start, stop in pairwise(ends)]


class AdaptiveInput(nn.Module):
    """Embeddings of words, wide for frequent words and narrow for rare ones, all projected to d."""

    def __init__(self, config: FairseqConfig):
        """Makes the embedding and the projection of every band."""
        super().__init__()
        self.vocabulary, self.width = config.vocab_size, config.hidden_size
        self.ends = [end for end, _ in config.input_bands]
        self.embeddings: Any = nn.ModuleList(
            nn.Sequential(nn.Embedding(size, width), nn.Linear(width, config.hidden_size, bias=False))
            for size, (_, width) in zip(band_sizes(config.input_bands), config.input_bands)
        )

    @property
    def weight(self) -> Tensor:
        """The shape [vocabulary, d] that a table of all embeddings would have, without the table: a meta tensor."""
        return torch.empty(self.vocabulary, self.width, device="meta")

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings [sentence, token, d] of ids [sentence, token]."""
        embedded = self.embeddings[0][0].weight.new_zeros(*ids.shape, self.width)
        for start, end, band in zip([0, *self.ends], self.ends, self.embeddings):
            inside = (ids >= start) & (ids < end)
            if inside.any():
                embedded[inside] = band(ids[inside] - start)
        return embedded


class Projection(nn.Module):
    """From the residual stream to a band's width, with an input projection's weight [d, width]."""

    def __init__(self, hidden_size: int, width: int):
        """Makes the matrix. `AdaptiveSoftmax` replaces it if it is tied."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, width))

    def forward(self, states: Tensor) -> Tensor:
        """Projected states [n, width]."""
        return states @ self.weight


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of all words (Grave et al. 2017).

    The first softmax is over the words of the first band and over the other bands as wholes. Each other band has a
    softmax over its words, which is multiplied by the probability of the band.
    """

    def __init__(self, config: FairseqConfig, tied: AdaptiveInput):
        """Makes the head and the tails. Tied ones use the matrices of the input embeddings."""
        super().__init__()
        d, bands, sizes = config.hidden_size, config.output_bands, band_sizes(config.output_bands)
        self.vocabulary, self.ends = config.vocab_size, [end for end, _ in bands]
        words, classes = nn.Linear(d, sizes[0], bias=False), nn.Linear(d, len(bands) - 1, bias=False)
        self.head: Any = nn.ModuleDict({"word_proj": words, "class_proj": classes})
        # fairseq drops out between the two matrices of a tail; the gap keeps its names.
        self.tail: Any = nn.ModuleList(
            nn.Sequential(Projection(d, width), nn.Identity(), nn.Linear(width, size, bias=False))
            for size, (_, width) in zip(sizes[1:], bands[1:])
        )
        if config.tie_words:
            words.weight = tied.embeddings[0][0].weight
            tails: list[Any] = list(self.tail)
            for tail, (embedding, projection) in zip(tails, tied.embeddings[1:]):
                tail[2].weight = embedding.weight
                if config.tie_projections:
                    tail[0].weight = projection.weight

    def forward(self, states: Tensor) -> Tensor:
        """Log-probabilities [n, vocabulary] of states [n, d], in float32 whatever the weights' type.

        Every band is computed in its place in the result: no other array of this size is made.
        """
        result = states.new_empty(len(states), self.vocabulary, dtype=torch.float32)
        words, bands = result[:, : self.ends[0]], self.head["class_proj"](states).float()
        _multiply(states, self.head["word_proj"].weight, words)
        whole = torch.logaddexp(_normalizers(words), bands.logsumexp(1))
        words -= whole[:, None]
        for number, (tail, start, end) in enumerate(zip(self.tail, self.ends, self.ends[1:])):
            inside = result[:, start:end]
            _multiply(tail[0](states), tail[2].weight, inside)
            inside -= (_normalizers(inside) + whole - bands[:, number])[:, None]
        return result


def _multiply(states: Tensor, weight: Tensor, place: Tensor) -> None:
    """Writes states @ weight.T into its place, without a copy if both have one type and no gradient is asked for."""
    if states.dtype == place.dtype and not torch.is_grad_enabled():
        torch.mm(states, weight.T, out=place)
    else:
        place.copy_(states @ weight.T)


def _normalizers(logits: Tensor) -> Tensor:
    """log sum exp [n] of the rows of logits [n, words], some rows at a time because `logsumexp` makes copies."""
    if torch.is_grad_enabled():  # a gradient needs the logits as they are now; the caller changes them in place
        logits = logits.clone()
    return torch.cat([rows.logsumexp(1) for rows in logits.split(ROWS_PER_SUM)])
