"""The proof that runs on every model before anything is analysed: the identities of the decomposition, on real tokens."""

import torch
from torch import Tensor, nn

from ffkv.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.calibrate import TOLERANCE, calibrate, capture, replay
from ffkv.model.find import find
from ffkv.model.head import Head
from ffkv.model.hooks import after, forward, hidden, relative_error
from ffkv.model.memories import values
from ffkv.model.tap import tap

PASSAGES = (
    "The harbour was quiet when the first boats came in. A woman on the quay counted the crates, wrote the number in a "
    "small green book, and asked the captain whether the storm of Tuesday night had cost him any of his nets.",
    "In 1897 the committee published a report of 214 pages on the water supply of the city. It recommended three new "
    "reservoirs, of which only one was ever built, because the council could not agree on how to pay for the others.",
)
LONGEST = 40  # tokens of a passage that are run
DISTINCT = 8  # different tokens that a passage must have to prove anything


def decompose(model: nn.Module, tokenizer) -> tuple[list[Layer], Tensor]:
    """Finds and calibrates every feed-forward layer on one passage.

    Returns:
        The layers, and the ids of another passage [2, token] to prove them on.
    Raises:
        UserError: the model has no feed-forward layers that can be read; says which and why.
    """
    first, second = (_two_sentences(tokenizer, passage, model) for passage in PASSAGES)
    found = find(model, first)
    arguments = capture(model, [block for block, _ in found], first)
    layers = [calibrate(model, index, block, write, arguments[block]) for index, (block, write) in enumerate(found)]
    return layers, second


def _two_sentences(tokenizer, passage: str, model: nn.Module) -> Tensor:
    """The passage's ids as two sentences of equal length [2, token]."""
    ids = tokenizer(passage, add_special_tokens=False, verbose=False)["input_ids"]
    largest = model.get_input_embeddings().weight.shape[0]
    if max(ids) >= largest:
        raise UserError(
            f"The tokenizer gives id {max(ids)}, but the model embeds only {largest} tokens: it is the tokenizer of another model."
        )
    if len(set(ids)) < DISTINCT:  # a tokenizer that knows no English: any of its tokens will do
        ids = torch.randint(
            min(len(tokenizer), largest), (len(ids),), generator=torch.Generator().manual_seed(len(passage))
        ).tolist()
    context = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None) or LONGEST
    tokens = min(len(ids) // 2, LONGEST, context)
    return torch.tensor(ids[: 2 * tokens]).reshape(2, tokens)


def prove(model: nn.Module, layers: list[Layer], ids: Tensor) -> dict[str, float]:
    """The largest relative error over all layers of each identity, on ids [sentence, token] that nothing was fitted to.

    - memories: sum_i m_i v_i + b = y
    - residual: o - y = o with the feed-forward layer switched off
    - prefix: the coefficients of a prefix do not depend on the tokens after it

    Raises:
        UserError: an identity fails; names it, the layer and the error.
    """
    tolerance = TOLERANCE[model.dtype]
    states, prefix = observe(model, layers, ids), observe(model, layers, ids[:, : ids.shape[1] * 2 // 3])
    arguments = capture(model, [layer.block for layer in layers], ids)
    errors = dict.fromkeys(["memories", "residual", "prefix"], 0.0)
    for layer in layers:
        m, y, o = (states[layer.index][quantity] for quantity in "myo")
        v, b = values(model, layer)
        module, inside = model.get_submodule(layer.block), layer.writes[0].module[len(layer.block) + 1 :]
        off = replay(module, arguments[layer.block], off=inside)
        r = off.inputs[layer.site[len(layer.block) + 1 :]] if layer.site else off.output
        short = prefix[layer.index]["m"]
        found = {
            "memories": relative_error(m @ v + b, y),
            "residual": relative_error(o - y, r.float().reshape(o.shape)),
            "prefix": relative_error(short, m[:, : short.shape[1]]),
        }
        for name, error in found.items():
            _require(name, error, tolerance, layer)
            errors[name] = max(errors[name], error)
    return errors


def _require(identity: str, error: float, tolerance: float, layer: Layer) -> None:
    if error < tolerance:  # false for NaN, too
        return
    reasons = {
        "memories": "the memories do not add up to the feed-forward layer's output",
        "residual": "block output minus feed-forward output is not what the block returns without its feed-forward layer",
        "prefix": "not causal: the coefficients of a prefix change with the tokens after it (an encoder loaded without is_decoder=True?)",
    }
    raise UserError(
        f"layer {layer.index} ({layer.writes[0].module}): {reasons[identity]} (relative error {error:.0e}, allowed {tolerance:.0e})"
    )


def prove_head(head: Head, layer: int, final: Tensor, logits: Tensor, tolerance: float) -> float:
    """The relative error of head(o^L) against the model's own logits.

    Args:
        layer: the last layer, from 0. final: its block output [sentence, token, d]; logits: the model's [sentence, token, vocabulary].
    Raises:
        UserError: they differ by more than the tolerance.
    """
    read = head.logits(final.reshape(-1, final.shape[-1]), layer)
    error = relative_error(read.reshape(logits.shape), logits)
    if not error < tolerance:
        raise UserError(
            f"what follows the last block does not depend on its output alone: reading it out gives other logits than the model (relative error {error:.0e}, allowed {tolerance:.0e})"
        )
    return error


def observe(model: nn.Module, layers: list[Layer], ids: Tensor) -> list[dict[str, Tensor]]:
    """Copies of m, y and o of every layer on ids [sentence, token], in float32."""
    states: list[dict[str, Tensor]] = [{} for _ in layers]

    def take(layer: Layer, quantity: str, tensor: Tensor) -> None:
        states[layer.index][quantity] = tensor.float().clone()

    with tap(model, layers, "myo", take) as run:
        run(ids)
    return states


def logits_and_form(model: nn.Module, layers: list[Layer], ids: Tensor) -> tuple[Tensor, int]:
    """The model's own logits in float32, and how many values its last block returns (0 for a bare tensor)."""
    form: list[int] = []

    def note(module, args, kwargs, output) -> None:
        form.append(0 if torch.is_tensor(hidden(output)) and torch.is_tensor(output) else len(output))

    with after((model.get_submodule(layers[-1].block), note)):
        logits = forward(model, ids).logits.float()
    return logits, form[0]
