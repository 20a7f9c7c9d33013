"""The head: everything that turns a residual vector into vocabulary logits."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ffkv.errors import UserError
from ffkv.model.head.emptied import EmptiedModel

CHUNK_BYTES = 2**26  # of logits that are computed at a time: bounds the memory whatever the vocabulary
CACHED_BYTES = 2**22  # of logits that the CPU hands on at a time: what is computed from them stays in its cache


class Head:
    """Reads vectors of the residual stream out into logits.

    Attributes:
        vocabulary: number of logits.
        dtype: type of the head's weights.
    """

    def __init__(self, emptied: EmptiedModel, vocabulary: int, device: str, projection: str = "head"):
        """Moves an emptied model to a device. `projection` is the setting `values.projection`."""
        self._emptied, self._device, self._projection = emptied, device, projection
        self._model = emptied.model.to(device)
        self.vocabulary = vocabulary
        self.dtype = next(parameter.dtype for parameter in self._model.parameters() if parameter.is_floating_point())

    def chunks(self, vectors: Tensor, layer: int | None) -> Iterator[tuple[slice, Tensor]]:
        """Logits of many vectors, a bounded number at a time.

        The CPU computes many and hands them on in smaller pieces, which stay in its cache.

        Args:
            vectors: residual vectors [n, d].
            layer: the layer that they come from; None: they are outputs of the last block. A post-norm block reads
                the vectors of its layer out through its own last norm.
        Yields:
            The rows, and their logits [rows, vocabulary] in float32.
        """
        rows, piece = (max(1, size // (4 * self.vocabulary)) for size in (CHUNK_BYTES, CACHED_BYTES))
        for chunk_start in range(0, len(vectors), rows):
            start, logits = chunk_start, self.logits(vectors[chunk_start : chunk_start + rows], layer)
            for piece_logits in logits.split(piece if logits.device.type == "cpu" else rows):
                stop = start + len(piece_logits)
                yield slice(start, stop), piece_logits
                start = stop

    def logits(self, vectors: Tensor, layer: int | None = None) -> Tensor:
        """Logits [n, vocabulary] in float32 of vectors [n, d] of a layer; None: of outputs of the last block.

        Raises:
            UserError: the projection is "unembedding", and no single matrix maps the residual stream to the vocabulary.
        """
        vectors = vectors.to(self._device)
        if self._projection == "unembedding":
            return vectors @ self._output_embedding(vectors.shape[1]).T
        with torch.no_grad():
            return self._emptied.read_out(vectors.to(self.dtype), layer).float()

    def _output_embedding(self, width: int) -> Tensor:
        """E [vocabulary, d] in float32."""
        embedding = self._model.get_output_embeddings()
        if embedding is None or tuple(embedding.weight.shape) != (self.vocabulary, width):
            raise UserError(
                "This model has no single matrix from its residual stream to the vocabulary: set values.projection to 'head'."
            )
        return embedding.weight.detach().float()
