"""The second step: what memories do on prompts. Contributions, and the screen: what a patch of each memory would do if all were linear."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches, pad
from ffkv.base.terminal import say
from ffkv.branches.behaviours import stored
from ffkv.branches.behaviours.settings import Behaviour
from ffkv.branches.behaviours.stored import BLOCK, NO_TOKEN, Encoded, PromptStates
from ffkv.branches.given import Given
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.gradient import held_gradients, link, why_not_held
from ffkv.model.head.head import Head
from ffkv.model.keys_and_values import values_in_place
from ffkv.model.tap.tap import tap


def read_behaviour(given: Given, settings: Behaviour) -> PromptStates:
    """Reads contributions and screen of every memory on the prompts of a behaviour, in the model's own number type.

    Returns what `stored.write_states` writes.

    Raises:
        UserError: states are not finite; or the model cannot be differentiated.
    """
    frame, examples = stored.used(given.table("encode", given.identity)), given.triggers
    own = frame.iloc[stored.rows_of_shard(len(frame), given.work.part)]
    attributes = {**examples.attributes, "settings": settings.model_dump(), "shard": given.work.part.index}
    loaded = given.model(gradients=True)
    how = (examples.mean, settings.baseline, loaded.batch_tokens, attributes)
    return read_states(loaded, given.head(), stored.encoded(own), *how, settings.frozen)


SUMMED = ("difference", "patch_difference", "screen", "frozen_screen")  # over the rows of a prompt


class AtTokens:
    """m, and the factor s of a norm after each layer, at the tokens of some prompts at which memories are patched.

    Prompts with fewer tokens are padded in front. `after`: number of tokens behind these.
    """

    def __init__(self, loaded: LoadedModel, rows: Sequence[np.ndarray], tokens: Sequence[int], after: int = 0):
        self.ids = pad(rows, loaded.device)
        self.last = torch.tensor([len(row) - 1 for row in rows])
        back = torch.arange(max(tokens)).flip(0)  # how far each token is from the last one that is patched
        at = (self.last[:, None] - after - back).clamp_min(0)
        places = torch.broadcast_tensors(torch.arange(len(rows))[:, None], at)
        self.places = torch.stack(places).to(loaded.device)
        self.padding = (back >= torch.tensor(tokens)[:, None]).to(loaded.device)  # [prompt, token]
        self.m = [torch.empty(0)] * len(loaded.anatomy.layers)  # [layer][prompt, token, memory], 0 in the padding
        self.s = torch.ones(len(self.m), *self.padding.shape, 1, device=loaded.device)  # [layer, prompt, token, 1]

    def receive(self, layer: Layer, quantity: str, tensor: Tensor) -> None:
        """Notes a quantity, as `tap` hands it out."""
        if quantity in "ms":
            getattr(self, quantity)[layer.index] = self.at(tensor)

    def at(self, tensor: Tensor) -> Tensor:
        """Returns a quantity [prompt, token, .] at the tokens, 0 in the padding, where it lies."""
        return tensor[*self.places.to(tensor.device)].float().masked_fill_(self.padding[..., None].to(tensor.device), 0)

    def all_m(self) -> Tensor:
        """Returns the coefficients of all memories [prompt, token, memory], on the CPU."""
        return torch.cat([m.to(self.padding.device) for m in self.m], 2).cpu()  # one copy


def side_by_side(prompts: Sequence[Encoded], batch_tokens: int) -> Iterator[np.ndarray]:
    """Yields the numbers of rows of similar length of one block of prompts, which are read together. First rows come first."""
    lengths = np.array([max(len(each.clean), len(each.patch)) for each in prompts])
    block, after = stored.owners(prompts) // BLOCK, np.array([each.after for each in prompts])
    for number in np.unique(block):
        for own in (np.flatnonzero((block == number) & (after == n)) for n in np.unique(after[block == number])):
            yield from (own[group] for group in batches(lengths[own], batch_tokens))


def read_states(
    loaded: LoadedModel,
    head: Head,
    prompts: Sequence[Encoded],
    mean: np.ndarray,
    baseline: str,
    batch_tokens: int,
    attributes: Mapping[str, Any],
    frozen: bool = True,
) -> PromptStates:
    """Reads what memories do on prompts.

    Args:
        prompts: the rows of prompts that are used, see `Encoded` [row]. Contributions are those of first rows.
        mean: mean coefficients over the train split [memory].
        baseline: the setting; without pairs "patch" is "mean".
        batch_tokens: maximum number of tokens per pass, padding included.
        attributes: of the file.
        frozen: whether memories are screened with norms and attention held, too.
    Raises:
        UserError: states are not finite, or the model cannot be differentiated.
    """
    owner = stored.owners(prompts)
    count, memories, offset = len(np.unique(owner)), loaded.anatomy.layer_offset[-1], loaded.anatomy.layer_offset
    names = ("contribution", "coefficient", "change", "screen")
    made = {name: np.full(count, np.nan, np.float32) for name in ("difference", "patch_difference", "probability")}
    made |= {name: np.zeros((count, memories), np.float32) for name in (*names, "frozen_screen")}
    values = [values_in_place(loaded.model, layer)[0] for layer in loaded.anatomy.layers]
    means = torch.from_numpy(mean).to(loaded.device)
    norms = torch.cat([v.double().norm(dim=1).float().cpu() for v in values])
    asked, why = [each.clean for each in prompts if each.answer != NO_TOKEN], ""
    if frozen and asked and (why := why_not_held(loaded, pad([max(asked, key=len)], loaded.device))):
        say(f"There is no frozen screen, because norms and attention cannot be held: {why}.", error=True)
    for rows in side_by_side(prompts, batch_tokens):
        own = [prompts[number] for number in rows]
        found = _read_batch(loaded, head, own, means, baseline, values, frozen and not why)
        found["contribution"] *= norms
        for name, tensor in found.items():
            if not own[0].after:
                made[name][owner[rows]] = tensor.numpy()
            elif name == "probability":
                np.multiply.at(made[name], owner[rows], tensor.numpy())
            elif name in SUMMED:
                np.add.at(made[name], owner[rows], tensor.numpy())
    if not all(np.isfinite(made[name]).all() for name in names):
        raise loaded.anatomy.overflow()
    return PromptStates(
        layer_offset=np.asarray(offset),
        norm=norms.numpy(),
        prompt=np.array([each.number for each in prompts if not each.after], np.int32),
        attributes={**attributes},
        **made,
    )


def _read_batch(
    loaded: LoadedModel,
    head: Head,
    prompts: Sequence[Encoded],
    mean: Tensor,
    baseline: str,
    values: Sequence[Tensor],
    hold: bool,
) -> dict[str, Tensor]:
    """Returns the fields of `PromptStates` of one batch, with s m in place of the contribution. `hold`: see `why_not_held`."""
    how = [each.tokens for each in prompts], prompts[0].after
    clean = AtTokens(loaded, [each.clean for each in prompts], *how)
    read_as, found = loaded.anatomy.read_as, dict[str, Tensor]()
    if prompts[0].answer == prompts[0].wrong == NO_TOKEN:  # two lists
        run_states(loaded, clean)
        scaled = [(s * m.to(s.device)).sum(1) for s, m in zip(clean.s, clean.m, strict=True)]
        return _copied({"contribution": torch.cat(scaled, 1), "coefficient": clean.all_m().sum(1)})
    pairs = torch.tensor([(each.answer, each.wrong) for each in prompts])

    def of_end(end: Tensor) -> Tensor:
        found["difference"], gradient = head.difference_gradients(end, pairs, read_as)
        return gradient

    gradients, end = link(loaded, clean.ids, clean.receive, "ms").at(clean.last, of_end)
    logits = head.logits(end, read_as)
    answers = pairs[:, :1].to(logits.device)
    probability = logits.double().softmax(-1).gather(1, answers.clamp_min(0)).where(answers >= 0, 1)
    found["probability"] = probability[:, 0].float()
    patch = None
    if len(prompts[0].patch):
        patch = AtTokens(loaded, [each.patch for each in prompts], *how)
        found["patch_difference"] = head.differences(run_states(loaded, patch), pairs, read_as)
    held = held_gradients(loaded, clean.ids, clean.last, of_end, end) if hold else None
    of_layers: list[dict[str, Tensor]] = []
    for layer, of_mean in enumerate(mean.split([len(v) for v in values])):
        m, v, slopes = clean.m[layer], values[layer], (gradients[layer], (held or gradients)[layer])
        s, padding = clean.s[layer].to(m.device), clean.padding[..., None].to(m.device)
        of_mean = of_mean.to(m.device) * ~padding
        other_m, other_s = (patch.m[layer], patch.s[layer].to(m.device)) if patch else (of_mean, s)
        change = s * (m - {"patch": other_m, "mean": of_mean, "zero": torch.zeros_like(m)}[baseline])
        screen, frozen = ((change * (clean.at(g).to(v.device) @ v.T)).sum(1) for g in slopes)
        of_layers.append(
            {
                "contribution": (s * m - other_s * other_m).sum(1),
                "coefficient": (m - other_m).sum(1),
                "change": change.abs().sum(1),
                "screen": screen,
                "frozen_screen": frozen if held else torch.full_like(frozen, torch.nan),
            }
        )
    of_memories = {name: torch.cat([each[name].to(loaded.device) for each in of_layers], 1) for name in of_layers[0]}
    return _copied(found | of_memories)


def _copied(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies what was found [prompt, .] to the CPU, all at once."""
    device = next(reversed(found.values())).device
    flat = [each.reshape(len(each), -1).to(device) for each in found.values()]
    parts = torch.cat(flat, 1).cpu().split([each.shape[1] for each in flat], 1)
    return {name: part.reshape(own.shape) for (name, own), part in zip(found.items(), parts, strict=True)}


def run_states(loaded: LoadedModel, states: AtTokens) -> Tensor:
    """Runs prompts without gradients; returns what the head reads at the last token [prompt, d]."""
    ends, rows = list[Tensor](), torch.arange(len(states.ids))

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if layer is loaded.anatomy.layers[-1] and quantity == loaded.anatomy.end:
            ends.append(tensor[rows, states.last].float())
        states.receive(layer, quantity, tensor)

    with tap(loaded.model, loaded.anatomy.layers, f"ms{loaded.anatomy.end}") as run:
        run(states.ids, receive)
    return ends[0]
