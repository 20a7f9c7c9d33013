"""The head: everything that turns a residual vector into vocabulary logits."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.anatomy import Shell
from ffkv.model.hooks import hidden

CHUNK_BYTES = 2**26  # of logits at a time: bounds the memory whatever the vocabulary


class Head:
    """Reads vectors of the residual stream out into logits."""

    def __init__(self, emptied: nn.Module, shell: Shell, vocabulary: int, device: str, projection: str = "head"):
        """Takes a model that `ffkv.model.emptied.empty` has emptied. `projection` is the setting `values.projection`."""
        self._model, self._shell, self._device = emptied.to(device), shell, device
        self.vocabulary, self._projection = vocabulary, projection
        self.dtype = next(parameter.dtype for parameter in emptied.parameters() if parameter.is_floating_point())

    def chunks(self, vectors: Tensor, layer: int | None) -> Iterator[tuple[slice, Tensor]]:
        """Logits of many vectors, a bounded number at a time.

        Args:
            vectors: residual-stream vectors [n, d].
            layer: the layer they were taken from; None: what the last block returned. A post-norm model's block reads them out through its own last norm.
        Yields:
            Which rows, and their logits [rows, vocabulary] in float32.
        """
        rows = max(1, CHUNK_BYTES // (4 * self.vocabulary))
        for start in range(0, len(vectors), rows):
            part = slice(start, min(start + rows, len(vectors)))
            yield part, self.logits(vectors[part], layer)

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


def top(logits: Tensor) -> Tensor:
    """top(h): the id of the highest logit [n]; ties go to the lowest id. Logits are [n, vocabulary]."""
    return logits.argmax(-1)


def tied(logits: Tensor) -> Tensor:
    """Whether several ids share the highest logit [n]."""
    return (logits == logits.amax(-1, keepdim=True)).sum(-1) > 1


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ids of the `count` highest logits, descending, and their log-probabilities, each [n, count]."""
    highest, ids = logits.topk(min(count, logits.shape[-1]), -1)
    return ids, highest - logits.logsumexp(-1, keepdim=True)


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probability of one token a row [n], of logits [n, vocabulary]."""
    return logits.gather(-1, tokens[:, None])[:, 0] - logits.logsumexp(-1)


def rank(logits: Tensor, tokens: Tensor) -> Tensor:
    """Number of tokens with a strictly greater logit than the given one [n]; 0 is best."""
    return (logits > logits.gather(-1, tokens[:, None])).sum(-1)


class Predictions(NamedTuple):
    """top(h) of many vectors, as ids [n]; tied: whether several ids share the highest logit [n]."""

    ids: np.ndarray
    tied: np.ndarray


def predictions(head: Head, vectors: np.ndarray, layer: int | None) -> Predictions:
    """top(h) of many vectors [n, d] of a layer (None: of what the last block returns); ties go to the lowest id, and are told."""
    ids, ties = np.zeros(len(vectors), np.int32), np.zeros(len(vectors), bool)
    for part, logits in head.chunks(torch.from_numpy(vectors), layer):
        ids[part], ties[part] = top(logits).cpu().numpy(), tied(logits).cpu().numpy()
    return Predictions(ids, ties)


def probabilities(head: Head, vectors: np.ndarray, tokens: np.ndarray, layer: int) -> np.ndarray:
    """The probability that each vector [n, d] of a layer gives to its token [n], as float32 [n]."""
    found = np.zeros(len(vectors), np.float32)
    for part, logits in head.chunks(torch.from_numpy(vectors), layer):
        wanted = torch.from_numpy(tokens[part].astype(np.int64)).to(logits.device)
        found[part] = log_probability(logits, wanted).exp().cpu().numpy()
    return found
