"""The head: everything that turns a residual vector into vocabulary logits."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.anatomy import Shell
from ffkv.model.tap.hooks import hidden

CHUNK_BYTES = 2**26  # of logits that are made at a time: bounds the memory whatever the vocabulary
CACHED_BYTES = 2**22  # of logits that the CPU reads at a time: what is made of them stays in its cache
GROUP = 64  # neighbouring logits of which the extremes are compared first


class Head:
    """Reads vectors of the residual stream out into logits."""

    def __init__(self, emptied: nn.Module, shell: Shell, vocabulary: int, device: str, projection: str = "head"):
        """Takes a model that `ffkv.model.head.head_file.empty` has emptied. `projection` is the setting `values.projection`."""
        self._model, self._shell, self._device = emptied.to(device), shell, device
        self.vocabulary, self._projection = vocabulary, projection
        self.dtype = next(parameter.dtype for parameter in emptied.parameters() if parameter.is_floating_point())

    def chunks(self, vectors: Tensor, layer: int | None) -> Iterator[tuple[slice, Tensor]]:
        """Logits of many vectors, a bounded number at a time: the CPU makes many and hands them on in pieces.

        Args:
            vectors: residual-stream vectors [n, d].
            layer: the layer they were taken from; None: what the last block returned. A post-norm model's block reads them out through its own last norm.
        Yields:
            Which rows, and their logits [rows, vocabulary] in float32.
        """
        rows, piece = (max(1, size // (4 * self.vocabulary)) for size in (CHUNK_BYTES, CACHED_BYTES))
        for start in range(0, len(vectors), rows):
            logits = self.logits(vectors[start : start + rows], layer)
            for read in logits.split(piece if logits.device.type == "cpu" else rows):
                yield slice(start, start + len(read)), read
                start += len(read)

    def logits(self, vectors: Tensor, layer: int | None = None) -> Tensor:
        """Logits of vectors [n, d] of a layer, as float32 [n, vocabulary]. None: of what the last block returns.

        Raises:
            UserError: the projection is "unembedding", and no single matrix maps the residual stream to the vocabulary.
        """
        vectors = vectors.to(self._device)
        if self._projection == "unembedding":
            return vectors @ self._output_embedding(vectors.shape[1]).T
        return self._through_head(vectors, layer)

    def _output_embedding(self, width: int) -> Tensor:
        """E [vocabulary, d] in float32."""
        embedding = self._model.get_output_embeddings()
        if embedding is None or tuple(embedding.weight.shape) != (self.vocabulary, width):
            raise UserError(
                "This model has no single matrix from its residual stream to the vocabulary: use values.projection 'head'."
            )
        return embedding.weight.detach().float()

    def _through_head(self, vectors: Tensor, layer: int | None) -> Tensor:
        with torch.no_grad():
            states = vectors.to(self.dtype)[:, None]
            if layer is not None and self._shell.layers[layer].post_norm:
                states = hidden(self._model.get_submodule(self._shell.layers[layer].site)(states))
            self._model.get_submodule(self._shell.last_block).injected = states
            ids = torch.zeros(len(vectors), 1, dtype=torch.long, device=self._device)
            return self._model(input_ids=ids, use_cache=False).logits[:, 0].float()


class Extremes(NamedTuple):
    """The highest logits of many rows, or the lowest.

    first: the id of the most extreme, the lowest of equals [n]. tied: whether several ids share it [n]. ids: from the
    most extreme on, equals in any order [n, count].
    """

    first: Tensor
    tied: Tensor
    ids: Tensor


def highest(logits: Tensor, count: int = 1) -> Extremes:
    """The `count` highest of logits [n, vocabulary]; `first` is top(h)."""
    return _extremes(logits, count, True)


def lowest(logits: Tensor, count: int = 1) -> Extremes:
    """The `count` lowest of logits [n, vocabulary]."""
    return _extremes(logits, count, False)


def _extremes(logits: Tensor, count: int, largest: bool) -> Extremes:
    found, ids = _outermost(logits, min(max(count, 2), logits.shape[-1]), largest)
    first, tied = ids[:, 0].clone(), found[:, 0] == found[:, min(1, found.shape[1] - 1)]
    tied &= logits.shape[-1] > 1
    if tied.any():
        equals = logits[tied]
        first[tied] = equals.argmax(-1) if largest else equals.argmin(-1)
    return Extremes(first, tied, ids[:, :count])


def _outermost(logits: Tensor, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """The same logits as `topk` finds, and their ids, each [n, count].

    Compares the extremes of groups first. What is among the `count` outermost lies in one of the `count` outermost groups:
    each of these has a member at least as far out as all members of the others.
    """
    whole = logits.shape[-1] // GROUP * GROUP
    if whole < 2 * GROUP * count:
        return logits.topk(count, -1, largest)
    groups = logits[:, :whole].unflatten(-1, (-1, GROUP))
    chosen = (groups.amax(-1) if largest else groups.amin(-1)).topk(count, -1, largest).indices
    ids = (GROUP * chosen[:, :, None] + torch.arange(GROUP, device=logits.device)).flatten(1)
    rest = torch.arange(whole, logits.shape[-1], device=logits.device).expand(len(ids), -1)
    ids = torch.cat([ids, rest], 1)
    found, at = logits.gather(-1, ids).topk(count, -1, largest)
    return found, ids.gather(-1, at)


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of one token a row [n], of logits [n, vocabulary]."""
    return logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def rank(logits: Tensor, tokens: Tensor) -> Tensor:
    """Number of tokens with a strictly greater logit than the given one [n]; 0 is best."""
    return (logits > logits.gather(-1, tokens[:, None])).sum(-1)


class Predictions(NamedTuple):
    """top(h) of many vectors, as ids [n]; tied: whether several ids share the highest logit [n]; probability: that each
    vector gives to a token of its own, float32 [n], or [0] where none was given."""

    ids: np.ndarray
    tied: np.ndarray
    probability: np.ndarray


def predictions(head: Head, vectors: np.ndarray, layer: int | None, tokens: np.ndarray | None = None) -> Predictions:
    """top(h) of many vectors [n, d] of a layer (None: of what the last block returns); ties go to the lowest id, and are told.

    Args:
        tokens: one a vector [n], of which the probability is wanted.
    """
    ids, ties = np.zeros(len(vectors), np.int32), np.zeros(len(vectors), bool)
    given = np.zeros(0 if tokens is None else len(vectors), np.float32)
    for part, logits in head.chunks(torch.from_numpy(vectors), layer):
        found = highest(logits)
        ids[part], ties[part] = found.first.cpu().numpy(), found.tied.cpu().numpy()
        if tokens is not None:
            wanted = torch.from_numpy(tokens[part].astype(np.int64)).to(logits.device)
            given[part] = log_probability(logits, wanted).exp().cpu().numpy()
    return Predictions(ids, ties, given)
