"""The head: everything that turns a residual vector into vocabulary logits, without the blocks.

The blocks of the model are emptied; the last one returns the vectors that are to be read. What remains is the model's own
final norm, projections, output embedding, scale and soft cap, so nothing needs to be known of them.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.anatomy import Anatomy, Layer, read_anatomy
from ffkv.runtime import choose_device

FILE = "head.safetensors"
CHUNK_BYTES = 2**26  # of logits at a time: bounds the memory whatever the vocabulary


class Head:
    """Reads vectors of the residual stream out into logits."""

    def __init__(self, emptied: nn.Module, layers: list[Layer], vocabulary: int, device: str, projection: str = "head"):
        """Takes a model that `empty` has emptied. `projection` is the setting `values.projection`."""
        self._model, self._layers, self._device = emptied, layers, device
        self.vocabulary, self._projection = vocabulary, projection

    def chunks(self, vectors: Tensor, layer: int) -> Iterator[tuple[slice, Tensor]]:
        """Logits of many vectors, a bounded number at a time.

        Args:
            vectors: residual-stream vectors [n, d].
            layer: the layer they were taken from. A post-norm model's block reads them out through its own last norm.
        Yields:
            Which rows, and their logits [rows, vocabulary] in float32.
        """
        rows = max(1, CHUNK_BYTES // (4 * self.vocabulary))
        for start in range(0, len(vectors), rows):
            part = slice(start, min(start + rows, len(vectors)))
            yield part, self.logits(vectors[part], layer)

    def logits(self, vectors: Tensor, layer: int) -> Tensor:
        """Logits of vectors [n, d] of a layer, as float32 [n, vocabulary]."""
        vectors = vectors.to(self._device)
        if self._projection == "unembedding":
            return vectors @ self.output_embedding().T
        return self._through_head(vectors, layer)

    def output_embedding(self) -> Tensor:
        """The output embedding E [vocabulary, d] in float32.

        Raises:
            UserError: the model has no single matrix from the residual stream to the vocabulary.
        """
        embedding = self._model.get_output_embeddings()
        if embedding is None or embedding.weight.shape[0] != self.vocabulary:
            raise UserError("This model has no single output embedding: use values.projection 'head'.")
        return embedding.weight.float()

    def _through_head(self, vectors: Tensor, layer: int) -> Tensor:
        last, at = self._layers[-1], self._layers[layer]
        with torch.no_grad():
            states = vectors.to(self._model.dtype)[:, None]
            if at.site:
                states = hidden_after(self._model.get_submodule(at.site), states)
            block = self._model.get_submodule(last.block)
            block.injected = states
            ids = torch.zeros(len(vectors), 1, dtype=torch.long, device=self._device)
            return self._model(input_ids=ids, use_cache=False).logits[:, 0].float()


def hidden_after(module: nn.Module, states: Tensor) -> Tensor:
    """What a module makes of hidden states."""
    output = module(states)
    return output if torch.is_tensor(output) else output[0]


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


def empty(model: nn.Module, layers: list[Layer], returns: int) -> nn.Module:
    """Empties the blocks of a model in place: they pass their input on, the last returns what is injected.

    The blocks themselves stay, with the attributes that the model's own code asks them for, and where a block adds the
    feed-forward output before a last norm, that norm stays too.
    """
    last, sites = layers[-1].block, {layer.site for layer in layers if layer.site}
    for siblings in dict.fromkeys(layer.block.rpartition(".")[0] for layer in layers):
        for name, block in model.get_submodule(siblings).named_children():
            path = f"{siblings}.{name}"
            kept = {site[len(path) + 1 :].split(".")[0] for site in sites if site.startswith(path + ".")}
            for part in [part for part in block._modules if part not in kept]:
                del block._modules[part]
            block._parameters.clear()
            block._buffers.clear()
            block.forward = _pass_on(block, path == last, returns)
    return model


def _pass_on(block: nn.Module, is_last: bool, returns: int):
    def forward(hidden_states: Tensor, *args, **kwargs):
        output = block.injected if is_last else hidden_states
        return (output, *[None] * (returns - 1)) if returns else output

    return forward


def write_head(folder: Path, model: nn.Module, layers: list[Layer], returns: int) -> None:
    """Empties the model and writes what is left, config included. Tensors that share memory are written once."""
    emptied = empty(model, layers, returns)
    names: dict[int, str] = {}
    aliases, tensors = {}, {}
    for name, tensor in [*emptied.named_parameters(remove_duplicate=False), *emptied.named_buffers(remove_duplicate=False)]:
        first = names.setdefault(id(tensor), name)
        aliases[name] = first
        tensors[first] = tensor.detach().cpu().contiguous()
    save_file(tensors, folder / FILE, metadata=aliases)
    emptied.config.save_pretrained(folder)


def load_head(model_folder: Path, device: str = "auto", projection: str = "head") -> Head:
    """The head of a proven model, without its blocks.

    Args:
        model_folder: `results/<run>/model`.
        projection: "head", or "unembedding" for the output embedding alone.
    Raises:
        UserError: the model stage has not been run.
    """
    anatomy = read_anatomy(model_folder)
    device = choose_device(device)
    return Head(_load(Path(model_folder), anatomy).to(device), anatomy.layers, anatomy.vocabulary, device, projection)


def _load(folder: Path, anatomy: Anatomy) -> nn.Module:
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM, logging

    logging.set_verbosity_error()
    source = anatomy.checkpoint if anatomy.trust_remote_code else folder
    config = AutoConfig.from_pretrained(source, trust_remote_code=anatomy.trust_remote_code)
    tensors = load_file(folder / FILE)
    with safe_open(folder / FILE, "pt") as file:
        aliases = file.metadata()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=next(iter(tensors.values())).dtype, trust_remote_code=anatomy.trust_remote_code)
    empty(model, anatomy.layers, anatomy.returns)
    shared = {name: nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items() if tensor.is_floating_point()}
    for name, first in aliases.items():
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        if attribute in module._buffers:
            module._buffers[attribute] = tensors[first]
        else:
            module._parameters[attribute] = shared[first]
    return model.eval()
