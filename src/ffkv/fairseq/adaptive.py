"""Both ends of a fairseq language model: embeddings and softmax whose words fall into bands, the rarer the narrower."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from ffkv.fairseq.configuration import FairseqConfig

ROWS = 16  # whose logits are summed at a time: few enough for little memory, enough to keep threads from waiting


def band_sizes(bands: list[list[int]]) -> list[int]:
    """How many words each band has."""
    ends = [0, *(end for end, _ in bands)]
    return [stop - start for start, stop in pairwise(ends)]


class AdaptiveInput(nn.Module):
    """Embeddings of words: frequent ones wide, rare ones narrow, all projected to d."""

    def __init__(self, config: FairseqConfig):
        """Makes the embedding and the projection of every band."""
        super().__init__()
        self.vocabulary, self.width = config.vocab_size, config.hidden_size
        self.ends = [end for end, _ in config.input_bands]
        self.embeddings = nn.ModuleList(
            nn.Sequential(nn.Embedding(size, width), nn.Linear(width, config.hidden_size, bias=False))
            for size, (_, width) in zip(band_sizes(config.input_bands), config.input_bands)
        )

    @property
    def weight(self) -> Tensor:
        """The shape [vocabulary, d] that a table of all embeddings would have, without the table: a meta tensor."""
        return torch.empty(self.vocabulary, self.width, device="meta")

    def forward(self, ids: Tensor) -> Tensor:
        """Embeddings [sentence, token, d] of ids [sentence, token]."""
        like = self.embeddings[0][0].weight
        embedded = like.new_zeros(*ids.shape, self.width)
        for start, end, band in zip([0, *self.ends], self.ends, self.embeddings):
            inside = (ids >= start) & (ids < end)
            if inside.any():
                embedded[inside] = band(ids[inside] - start)
        return embedded


class Projection(nn.Module):
    """From the residual stream to a band's width, with an input projection's weight [d, width]."""

    def __init__(self, hidden_size: int, width: int):
        """Makes the matrix; where it is tied, `AdaptiveSoftmax` replaces it."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size, width))

    def forward(self, states: Tensor) -> Tensor:
        """Projected states [n, width]."""
        return states @ self.weight


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of all words (Grave et al. 2017). One softmax is over the words of the first band and the other
    bands as wholes; the words of such a band have another one, times the band's probability.
    """

    def __init__(self, config: FairseqConfig, tied: AdaptiveInput):
        """Makes the head and the tails, of the input embeddings' matrices where the config ties them."""
        super().__init__()
        d, bands, sizes = config.hidden_size, config.output_bands, band_sizes(config.output_bands)
        self.vocabulary, self.ends = config.vocab_size, [end for end, _ in bands]
        words, classes = nn.Linear(d, sizes[0], bias=False), nn.Linear(d, len(bands) - 1, bias=False)
        self.head = nn.ModuleDict({"word_proj": words, "class_proj": classes})
        # fairseq drops out between the two matrices of a tail; the gap keeps its names.
        self.tail = nn.ModuleList(
            nn.Sequential(Projection(d, width), nn.Identity(), nn.Linear(width, size, bias=False))
            for size, (_, width) in zip(sizes[1:], bands[1:])
        )
        if config.tie_words:
            words.weight = tied.embeddings[0][0].weight
            for tail, (embedding, projection) in zip(self.tail, list(tied.embeddings)[1:]):
                tail[2].weight = embedding.weight
                if config.tie_projections:
                    tail[0].weight = projection.weight

    def forward(self, states: Tensor) -> Tensor:
        """Log-probabilities [n, vocabulary] of states [n, d], in float32 whatever the weights' type.

        Every band is computed where it stands in this one array: nothing else of its size is made.
        """
        found = states.new_empty(len(states), self.vocabulary, dtype=torch.float32)
        words, bands = found[:, : self.ends[0]], self.head["class_proj"](states).float()
        _multiply(states, self.head["word_proj"].weight, words)
        whole = torch.logaddexp(_normalizers(words), bands.logsumexp(1))
        words -= whole[:, None]
        for number, (tail, start, end) in enumerate(zip(self.tail, self.ends, self.ends[1:])):
            inside = found[:, start:end]
            _multiply(tail[0](states), tail[2].weight, inside)
            inside -= (_normalizers(inside) + whole - bands[:, number])[:, None]
        return found


def _multiply(states: Tensor, weight: Tensor, place: Tensor) -> None:
    """Puts states @ weight.T into its place, directly where both are of one type."""
    if states.dtype == place.dtype:
        torch.mm(states, weight.T, out=place)
    else:
        place.copy_(states @ weight.T)


def _normalizers(logits: Tensor) -> Tensor:
    """log sum exp of every row [n] of logits [n, words], some rows at a time: the function itself makes copies."""
    return torch.cat([rows.logsumexp(1) for rows in logits.split(ROWS)])
