"""What memories do on prompts: contributions, and the screen, which is what a patch of each memory would do if all were linear."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches, pad
from ffkv.base.errors import UserError
from ffkv.base.terminal import say
from ffkv.branches.behaviours.encode import NO_TOKEN, Encoded
from ffkv.branches.behaviours.states_file import BLOCK, PromptStates
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.frozen import Frozen
from ffkv.model.effects.gradient import output_gradients
from ffkv.model.head.head import Head
from ffkv.model.tap.hooks import relative_error
from ffkv.model.tap.tap import tap
from ffkv.model.value_vectors import values_in_place

TOLERANCE = 1e-3  # relative: a frozen pass rounds otherwise; a wrong one is off by more than 1e-2


class AtLastToken:
    """m, the factor s of a norm after each layer, and the end, at the last token of some prompts."""

    def __init__(self, loaded: LoadedModel, rows: Sequence[np.ndarray]):
        self.layers = loaded.anatomy.layers
        self.ids = pad(rows, loaded.device)
        self.last = torch.tensor([len(row) - 1 for row in rows])
        self.m = torch.zeros(len(rows), loaded.anatomy.layer_offset[-1])
        self.factor = torch.ones(len(rows), len(self.layers))
        self.offset = loaded.anatomy.layer_offset

    def receive(self, layer: Layer, quantity: str, tensor: Tensor) -> None:
        """Notes a quantity, as `tap` hands it out."""
        found = tensor[torch.arange(len(self.last)), self.last].float().cpu()
        if quantity == "m":
            self.m[:, self.offset[layer.index] : self.offset[layer.index + 1]] = found
        elif quantity == "s":
            self.factor[:, layer.index] = found[:, 0]

    def times_factor(self, m: Tensor) -> Tensor:
        """Returns s m of each memory, with the factors s of these prompts [prompt, memory]."""
        return self.factor.repeat_interleave(torch.tensor(np.diff(self.offset)), 1) * m


def read_states(
    loaded: LoadedModel,
    head: Head,
    prompts: Sequence[Encoded],
    numbers: np.ndarray,
    mean: np.ndarray,
    baseline: str,
    batch_tokens: int,
    attributes: Mapping[str, Any],
) -> PromptStates:
    """Reads what memories do on prompts.

    Args:
        prompts: prompts that are used [prompt].
        numbers: their numbers [prompt].
        mean: mean coefficients over the train split [memory].
        baseline: the setting; without pairs "patch" is "mean".
        batch_tokens: maximum number of tokens per pass, padding included.
        attributes: of the file.
    Raises:
        UserError: states are not finite, or the model cannot be differentiated.
    """
    count, memories, offset = len(prompts), loaded.anatomy.layer_offset[-1], loaded.anatomy.layer_offset
    of_prompts = {
        name: np.full(count, np.nan, np.float32) for name in ("difference", "patch_difference", "probability")
    }
    names = ("contribution", "coefficient", "change", "screen", "frozen_screen")
    of_memories = {name: np.zeros((count, memories), np.float32) for name in names}
    values = [values_in_place(loaded.model, layer)[0] for layer in loaded.anatomy.layers]
    norms = torch.cat([v.double().norm(dim=1).float().cpu() for v in values])
    for start in range(0, count, BLOCK):
        block = prompts[start : start + BLOCK]
        lengths = np.array([max(len(each.clean), len(each.patch)) for each in block])
        for batch in batches(lengths, batch_tokens):
            chosen = [block[number] for number in batch]
            rows = start + batch
            found = _read_batch(loaded, head, chosen, torch.from_numpy(mean), baseline, values)
            found["contribution"] *= norms
            for name, tensor in found.items():
                (of_prompts if name in of_prompts else of_memories)[name][rows] = tensor.numpy()
    if not all(np.isfinite(of_memories[name]).all() for name in names[:4]):
        raise UserError(
            f"States of {loaded.anatomy.checkpoint} are not finite: the model overflows in {loaded.anatomy.dtype}. Use"
            " model.dtype float32."
        )
    return PromptStates(
        layer_offset=np.asarray(offset),
        norm=norms.numpy(),
        prompt=numbers.astype(np.int32),
        attributes={**attributes},
        **of_prompts,
        **of_memories,
    )


def _read_batch(
    loaded: LoadedModel, head: Head, prompts: Sequence[Encoded], mean: Tensor, baseline: str, values: Sequence[Tensor]
) -> dict[str, Tensor]:
    """Returns the fields of `PromptStates` of one batch, with s m in place of the contribution."""
    clean = AtLastToken(loaded, [each.clean for each in prompts])
    read_as, found = loaded.anatomy.read_as, dict[str, Tensor]()
    if prompts[0].answer == NO_TOKEN:  # two lists
        _run(loaded, clean)
        return {"contribution": clean.times_factor(clean.m), "coefficient": clean.m}
    pairs = torch.tensor([(each.answer, each.wrong) for each in prompts])

    def of_end(end: Tensor) -> Tensor:
        difference, gradient = head.difference_gradients(end, pairs, read_as)
        found["difference"] = difference.cpu()
        return gradient

    gradients, end = output_gradients(loaded, clean.ids, clean.last, of_end, clean.receive, "ms")
    logits = head.logits(end, read_as).cpu()
    found["probability"] = logits.double().softmax(-1).gather(1, pairs[:, :1])[:, 0].float()
    other_m, other_scaled = mean.expand_as(clean.m), clean.times_factor(mean)
    if len(prompts[0].patch):
        patch = AtLastToken(loaded, [each.patch for each in prompts])
        found["patch_difference"] = head.differences(_run(loaded, patch), pairs, read_as).cpu()
        other_m, other_scaled = patch.m, patch.times_factor(patch.m)
    found["contribution"], found["coefficient"] = clean.times_factor(clean.m) - other_scaled, clean.m - other_m
    base = {"patch": other_m, "mean": mean.expand_as(clean.m), "zero": torch.zeros_like(clean.m)}[baseline]
    change = found["change"] = clean.times_factor(clean.m - base)
    found["screen"] = change * slopes(gradients, values)
    with Frozen():
        held, held_end = output_gradients(loaded, clean.ids, clean.last, of_end)
    if relative_error(held_end, end) < TOLERANCE:
        found["frozen_screen"] = change * slopes(held, values)
    else:
        say("Norms and attention of this model cannot be held: a pass that holds them predicts otherwise.", error=True)
        found["frozen_screen"] = torch.full_like(clean.m, torch.nan)
    return found


def slopes(gradients: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Returns v · g of each memory, with the gradient g at the output of its layer [prompt, memory]."""
    return torch.cat([(g.to(v.device) @ v.T).cpu() for g, v in zip(gradients, values, strict=True)], 1)


def _run(loaded: LoadedModel, states: AtLastToken) -> Tensor:
    """Runs prompts without gradients; returns what the head reads at the last token [prompt, d]."""
    ends: list[Tensor] = []

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if layer is loaded.anatomy.layers[-1] and quantity == loaded.anatomy.end:
            ends.append(tensor[torch.arange(len(states.last)), states.last].float().clone())
        states.receive(layer, quantity, tensor)

    with tap(loaded.model, loaded.anatomy.layers, f"ms{loaded.anatomy.end}") as run:
        run(states.ids, receive)
    return ends[0]


def read_base(
    loaded: LoadedModel, prompts: Sequence[Encoded], mean: np.ndarray, baseline: str, batch_tokens: int
) -> np.ndarray:
    """Returns what the coefficient of each memory becomes when it is patched [prompt, memory]. Arguments: see `read_states`."""
    if baseline == "zero":
        return np.zeros((len(prompts), len(mean)), np.float32)
    base = np.tile(mean.astype(np.float32), (len(prompts), 1))
    paired = np.array([n for n, each in enumerate(prompts) if baseline == "patch" and len(each.patch)], int)
    for batch in batches(np.array([len(prompts[n].patch) for n in paired.tolist()]), batch_tokens):
        patch = AtLastToken(loaded, [prompts[n].patch for n in paired[batch].tolist()])
        _run(loaded, patch)
        base[paired[batch]] = patch.m.numpy()
    return base
