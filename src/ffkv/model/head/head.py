"""The head: everything that turns a residual vector into vocabulary logits."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.model.head.chain import ModuleChain
from ffkv.model.head.emptied import EmptiedModel
from ffkv.model.tap.hooks import after, enough_memory, weight_bytes

CHUNK_BYTES = 2**26  # of logits that are computed at a time: bounds the memory whatever the vocabulary
CACHED_BYTES = 2**22  # of logits that the CPU hands on at a time: what is computed from them stays in its cache


class Head:
    """Reads vectors of the residual stream out into logits.

    It works in float32, whatever the type of the model: in half precision several of the highest logits are often
    equal, and the lowest id, which is often a frequent token, would win.
    """

    def __init__(
        self,
        source: EmptiedModel | ModuleChain,
        vocabulary: int,
        layers: int,
        device: str,
        projection: str = "head",
    ):
        """Moves what reads vectors out to a device. `projection`: the setting `values.projection`."""
        self._source, self._device, self._projection = source, device, projection
        source.model.to(device).float()
        self.vocabulary, self._layers = vocabulary, layers  # the number of logits, and of layers
        self._mixes_no_logits: bool | None = None  # not tried yet

    def __repr__(self) -> str:
        return f"<Head: logits of {self.vocabulary:,} tokens on {self._device}>"

    def chunks(self, vectors: Tensor, layer: int | None) -> Iterator[tuple[slice, Tensor]]:
        """Yields logits of many vectors, a bounded number at a time.

        The CPU computes many and hands them on in smaller pieces, which stay in its cache. `vectors`: residual vectors
        [n, d] of a layer; None: outputs of the last block. A post-norm block reads the vectors of its layer out through
        its own last norm. Yields the rows, and their logits [rows, vocabulary] in float32.
        """
        rows, piece = (max(1, size // (4 * self.vocabulary)) for size in (CHUNK_BYTES, CACHED_BYTES))
        for chunk_start in range(0, len(vectors), rows):
            start, logits = chunk_start, self.logits(vectors[chunk_start : chunk_start + rows], layer)
            for piece_logits in logits.split(piece if logits.device.type == "cpu" else rows):
                stop = start + len(piece_logits)
                yield slice(start, stop), piece_logits
                start = stop

    def logits(self, vectors: Tensor, layer: int | None = None) -> Tensor:
        """Returns logits [n, vocabulary] in float32 of vectors [n, d] of a layer; None: of outputs of the last block.

        Raises UserError if there is no such layer; or if the projection is "unembedding", and no single matrix maps the
        residual stream to the vocabulary.
        """
        if layer is not None and not 0 <= layer < self._layers:
            raise UserError(f"There is no layer {layer}. The model has layers 0 to {self._layers - 1}.")
        with torch.no_grad(), enough_memory(lambda: weight_bytes(self._source.model)):
            vectors = vectors.to(self._device)
            if self._projection == "unembedding":
                return vectors @ self._output_embedding(vectors.shape[1]).T
            return self._source.read_out(vectors.float(), layer).float()

    def uncapped(self, vectors: Tensor, layer: int | None = None) -> Tensor:
        """Returns what `logits` does, but without what the model does to the logits behind its output embedding.

        That is a soft cap or a constant factor. Where no single module makes the logits, it is what `logits` returns.
        """
        made: list[Tensor] = []
        module = self._source.output_module
        with after((module, lambda *call: made.append(call[-1]))) if module is not None else contextlib.nullcontext():
            logits = self.logits(vectors, layer)
        found = made[-1].reshape(len(vectors), -1).float() if made else logits
        return found if found.shape == logits.shape else logits

    def token_logits(self, vectors: Tensor, token: int, layer: int | None = None) -> Tensor:
        """Returns the logits [n] in float32 that `logits` gives to one token, for vectors [n, d].

        Where the output embedding is one plain matrix, only the token's row of it is used.
        """
        if not len(vectors) or not self._one_row_suffices(vectors[:1], layer):
            return torch.cat([vectors.new_zeros(0), *(logits[:, token] for _, logits in self.chunks(vectors, layer))])
        with self._rows(torch.tensor([token])):
            return self.logits(vectors, layer)[:, 0]

    def token_gradient(self, vector: Tensor, token: int, layer: int | None = None) -> Tensor:
        """Returns the gradient [d] of the logit of one token with respect to a vector [d] that is read out."""
        one = self._one_row_suffices(vector[None], layer)
        with torch.enable_grad(), self._rows(torch.tensor([token])) if one else contextlib.nullcontext():
            vector = vector.detach().to(self._device).float().requires_grad_()
            logit = self._source.read_out(vector[None], layer)[0, 0 if one else token]
            return torch.autograd.grad(logit, vector)[0]

    def gradient(self, vectors: Tensor, layer: int | None, number: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns the gradient of a number of logits [n, vocabulary] with respect to the vectors [n, d] that are read out."""
        with torch.enable_grad():
            vectors = vectors.detach().to(self._device).float().requires_grad_()
            return torch.autograd.grad(number(self._source.read_out(vectors, layer).float()), vectors)[0]

    def differences(self, vectors: Tensor, pairs: Tensor, layer: int | None) -> Tensor:
        """Returns the logit of one token minus that of another [n], of vectors [n, d]. `pairs`: ids of both tokens [n, 2].

        Where the output embedding is one plain matrix, only the rows of the tokens are used.
        """
        found, few = vectors.new_zeros(len(vectors)), len(vectors) > 0 and self._one_row_suffices(vectors[:1], layer)
        tokens, columns = pairs.unique(return_inverse=True)
        columns = columns.to(found.device)
        with self._rows(tokens) if few else contextlib.nullcontext():
            width = len(tokens) if few else self.vocabulary
            step = max(1, CHUNK_BYTES // (4 * width))
            for start in range(0, len(vectors), step):
                logits = self.logits(vectors[start : start + step], layer).to(found.device)
                both = logits.gather(1, (columns if few else pairs.to(found.device))[start : start + step])
                found[start : start + step] = both[:, 0] - both[:, 1]
        return found

    def difference_gradients(self, vectors: Tensor, pairs: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
        """Returns what `differences` does, and its gradient with respect to the vectors [n, d]."""
        with torch.enable_grad():
            vectors = vectors.detach().to(self._device).float().requires_grad_()
            both = self._source.read_out(vectors, layer).float().gather(1, pairs.to(self._device))
            found = both[:, 0] - both[:, 1]
            return found.detach(), torch.autograd.grad(found.sum(), vectors)[0]

    def _one_row_suffices(self, vector: Tensor, layer: int | None) -> bool:
        """Tells whether one row of the output embedding gives its token's logit, tried once on a vector [1, d]."""
        if self._mixes_no_logits is None:
            self._mixes_no_logits = self._try_one_row(vector, layer)
        return self._mixes_no_logits

    def _try_one_row(self, vector: Tensor, layer: int | None) -> bool:
        module, token = self._source.output_module, self.vocabulary - 1
        if self._projection == "unembedding" or type(module) is not nn.Linear or module.out_features != self.vocabulary:
            return False
        expected = self.logits(vector, layer)[:, token]
        try:
            with self._rows(torch.tensor([token])):
                found = self.logits(vector, layer)
        except (RuntimeError, IndexError, ValueError):  # the model's own code needs all logits
            return False
        return found.shape == (1, 1) and torch.allclose(found[:, 0], expected, rtol=1e-4, atol=1e-5)

    @contextlib.contextmanager
    def _rows(self, tokens: Tensor) -> Iterator[None]:
        """Inside the `with` statement, the output embedding has the rows of some tokens alone."""
        parameters = self._source.output_module._parameters
        whole = {name: parameter for name, parameter in parameters.items() if parameter is not None}
        for name, parameter in whole.items():
            parameters[name] = nn.Parameter(parameter.detach()[tokens.to(parameter.device)], False)
        try:
            yield
        finally:
            parameters.update(whole)

    def _output_embedding(self, width: int) -> Tensor:
        """E [vocabulary, d] in float32."""
        embedding = getattr(self._source.output_module, "weight", None)
        if embedding is None or tuple(embedding.shape) != (self.vocabulary, width):
            raise UserError(
                "This model has no single matrix from its residual stream to the vocabulary: use values.projection 'head'."
            )
        return embedding.detach().float()
