"""The head: everything that turns a residual vector into vocabulary logits.

It reads vectors out with what remains of the model without the contents of its blocks. There, the blocks pass their input on,
and the last one returns the vectors that are to be read out. What remains is the model's own final norm, projections, output
embedding, scale and soft cap, so that ffkv needs to know none of them.

Where plain modules give the same logits, such as a final norm and the output embedding (GPT-2, GPT-NeoX, OPT), they are
rebuilt from their tensors alone. A job that needs no more of the model then saves some four CPU seconds of imports.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.model.anatomy import Anatomy, HeadModule
from ffkv.model.head.lens import CHUNK_BYTES, Lens
from ffkv.model.tap import hooks

PLAIN: dict[str, type[nn.Module]] = {"LayerNorm": nn.LayerNorm, "Linear": nn.Linear}
ROWS = 3  # of random vectors on which chain and model are compared


class EmptiedModel:
    """A model whose blocks are empty, and the vectors that its last block returns.

    The blocks themselves stay, with the attributes that the model's own code asks them for. If a block adds the
    feed-forward output before a last norm, that norm stays too.
    """

    def __init__(self, model: Any, anatomy: Anatomy):
        """Empties the blocks of a model in place."""
        self.model, self.anatomy = model, anatomy
        self._vectors: Tensor | None = None
        norms = {layer.sum_module for layer in anatomy.layers if layer.post_norm}
        for path, block in hooks.blocks_beside(model, anatomy.layers).items():
            kept = {norm[len(path) + 1 :].split(".")[0] for norm in norms if norm.startswith(path + ".")}
            for child in {*block._modules} - kept:
                del block._modules[child]
            block._parameters.clear()
            block._buffers.clear()
            block.forward = partial(self._forward, path == anatomy.last_block)
        # The module that holds the output embedding E [vocabulary, width of its input]; None if there is no single one.
        self.output_module = model.get_output_embeddings()

    def read_out(self, vectors: Tensor, layer: int | None) -> Tensor:
        """Returns logits [n, vocabulary] of vectors [n, d] of a layer; None: of outputs of the last block."""
        states = vectors[:, None]
        if layer is not None and (own := self.anatomy.layers[layer]).post_norm:
            states = hooks.known_state(self.model.get_submodule(own.sum_module)(states))
        self._vectors = states
        ids = torch.zeros(len(states), 1, dtype=torch.long, device=states.device)
        return self.model(input_ids=ids, use_cache=False).logits[:, 0]

    def _forward(self, is_last: bool, *args: Any, **kwargs: Any) -> Any:
        states = self._vectors if is_last else hooks.hidden_argument(args, kwargs)
        return (states, *[None] * (self.anatomy.returns - 1)) if self.anatomy.returns else states


class ModuleChain:
    """A head that is a chain of plain modules, in order."""

    def __init__(self, chain: list[HeadModule], tensors: dict[str, Tensor]):
        """Builds the modules. `tensors`: by the names that they have in the model."""
        self.model = nn.Sequential(*[_build(module, tensors) for module in chain])
        self.output_module = self.model[-1]  # holds the output embedding E [vocabulary, width of its input]

    def read_out(self, vectors: Tensor, layer: int | None) -> Tensor:
        """Returns logits [n, vocabulary] of vectors [n, d], of any layer."""
        return self.model(vectors[:, None])[:, 0]


def find_chain(emptied: EmptiedModel) -> list[HeadModule]:
    """Finds the chain that gives exactly the logits of an emptied model with its weights; [] if there is none."""
    if any(layer.post_norm for layer in emptied.anatomy.layers):  # their vectors are read through norms of blocks
        return []
    model = emptied.model
    plain = {name: module for name, module in model.named_modules() if type(module) in PLAIN.values()}
    calls: list[tuple[str, Tensor, Tensor]] = []

    def note(name: str, module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> None:
        calls.append((name, hooks.hidden_input(args, kwargs), output))

    dtype = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    vectors = torch.randn(ROWS, emptied.anatomy.width, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad(), hooks.after(*[(module, partial(note, name)) for name, module in plain.items()]):
        logits = emptied.read_out(vectors, None)
    state, chain = vectors[:, None], []
    for name, argument, output in calls:
        if argument.shape == state.shape and torch.equal(argument, state):
            chain.append(HeadModule(name, type(plain[name]).__name__, getattr(plain[name], "eps", 0.0)))
            state = output
    ends_with_embedding = bool(chain) and plain[chain[-1].name] is model.get_output_embeddings()
    return chain if ends_with_embedding and torch.equal(state[:, 0], logits) else []


def _build(module: HeadModule, tensors: dict[str, Tensor]) -> nn.Module:
    weight, bias = tensors[f"{module.name}.weight"], tensors.get(f"{module.name}.bias")
    with torch.device("meta"):
        built: Any = (
            nn.LayerNorm(weight.shape, module.eps) if module.kind == "LayerNorm" else nn.Linear(*weight.T.shape)
        )
    built.weight = nn.Parameter(weight, requires_grad=False)
    built.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return built


class Head(Lens):
    """Reads vectors of the residual stream out into logits, as they are: the logit lens.

    A post-norm block reads the vectors of its layer out through its own last norm. The head works in float32, whatever the
    type of the model: in half precision the highest logits are often equal, and the lowest id, often a frequent token, would win.
    """

    def __init__(self, source: EmptiedModel | ModuleChain, anatomy: Anatomy, device: str, projection: str = "head"):
        """Moves what reads vectors out to a device. `projection`: the setting `values.projection`."""
        self._source, self.device, self._projection = source, device, projection
        source.model.to(device).float()
        self.vocabulary, self._layers, self.read_as = anatomy.vocabulary, len(anatomy.layers), anatomy.read_as
        self._mixes_no_logits: bool | None = None  # not tried yet

    def __repr__(self) -> str:
        return f"<Head: logits of {self.vocabulary:,} tokens on {self.device}>"

    def logits(self, vectors: Tensor, layer: int | None = None) -> Tensor:
        """Returns logits [n, vocabulary] in float32 of vectors [n, d] of a layer; None: of outputs of the last block.

        Raises UserError if there is no such layer; or if the projection is "unembedding", and no single matrix makes logits.
        """
        if layer is not None and not 0 <= layer < self._layers:
            raise UserError(f"There is no layer {layer}. The model has layers 0 to {self._layers - 1}.")
        with torch.no_grad(), hooks.enough_memory(lambda: hooks.weight_bytes(self._source.model)):
            vectors = vectors.to(self.device)
            if self._projection == "unembedding":
                return vectors @ self._output_embedding(vectors.shape[1]).T
            return self._source.read_out(vectors.float(), layer).float()

    state = change = logits  # it reads both alike

    def uncapped(self, vectors: Tensor, layer: int | None = None) -> Tensor:
        """Returns what `logits` does, but without what the model does to the logits behind its output embedding.

        That is a soft cap or a constant factor. Where no single module makes the logits, it is what `logits` returns.
        """
        made: list[Tensor] = []
        module = self._source.output_module
        with hooks.after(*([] if module is None else [(module, lambda *call: made.append(call[-1]))])):
            logits = self.logits(vectors, layer)
        found = made[-1].reshape(len(vectors), -1).float() if made else logits
        return found if found.shape == logits.shape else logits

    def token_logits(self, vectors: Tensor, token: int, layer: int | None = None) -> Tensor:
        """Returns the logits [n] in float32 that `logits` gives to one token, for vectors [n, d].

        Where the output embedding is one plain matrix, only the token's row of it is used.
        """
        found = [logits[:, 0] for _, logits in self._of_tokens(vectors, torch.tensor([token]), layer)]
        return torch.cat(found) if found else vectors.new_zeros(0)

    def gradient(self, vectors: Tensor, layer: int | None, number: Callable[[Tensor], Tensor]) -> Tensor:
        """Returns the gradient of a number of logits [n, vocabulary] with respect to the vectors [n, d] that are read out."""
        with torch.enable_grad():
            vectors = vectors.detach().to(self.device).float().requires_grad_()
            return torch.autograd.grad(number(self._source.read_out(vectors, layer).float()), vectors)[0]

    def differences(self, vectors: Tensor, pairs: Tensor, layer: int | None) -> Tensor:
        """Returns the logit of one token minus that of another [n], of vectors [n, d]. `pairs`: ids of both tokens [n, 2].

        -1 stands for all tokens: the logarithm of the sum of what their logits are logarithms of. The logit of a token minus that is
        its log-probability. Else, where the output embedding is one plain matrix, only the rows of the tokens are used.
        """
        found, (tokens, columns) = vectors.new_zeros(len(vectors)), pairs.unique(return_inverse=True)
        for rows, logits in self._of_tokens(vectors, tokens, layer):
            both = logits.gather(1, columns[rows].to(logits.device))
            found[rows] = (both[:, 0] - both[:, 1]).to(found.device)
        return found

    def _of_tokens(self, vectors: Tensor, tokens: Tensor, layer: int | None) -> Iterator[tuple[slice, Tensor]]:
        """Yields logits of some tokens [token], a bounded number at a time: the rows, and their logits [rows, token]."""
        few = len(vectors) > 0 and bool((tokens >= 0).all()) and self._one_row_suffices(vectors[:1], layer)
        step = max(1, CHUNK_BYTES // (4 * (len(tokens) if few else self.vocabulary)))
        with self._rows(tokens) if few else contextlib.nullcontext():
            for start in range(0, len(vectors), step):
                logits = self.logits(vectors[start : start + step], layer)
                yield (
                    slice(start, start + len(logits)),
                    logits if few else _picked(logits, tokens.expand(len(logits), -1)),
                )

    def difference_gradients(self, vectors: Tensor, pairs: Tensor, layer: int | None) -> tuple[Tensor, Tensor]:
        """Returns what `differences` does, and its gradient with respect to the vectors [n, d]."""
        with torch.enable_grad():
            vectors = vectors.detach().to(self.device).float().requires_grad_()
            both = _picked(self._source.read_out(vectors, layer).float(), pairs)
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


def _picked(logits: Tensor, tokens: Tensor) -> Tensor:
    """Returns the logits [n, vocabulary] of some tokens [n, token]; of -1 see `Head.differences`."""
    found = logits.gather(1, tokens.clamp_min(0).to(logits.device))
    if bool((tokens >= 0).all()):
        return found
    return torch.where((tokens < 0).to(logits.device), logits.logsumexp(1, keepdim=True), found)
