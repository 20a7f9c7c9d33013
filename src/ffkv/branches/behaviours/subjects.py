"""Prompts whose memories are patched: exact runs of copies of each, and a screen by one backward pass.

A place is a memory at a token. Places are numbers in an array [token, memory] that is laid out flat. A graph has members: of one
prompt these are places, of a set of prompts memories, at all tokens that are patched.
"""

import contextlib
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv.branches.behaviours.states import AtTokens, read_base, run_states
from ffkv.branches.behaviours.stored import Encoded
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.gradient import output_gradients
from ffkv.model.effects.rerun import TOLERANCE, Running, Unchanged, patched_ends, run_unchanged
from ffkv.model.head.head import Head
from ffkv.model.keys_and_values import values_in_place
from ffkv.model.placement import running_in_float32
from ffkv.model.tap.hooks import relative_error

STEPS = 5  # from all patched to none, with both
MASK = 2**27  # places of all copies of a pass


class Subject(NamedTuple):
    """A prompt, and what its memories are patched to."""

    loaded: LoadedModel
    head: Head
    prompt: Encoded
    unchanged: Unchanged
    m: Tensor  # coefficients of all memories at the tokens that are patched [token, memory]
    base: Tensor  # what they become [token, memory]
    values: Sequence[Tensor]  # [layer][memory, d]
    difference: float  # logit of the answer minus that of the wrong answer
    room: int  # tokens in a pass

    @property
    def pair(self) -> Tensor:
        """Ids of the answer and of the wrong answer [1, 2]."""
        return torch.tensor([[self.prompt.answer, self.prompt.wrong]])


def read_subject(
    loaded: LoadedModel,
    head: Head,
    prompt: Encoded,
    mean: np.ndarray,
    baseline: str,
    batch_tokens: int,
    keep: bool = False,
) -> Subject:
    """Reads the coefficients of a prompt, and what they are patched to.

    Args:
        mean: mean coefficients over the train split [memory].
        baseline: "mean" or "zero", or "patch": what coefficients are on `prompt.patch`.
        batch_tokens: maximum number of tokens per pass. A pass has one changed copy at least.
        keep: whether the model keeps keys and values (`ffkv.model.effects.rerun.keeps`), and memories are patched at the last
            token alone. Then a copy reads one token.
    """
    states, layers = AtTokens(loaded, [prompt.clean], [prompt.tokens]), loaded.anatomy.layers
    with running_in_float32(loaded.model):
        run_states(loaded, states)
        base = read_base(loaded, [prompt], mean, baseline, batch_tokens)[0].clone()
        ((unchanged,),) = run_unchanged(loaded, layers[-1:], [prompt.clean], keep)
    m, values = torch.cat(states.m, 2)[0], [values_in_place(loaded.model, layer)[0] for layer in layers]
    subject = Subject(loaded, head, prompt, unchanged, m, base, values, 0.0, batch_tokens)
    difference = head.differences(unchanged.end[None], subject.pair, loaded.anatomy.read_as).item()
    return subject._replace(difference=difference)


def screen(subject: Subject, weight: Tensor) -> np.ndarray:
    """Returns by how much the logit difference would rise if each place got its own coefficient back [place].

    The rise is what it would be if all were linear, in a state in which coefficients are between what they are patched to and what they
    would be: one backward pass.

    Args:
        weight: how near each coefficient is to its own one: 0 if it is patched, 1 if it is not [token, memory].
    Raises:
        UserError: the model cannot be differentiated.
    """
    loaded, prompt, offset = subject.loaded, subject.prompt, subject.loaded.anatomy.layer_offset
    moves: list[Tensor] = []  # by what o changes along each value if it is not patched [layer][token, memory]

    def edit(layer: Layer, m: Tensor, factor: Tensor) -> Tensor:
        place = slice(offset[layer.index], offset[layer.index + 1])
        own, s = m[0, -prompt.tokens :].float(), factor[0, -prompt.tokens :].float()
        rises = own - subject.base[:, place].to(m.device)
        moves.append((s * rises).detach().cpu())
        change = -s * (rises * (1 - weight[:, place].to(m.device))) @ subject.values[layer.index]
        return torch.cat([change.new_zeros(m.shape[1] - prompt.tokens, change.shape[1]), change])[None]

    def of_end(end: Tensor) -> Tensor:
        return subject.head.difference_gradients(end, subject.pair, loaded.anatomy.read_as)[1]

    ids = torch.tensor(prompt.clean)[None].to(loaded.device)
    slopes, _ = output_gradients(loaded, ids, torch.tensor([ids.shape[1] - 1]), of_end, edit=edit)
    found = [
        move * (slope[0, -prompt.tokens :].to(v.device) @ v.T).cpu()
        for move, slope, v in zip(moves, slopes, subject.values, strict=True)
    ]
    return torch.cat(found, 1).ravel().numpy()


def screens(subject: Subject) -> list[np.ndarray]:
    """Returns `screen` in `STEPS` states on the way from all patched to none [step][place]."""
    return [screen(subject, torch.full_like(subject.m, step)) for step in np.linspace(0, 1, STEPS)]


def mask_of(subject: Subject, sets: Sequence[np.ndarray], but: bool) -> Tensor:
    """Tells which places are in each set, or, if `but`, which are not [set, token, memory]."""
    mask = torch.full((len(sets), subject.m.numel()), but)
    for row, places in zip(mask, sets, strict=True):
        row[torch.from_numpy(places)] = not but
    return mask.reshape(-1, *subject.m.shape)


def patch(
    subject: Subject, sets: Sequence[np.ndarray], but: bool = False, hold: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Runs a copy of the prompt for each set of places, which are patched.

    Args:
        but: all places are patched but those of the set.
        hold: places that keep the coefficients that they have without changes, unless they are patched.
    Returns:
        The logit difference of each copy [copy], and the coefficients that the places to be held have before they are held
        [copy, place].
    Raises:
        UserError: the model cannot be changed while it runs.
    """
    held = np.zeros(0, np.int64) if hold is None else hold

    def in_parts(keep: bool) -> tuple[np.ndarray, np.ndarray]:
        length = 1 if keep else len(subject.prompt.clean)
        copies = max(1, min(subject.room // length, MASK // subject.m.numel()) - 1)
        parts = [sets[start : start + copies] for start in range(0, len(sets), copies)]
        differences, coefficients = zip(*(_patch(subject, part, but, held, keep) for part in parts), strict=True)
        return np.concatenate(differences), np.concatenate(coefficients)

    if subject.unchanged.past:
        with contextlib.suppress(UserError):  # behind what is kept; else each copy reads its whole prompt
            return in_parts(keep=True)
    return in_parts(keep=False)


def _patch(
    subject: Subject, sets: Sequence[np.ndarray], but: bool, hold: np.ndarray, keep: bool
) -> tuple[np.ndarray, np.ndarray]:
    loaded, shape, offset = subject.loaded, subject.m.shape, subject.loaded.anatomy.layer_offset
    patched = mask_of(subject, sets, but)
    patched = torch.cat([patched, torch.zeros_like(patched[:1])])  # the last copy proves the pass: nothing is patched
    held = mask_of(subject, [hold], False)[0]
    token, memory = np.divmod(hold, shape[1])
    seen = torch.zeros(len(patched), len(hold))

    def edit(layer: Layer, m: Tensor, factor: Tensor) -> Tensor:
        place = slice(offset[layer.index], offset[layer.index + 1])
        own = (place.start <= memory) & (memory < place.stop)
        seen[:, torch.from_numpy(own)] = m[:, token[own], memory[own] - place.start].cpu()
        wanted = torch.where(held[:, place].to(m.device), subject.m[:, place].to(m), m)
        wanted = torch.where(patched[..., place].to(m.device), subject.base[:, place].to(m), wanted)
        return (factor * (wanted - m)) @ subject.values[layer.index]

    try:
        bases, layers = [subject.unchanged], loaded.anatomy.layers
        with running_in_float32(loaded.model):
            (ends,) = patched_ends(loaded, layers, bases, len(patched), edit, keep, shape[0])
        problem: Exception | None = None
    except UserError:
        raise
    except Exception as error:  # the model's own code refuses such arguments, in a way of its own
        problem = error
    if problem or relative_error(ends[-1], subject.unchanged.end) >= TOLERANCE:
        raise UserError(
            f"{loaded.anatomy.checkpoint} cannot be changed while it runs: a change of nothing changes its prediction"
            f"{f' ({problem})' if problem else ''}. There is no graph of such a model."
        ) from problem
    differences = subject.head.differences(ends[:-1], subject.pair.expand(len(sets), 2), loaded.anatomy.read_as)
    return differences.cpu().double().numpy(), seen[:-1].double().numpy()


class Subjects:
    """Prompts on which sets of members are patched. No run is made twice. Members are places of one prompt, or memories."""

    def __init__(self, subjects: Sequence[Subject], group: np.ndarray, of_places: bool = False):
        self.subjects = subjects
        self.group = group  # of each prompt [prompt]
        self.of_places = of_places
        self.all = np.arange(subjects[0].m.numel() if of_places else subjects[0].m.shape[1])  # numbers of all members
        self.whole = np.array([subject.difference for subject in subjects])  # logit differences [prompt]
        self.known: list[dict[tuple[bool, bytes], float]] = [{} for _ in subjects]
        self.without = self.differences([np.zeros(0, np.int64)])[:, 0]  # when all memories are patched [prompt]

    def differences(self, sets: Sequence[np.ndarray], but: bool = True, used: np.ndarray | None = None) -> np.ndarray:
        """Returns the logit difference when all memories but those of each set are patched; or, without `but`, when those are.

        Args:
            sets: numbers of members [set][member].
            used: the prompts to run; by default all [prompt].
        Returns:
            [prompt, set]; NaN for prompts that are not used.
        """
        keys = [(but, np.sort(own).tobytes()) for own in sets]
        found = np.full((len(self.subjects), len(sets)), np.nan)
        for n in [*range(len(found))] if used is None else np.flatnonzero(used).tolist():
            known, subject = self.known[n], self.subjects[n]
            missing = {key: self.places(subject, own) for key, own in zip(keys, sets, strict=True) if key not in known}
            if missing:
                known |= zip(missing, patch(subject, [*missing.values()], but)[0].tolist(), strict=True)
            found[n] = [known[key] for key in keys]
        return found

    def places(self, subject: Subject, members: np.ndarray) -> np.ndarray:
        """Returns the places of members: of memories those at all tokens, token by token."""
        tokens, width = subject.m.shape
        return members if self.of_places else (np.arange(tokens)[:, None] * width + members).ravel()

    def at(self, members: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the token of each member, 0 of memories; its layer; and its number there."""
        offset = np.asarray(self.subjects[0].loaded.anatomy.layer_offset)
        token, memory = np.divmod(members, self.subjects[0].m.shape[1])
        layer = np.searchsorted(offset, memory, "right") - 1
        return token, layer, memory - offset[layer]

    @cached_property
    def moved(self) -> np.ndarray:
        """The members whose patch changes something, ascending."""
        moves = [(subject.m != subject.base).numpy() for subject in self.subjects]
        return np.flatnonzero(moves[0] if self.of_places else np.any([own.any(0) for own in moves], axis=0))

    def draw_beside(self, members: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Draws, for each member, another one of its layer, and of its token, whose patch changes something; none twice.

        Where a layer has too few at a token, all of them are drawn.
        """
        others = np.setdiff1d(self.moved, members)
        (token, layer, _), (of_token, of_layer, _) = self.at(members), self.at(others)
        groups, counts = np.unique(np.stack([token, layer]), axis=1, return_counts=True)
        drawn = [np.zeros(0, np.int64)]
        for (token, layer), count in zip(groups.T, counts, strict=True):
            own = others[(of_token == token) & (of_layer == layer)]
            drawn.append(generator.choice(own, min(count, len(own)), replace=False))
        return np.concatenate(drawn)

    def rises(self) -> np.ndarray:
        """Returns the screens of each prompt on the way from all patched to none, of memories summed over tokens [step, prompt, member]."""
        of_prompts = [[own.reshape(-1, len(self.all)).sum(0) for own in screens(subject)] for subject in self.subjects]
        return np.array(of_prompts, np.float32).swapaxes(0, 1)

    def effects(self, members: np.ndarray, used: np.ndarray | None = None) -> np.ndarray:
        """Returns by how much the logit difference falls when each member is patched alone [prompt, member]. `used`: as above."""
        return self.whole[:, None] - self.differences([*members[:, None]], but=False, used=used)

    def losses(self, members: np.ndarray) -> np.ndarray:
        """Returns by how much less the logit difference is without each member, all others but these patched [prompt, member]."""
        return self.differences([members]) - self.differences([np.delete(members, n) for n in range(len(members))])


def read_subjects(
    running: Running, prompts: Sequence[Encoded], group: np.ndarray, mean: np.ndarray, baseline: str
) -> Subjects:
    """Reads prompts. Arguments: as in `read_subject`, and the group of each prompt."""
    how = mean, baseline, running.batch_tokens, running.keeps
    return Subjects([read_subject(running.loaded, running.head, each, *how) for each in prompts], group)
