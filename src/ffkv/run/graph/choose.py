"""Which memories at which tokens make a prediction: exact runs of copies of one prompt in which memories are patched.

A place is a memory at a token. Places are numbers in an array [token, memory] that is laid out flat. All functions are
about one prompt.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ffkv.base.errors import UserError
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.states import AtTokens, read_base, run_states
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.gradient import output_gradients
from ffkv.model.effects.patched import patched_ends
from ffkv.model.effects.rerun import TOLERANCE, Unchanged, run_unchanged
from ffkv.model.head.head import Head
from ffkv.model.placement.precision import running_in_float32
from ffkv.model.tap.hooks import relative_error
from ffkv.model.value_vectors import values_in_place

MASK = 2**27  # places of all copies of a pass
STEPS = 5  # from all patched to none, with both
FIRST, GROWTH = 2, 0.2  # how many places a set gets at a time: so many, or this share of those it has


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
    copies: int  # of the prompt in a pass

    @property
    def pair(self) -> Tensor:
        """Ids of the answer and of the wrong answer [1, 2]."""
        return torch.tensor([[self.prompt.answer, self.prompt.wrong]])

    def layer_of(self, places: np.ndarray) -> np.ndarray:
        """Returns the layer of each place."""
        found: np.ndarray = np.searchsorted(self.loaded.anatomy.layer_offset, places % self.m.shape[1], "right") - 1
        return found


def in_float32(loaded: LoadedModel) -> contextlib.AbstractContextManager[None]:
    """Inside the `with` statement, the model computes in float32: 16 bits would round a memory away."""
    return contextlib.nullcontext() if loaded.anatomy.dtype == "float32" else running_in_float32(loaded.model)


def read_subject(
    loaded: LoadedModel, head: Head, prompt: Encoded, mean: np.ndarray, baseline: str, batch_tokens: int
) -> Subject:
    """Reads the coefficients of a prompt, and what they are patched to.

    Args:
        mean: mean coefficients over the train split [memory].
        baseline: "mean" or "zero", or "patch": what coefficients are on `prompt.patch`.
        batch_tokens: maximum number of tokens per pass. A pass has one changed copy at least.
    """
    states, layers = AtTokens(loaded, [prompt.clean], [prompt.tokens]), loaded.anatomy.layers
    with in_float32(loaded):
        run_states(loaded, states)
        base = read_base(loaded, [prompt], mean, baseline, batch_tokens)[0].clone()
        ((unchanged,),) = run_unchanged(loaded, layers[-1:], [prompt.clean])
    m, values = torch.cat(states.m, 2)[0], [values_in_place(loaded.model, layer)[0] for layer in layers]
    copies = max(1, min(batch_tokens // len(prompt.clean), MASK // m.numel()) - 1)
    subject = Subject(loaded, head, prompt, unchanged, m, base, values, 0.0, copies)
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

    ids = torch.from_numpy(prompt.clean)[None].to(loaded.device)
    slopes, _ = output_gradients(loaded, ids, torch.tensor([ids.shape[1] - 1]), of_end, edit=edit)
    found = [
        move * (slope[0, -prompt.tokens :].to(v.device) @ v.T).cpu()
        for move, slope, v in zip(moves, slopes, subject.values, strict=True)
    ]
    return torch.cat(found, 1).ravel().numpy()


def _mask(subject: Subject, sets: Sequence[np.ndarray], but: bool) -> Tensor:
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
    parts = [sets[start : start + subject.copies] for start in range(0, len(sets), subject.copies)]
    found = [_patch(subject, part, but, np.zeros(0, np.int64) if hold is None else hold) for part in parts]
    differences, coefficients = zip(*found, strict=True)
    return np.concatenate(differences), np.concatenate(coefficients)


def _patch(subject: Subject, sets: Sequence[np.ndarray], but: bool, hold: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    loaded, shape, offset = subject.loaded, subject.m.shape, subject.loaded.anatomy.layer_offset
    patched = _mask(subject, sets, but)
    patched = torch.cat([patched, torch.zeros_like(patched[:1])])  # the last copy proves the pass: nothing is patched
    held = _mask(subject, [hold], False)[0]
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
        with in_float32(loaded):
            (ends,) = patched_ends(loaded, layers, bases, len(patched), edit, False, shape[0])
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


class Chosen(NamedTuple):
    """Places that keep a share of a logit difference."""

    places: np.ndarray  # ascending
    kept: float  # the share that they keep
    reached: bool  # whether that is the share that was asked for


def choose(
    subject: Subject, share: float, maximum: int, kept_by: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> Chosen:
    """Finds few places that keep a share of the logit difference when all others are patched.

    Three ways lead to a set. It grows by the places with the largest screen while all others are patched, which is measured anew each
    time. Or it has the places with the largest mean screen on the way from all patched to none. Or, of the places with the largest
    screen anywhere on that way, it has those with the largest exact effect when each is patched alone: this finds a chain of which no part
    does anything without the others. Then members are left out, as many at a time as can be, until no single one can be left out. The
    smallest set is taken.

    Args:
        share: the share to keep.
        maximum: most places.
        kept_by: the shares that sets of places keep.
    Returns:
        The places. If no set on the way keeps the share: the one of those that keeps most.
    """
    screens = [screen(subject, torch.full_like(subject.m, step)) for step in np.linspace(0, 1, STEPS)]
    sizes = np.max(np.abs(screens), axis=0)
    candidates = _highest(sizes, maximum)
    alone = np.zeros(subject.m.numel())
    if len(candidates):
        alone[candidates] = (
            subject.difference - patch(subject, [candidates[n : n + 1] for n in range(len(candidates))])[0]
        )
    orders = _highest(np.mean(screens, axis=0), maximum), _highest(alone, maximum)
    found = [_grow(subject, share, maximum, kept_by), *(_first(order, share, kept_by) for order in orders)]
    if reached := [_prune(each, share, kept_by) for each in found if each.reached]:
        return min(reached, key=lambda each: len(each.places))
    best = max(found, key=lambda each: each.kept)
    return best._replace(places=np.sort(best.places))


def _grow(
    subject: Subject, share: float, maximum: int, kept_by: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> Chosen:
    places, best = np.zeros(0, np.int64), Chosen(np.zeros(0, np.int64), 0.0, False)
    while not best.reached and len(places) < maximum:
        rises = screen(subject, _mask(subject, [places], False)[0].float())
        rises[places] = 0
        more = _highest(rises, min(max(FIRST, int(GROWTH * len(places))), maximum - len(places)))
        if not len(more):
            break
        places = np.concatenate([places, more])
        kept = float(kept_by([places])[0])
        best = Chosen(places, kept, kept >= share) if kept > best.kept else best
    return best


def _first(order: np.ndarray, share: float, kept_by: Callable[[Sequence[np.ndarray]], np.ndarray]) -> Chosen:
    """Returns the first places of an order, as few of the sizes that are tried as keep the share."""
    sizes = [0]
    while sizes[-1] < len(order):
        sizes.append(min(len(order), sizes[-1] + max(1, int(GROWTH * sizes[-1]))))
    kept = kept_by([order[:size] for size in sizes])
    reach = np.flatnonzero(kept >= share)
    best = int(reach[0]) if len(reach) else int(kept.argmax())
    return Chosen(order[: sizes[best]], float(kept[best]), len(reach) > 0)


def _highest(rises: np.ndarray, count: int) -> np.ndarray:
    """Returns the places with the largest rises above 0, the largest first, at most `count`."""
    order = np.argsort(-rises, kind="stable")[:count]
    return order[rises[order] > 0]


def _prune(chosen: Chosen, share: float, kept_by: Callable[[Sequence[np.ndarray]], np.ndarray]) -> Chosen:
    """Leaves out members, those first without which the others keep most, until none can be left out alone."""
    places, kept = np.sort(chosen.places), chosen.kept
    while len(places):
        rest = kept_by([np.delete(places, n) for n in range(len(places))])
        weakest = np.argsort(-rest, kind="stable")[: int((rest >= share).sum())]
        if not len(weakest):
            break
        counts = [len(weakest) >> halved for halved in range(len(weakest).bit_length())]  # down to one, which can go
        fewer = [np.delete(places, weakest[:count]) for count in counts]
        found = kept_by(fewer)
        if not (found >= share).any():  # another batch rounds otherwise
            break
        first = int(np.argmax(found >= share))
        places, kept = fewer[first], float(found[first])
    return Chosen(places, kept, True)


def random_places(subject: Subject, places: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draws, for each place, another one of its layer and token whose patch changes something; none twice.

    Where a layer has too few at a token, all of them are drawn.
    """
    memories, offset = subject.m.shape[1], np.asarray(subject.loaded.anatomy.layer_offset)
    moves = (subject.m != subject.base).numpy()
    groups, counts = np.unique(np.stack([places // memories, subject.layer_of(places)]), axis=1, return_counts=True)
    drawn = [np.zeros(0, np.int64)]
    for (token, layer), count in zip(groups.T, counts, strict=True):
        own = slice(offset[layer], offset[layer + 1])
        others = np.setdiff1d(token * memories + own.start + np.flatnonzero(moves[token, own]), places)
        drawn.append(generator.choice(others, min(count, len(others)), replace=False))
    return np.concatenate(drawn)
