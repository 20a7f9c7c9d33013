"""Prompts whose memories are patched: exact runs of copies of many prompts side by side, and a screen by one backward pass.

A place is a memory at a token. Places are numbers in an array [token, memory] that is laid out flat. A graph has members: of one
prompt these are places, of a set of prompts memories, at all tokens that are patched.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ffkv.base.batching import batches, tight_batches, to_device
from ffkv.base.errors import UserError
from ffkv.branches.behaviours.states import AtTokens, run_states
from ffkv.branches.behaviours.stored import Encoded
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.gradient import link
from ffkv.model.effects.rerun import TOLERANCE, Running, Unchanged, patched_ends, run_unchanged
from ffkv.model.head.head import Head
from ffkv.model.keys_and_values import values_in_place
from ffkv.model.placement import running_in_float32
from ffkv.model.tap.hooks import tried

STEPS = 5  # from all patched to none, with both
PLACES = 2**27  # of all copies of a pass: a byte each
RISES = 2**24  # of all states of a backward pass: some five numbers of 4 bytes each
NOTHING = np.zeros(0, np.int64)  # no places, no members


class Subject(NamedTuple):
    """A prompt, and what its memories are patched to."""

    loaded: LoadedModel
    head: Head
    prompt: Encoded
    unchanged: Unchanged
    m: Tensor  # coefficients of all memories at the tokens that are patched [token, memory]
    base: Tensor  # what they become [token, memory]
    s: Tensor  # the factor of a norm after each layer there [layer, token, 1], on the model's device
    values: Sequence[Tensor]  # [layer][memory, d]
    difference: float  # logit of the answer minus that of the wrong answer
    room: int  # tokens in a pass

    def place_of(self, layer: Layer) -> slice:
        """The memories of a layer among those of all."""
        return slice(*self.loaded.anatomy.layer_offset[layer.index : layer.index + 2])


class Copy(NamedTuple):
    """A copy of a prompt of which places are patched."""

    places: np.ndarray
    but: bool = False  # all places are patched but these


def read_prompts(running: Running, prompts: Sequence[Encoded], mean: np.ndarray, baseline: str) -> list[Subject]:
    """Reads the coefficients of prompts, or of rows with as many tokens behind those that are patched, and what they are patched to.

    A pass has one changed copy at least. `running`: if it keeps keys and values, memories are patched at the last token alone, and a
    copy reads one token. `mean`, `baseline`: see `states.read_states`.
    """
    loaded, layers, found = running.loaded, running.loaded.anatomy.layers, dict[int, Subject]()
    values = [values_in_place(loaded.model, layer)[0] for layer in layers]
    others = torch.from_numpy(mean.astype(np.float32) * (baseline != "zero"))
    for batch in batches(np.array([max(len(each.clean), len(each.patch)) for each in prompts]), running.batch_tokens):
        own = [prompts[n] for n in batch.tolist()]
        rows, pairs = [each.clean for each in own], torch.tensor([(each.answer, each.wrong) for each in own])
        tokens, after = [each.tokens for each in own], own[0].after
        states, base = AtTokens(loaded, rows, tokens, after), others.expand(len(own), max(tokens), -1)
        with running_in_float32(loaded.model):
            run_states(loaded, states)
            if baseline == "patch" and len(own[0].patch):
                patched = AtTokens(loaded, [each.patch for each in own], tokens, after)
                run_states(loaded, patched)
                base = patched.all_m()
            (unchanged,) = run_unchanged(loaded, layers[-1:], rows, running.keeps)
        m, ends = states.all_m(), torch.stack([each.end for each in unchanged])
        differences = running.head.differences(ends, pairs, loaded.anatomy.read_as).tolist()
        for place, n in enumerate(batch.tolist()):
            of_m, of_base = (each[place, -tokens[place] :].clone() for each in (m, base))
            its = own[place], unchanged[place], of_m, of_base, states.s[:, place, -tokens[place] :]
            found[n] = Subject(loaded, running.head, *its, values, differences[place], running.batch_tokens)
    return [found[n] for n in range(len(prompts))]


def _alike(subjects: Sequence[Subject], keep: bool = False) -> Iterator[tuple[int, list[int]]]:
    """Yields numbers of prompts that run side by side: as many tokens, and patched at the same. And the tokens of a copy."""
    prompts = [each.prompt for each in subjects]
    shapes = [(each.tokens + each.after if keep else len(each.clean), each.tokens, each.after) for each in prompts]
    for shape, own in itertools.groupby(sorted(range(len(shapes)), key=shapes.__getitem__), shapes.__getitem__):
        yield shape[0], [*own]


def _stack(tensors: Iterable[Tensor], device: torch.device | str) -> Tensor:
    return torch.stack([*tensors]).to(device)


def _pairs(subjects: Iterable[Subject]) -> Tensor:
    """Ids of the answer and of the wrong answer [prompt, 2]."""
    return torch.tensor([(each.prompt.answer, each.prompt.wrong) for each in subjects])


def screen(
    subjects: Sequence[Subject], weights: Sequence[Tensor]
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Screens prompts in some states: by how much the logit difference would rise if each place got its own coefficient back.

    The rise is what it would be if all were linear, in a state in which coefficients are between what they are patched to and what they
    would be. One backward pass has several states, of one prompt or of several.

    Args:
        subjects: the prompt of each state [state].
        weights: how near each coefficient is to its own one: 0 if it is patched, 1 if it is not [state][token, memory].
    Yields:
        Of each pass: the numbers of its states, the rises [state, place], and the logit differences in these states [state].
    Raises:
        UserError: the model cannot be differentiated.
    """
    for length, numbers in _alike(subjects):
        count = max(1, min(subjects[0].room, RISES // subjects[0].m.shape[1]) // length)
        for own in (numbers[start : start + count] for start in range(0, len(numbers), count)):
            yield own, *_screen([subjects[n] for n in own], [weights[n] for n in own])


def _screen(subjects: Sequence[Subject], weights: Sequence[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    loaded, head, prompt = subjects[0].loaded, subjects[0].head, subjects[0].prompt
    at = slice(-prompt.tokens - prompt.after, -prompt.after or None)
    base, weight = (_stack(each, loaded.device) for each in ((own.base for own in subjects), weights))
    moves: list[Tensor] = []  # by what o changes along each value if it is not patched [layer][state, token, memory]
    differences: list[Tensor] = []

    def edit(layer: Layer, m: Tensor, factor: Tensor) -> Tensor:
        place = subjects[0].place_of(layer)
        own, s = m[:, at].float(), factor[:, at].float()
        rises = own - base[..., place].to(m.device)
        moves.append((s * rises).detach())
        change = -s * (rises * (1 - weight[..., place].to(m.device))) @ subjects[0].values[layer.index]
        return pad(change, (0, 0, m.shape[1] - prompt.tokens - prompt.after, prompt.after))

    def of_end(end: Tensor) -> Tensor:
        found, gradient = head.difference_gradients(end, _pairs(subjects), loaded.anatomy.read_as)
        differences.append(found[:, None].to(loaded.device))
        return gradient

    ids = to_device(np.stack([each.prompt.clean for each in subjects]), loaded.device)
    slopes, _ = link(loaded, ids, edit=edit).at(torch.full((len(ids),), ids.shape[1] - 1), of_end)
    found = [
        (move * (slope[:, at].to(v.device) @ v.T)).to(loaded.device)
        for move, slope, v in zip(moves, slopes, subjects[0].values, strict=True)
    ]
    both = torch.cat([torch.cat(found, 2).flatten(1), *differences], 1).cpu().numpy()  # one copy
    return both[:, :-1], both[:, -1]


def patch(
    subjects: Sequence[Subject], copies: Sequence[Sequence[Copy]], hold: np.ndarray = NOTHING, ends: bool = False
) -> list[list[Any]]:
    """Runs copies of prompts, of which places are patched. A pass has copies of several prompts.

    Args:
        copies: of each prompt [prompt][copy].
        hold: places that keep the coefficients that they have without changes, unless they are patched.
        ends: whether to return what the head reads in each copy, too.
    Returns:
        Of each prompt, the logit difference of each copy [copy]; the coefficients that the places to be held have before they
        are held [copy, place]; and `ends`: a tensor [copy, d], float32.
    Raises:
        UserError: the model cannot be changed while it runs.
    """

    def in_passes(keep: bool) -> list[list[Any]]:
        made: list[list[Any]] = [[np.empty(len(own)), np.empty((len(own), len(hold)))] for own in copies]
        for subject, own in zip(subjects, made if ends else ()):
            own.append(subject.unchanged.end.new_empty(len(own[0]), len(subject.unchanged.end)))
        for parts in _passes(subjects, copies, keep):
            both = [subjects[n] for n, _ in parts], [copies[n][rows] for n, rows in parts]
            for (n, rows), *found in zip(parts, *_patch(*both, hold, keep), strict=True):
                for whole, part in zip(made[n], found):
                    whole[rows] = part[: rows.stop - rows.start]
        return made

    if all(each.unchanged.past for each in subjects):
        with contextlib.suppress(UserError):  # behind what is kept; else each copy reads its whole prompt
            return in_passes(keep=True)
    return in_passes(keep=False)


def _passes(
    subjects: Sequence[Subject], copies: Sequence[Sequence[Copy]], keep: bool
) -> Iterator[list[tuple[int, slice]]]:
    """Yields the prompts of each pass, and which of their copies it has. One more copy of each proves the pass."""
    for length, numbers in _alike(subjects, keep):
        room = min(subjects[0].room, PLACES // subjects[0].m.shape[1])
        most = max(1, room // length - 1)
        starts = [(n, start) for n in numbers for start in range(0, len(copies[n]), most)]
        parts = [(n, slice(start, min(start + most, len(copies[n])))) for n, start in starts]
        sizes = np.array([length * (1 + rows.stop - rows.start) for _, rows in parts])
        for group in tight_batches(sizes, room, subjects[0].loaded.device):
            yield [parts[place] for place in group.tolist()]


def _patch(
    subjects: Sequence[Subject], copies: Sequence[Sequence[Copy]], hold: np.ndarray, keep: bool
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Runs one pass. Returns what `patch` does [prompt, copy, .]; a last copy of each prompt is whole, and proves the pass."""
    (loaded, head, prompt, *_), device, values = subjects[0], subjects[0].loaded.device, subjects[0].values
    shape = len(subjects), 1 + max(map(len, copies)), prompt.tokens, subjects[0].m.shape[1]
    size, but, places = shape[2] * shape[3], np.zeros((*shape[:2], 1, 1), bool), [NOTHING]
    for n, each in enumerate(copies):
        for number, copy in enumerate(each):
            but[n, number] = copy.but
            places.append(copy.places + (n * shape[1] + number) * size)
    named = torch.zeros(shape, dtype=torch.bool, device=device)
    named.view(-1).index_fill_(0, to_device(np.concatenate(places), device), True)
    patched = named ^ to_device(but, device)  # [prompt, copy, token, memory]; none behind the copies of a prompt
    base = _stack((each.base for each in subjects), device)[:, None]
    order = np.argsort(hold % shape[3], kind="stable")  # by layer
    token, memory = np.divmod(hold[order], shape[3])
    own, at = _stack((each.m for each in subjects), device)[:, None], to_device(np.stack([token, memory]), device)
    seen: list[Tensor] = []

    def edit(layer: Layer, m: Tensor, factor: Tensor) -> Tensor:
        place, its = subjects[0].place_of(layer), m.reshape(*shape[:3], -1)
        wanted = its
        if len(hold):
            tokens, memories = at[:, slice(*np.searchsorted(memory, [place.start, place.stop]))].to(m.device)
            held = ..., tokens, memories - place.start
            seen.append(its[held].to(device))
            wanted = its.clone()
            wanted[held] = own[..., place].to(m)[held]
        wanted = torch.where(patched[..., place].to(m.device), base[..., place].to(m), wanted)
        return (factor * (wanted - its).reshape(m.shape)) @ values[layer.index]

    bases, count = [each.unchanged for each in subjects], shape[1]
    expected = _stack((each.end for each in bases), device)
    if not keep:  # the copies of all prompts have as many tokens
        ids = torch.cat([each.ids.expand(count, -1) for each in bases])
        bases, count = [bases[0]._replace(ids=ids)], len(ids)
    with running_in_float32(loaded.model):  # the model's own code may refuse such arguments, in a way of its own
        ends = tried(patched_ends, loaded, loaded.anatomy.layers, bases, count, edit, keep, shape[2], prompt.after)
    problem = ends if isinstance(ends, Exception) else None
    if not problem:
        ends, pairs = ends.flatten(0, 1), _pairs(subjects).repeat_interleave(shape[1], 0)
        differences = head.differences(ends, pairs, loaded.anatomy.read_as).to(device).reshape(*shape[:2], 1)
        proof = (ends.to(device).unflatten(0, shape[:2])[:, -1] - expected).abs().amax(1) / expected.abs().amax(1)
        found = torch.cat([proof[:, None, None].expand_as(differences), differences, *seen], 2).cpu().double().numpy()
    if problem or not (found[..., 0] < TOLERANCE).all():
        raise UserError(
            f"{loaded.anatomy.checkpoint} cannot be changed while it runs: a change of nothing changes its prediction"
            f"{f' ({problem})' if problem else ''}. Leave `behaviours` and graphs out for this model."
        ) from problem
    return found[..., 1], found[..., 2:][..., np.argsort(order)], ends.unflatten(0, shape[:2])
