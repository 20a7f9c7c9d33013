"""Which experts the routers send prompts to, and what each expert does there: the step `experts`.

An expert leaves a prompt in three ways, at the tokens at which memories are patched. `removed`: its contribution leaves.
`renormalised`: the weights of the token's other experts grow, too, so that they sum up to what they did. `replaced`: the router
leaves it out, so that the next expert takes its place. In each way o of its layer changes by a known vector; the factor of a norm
behind the layer is held. Beside it stand changes of the same length by which the token's other experts would leave.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from ffkv.base.batching import batches, pad, to_device
from ffkv.base.files import tables
from ffkv.base.files.columns import REACHES
from ffkv.base.multiple_tests import q_values
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.behaviours import stored
from ffkv.branches.behaviours.contrast import Drawn, estimate, p_values
from ffkv.branches.behaviours.settings import Behaviour
from ffkv.branches.behaviours.states import side_by_side
from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.behaviours.tables import EXPERTS
from ffkv.branches.behaviours.words import CHANGES, ESTIMATE, PAIRS, REFERENCE, REMOVED
from ffkv.branches.given import Given
from ffkv.model.anatomy import Layer
from ffkv.model.effects.rerun import TOLERANCE, Running, Unchanged, changed_ends, run_unchanged
from ffkv.model.routing import Routed, experts_of, route, route_without
from ffkv.model.tap.hooks import relative_error, tried

PLACE = ["layer", "expert"]


def measure_experts(given: Given, settings: Behaviour, seed: int = 0) -> pd.DataFrame:
    """Measures where routers send the prompts of a behaviour, and on prompts of the second half what each expert does.

    The model computes in float32. A model without experts has no rows. There is no effect where `measure_behaviour` measures
    nothing. Returns the table `EXPERTS`.

    Raises:
        UserError: the model cannot be changed while it runs.
    """
    frame, found = stored.used(given.table("encode", given.identity)), pd.DataFrame()
    if any(experts_of(layer) for layer in given.anatomy.layers):
        with given.running(whole=settings.positions == "all") as its:
            found = measure_routing(its, frame, settings.flips, seed)
            found = found.merge(pd.DataFrame(itertools.product(CHANGES, REACHES), columns=["change", "reach"]), "cross")
            if stored.accuracy_of(given.table("answers", given.identity)) >= settings.minimum_accuracy:
                own = stored.first(frame, ESTIMATE, settings.effect_prompts)
                effects = measure_effects(its, stored.encoded(own), own["group"].to_numpy(str), settings.flips, seed)
                found = found.merge(effects, "left", [*PLACE, "change", "reach"])
    found = found.reindex(columns=EXPERTS.names).fillna({"prompts": 0, "active": 0})
    return tables.frame(EXPERTS, found.assign(behaviour=given.name), given.train_identity)


class Tokens(NamedTuple):
    """Prompts side by side, and the tokens at their ends."""

    ids: Tensor  # padded on the right [prompt, token]
    chosen: Tensor  # the numbers of the tokens at the ends in `ids` laid out flat, prompt by prompt [chosen token]
    counts: list[int]  # how many of them each prompt has


def tokens_of(rows: Sequence[np.ndarray], counts: list[int], device: str) -> Tokens:
    """Puts prompts side by side. `counts`: number of tokens at the end of each one."""
    ids = pad(rows, device)
    ends = [
        n * ids.shape[1] + np.arange(len(row) - count, len(row)) for n, (row, count) in enumerate(zip(rows, counts))
    ]
    return Tokens(ids, to_device(np.concatenate(ends), device), counts)


def measure_routing(running: Running, frame: pd.DataFrame, flips: int, seed: int) -> pd.DataFrame:
    """Returns the columns of the table `EXPERTS` about routing, a row per expert. All prompts count: nothing is chosen by them.

    `frame`: the prompts that are used, from the table `PROMPTS`. Pairs are compared with their other prompts, one of two lists
    with the other, and prompts with prefixes of other text.
    """
    pairs = stored.kind_of(frame) == PAIRS
    frame = frame[frame["part"] != REFERENCE] if pairs else frame
    drawn = Drawn(frame["positive"].to_numpy(bool), frame["group"].to_numpy(str))
    prompts, by_layer = stored.encoded(frame), []
    counts = [each.tokens for each in prompts]
    clean = read_shares(running, [each.clean for each in prompts], counts)
    patch = read_shares(running, [each.patch for each in prompts], counts) if pairs else {}
    for layer, own in clean.items():
        values = own - patch[layer] if pairs else own
        sides = (own, patch[layer]) if pairs else (own[drawn.positive], own[~drawn.positive])
        logs = [np.log((each.sum(0) + 0.5) / (len(each) + 1)) for each in sides]
        generator = random_stream(seed, Purpose.EXPERT_FLIPS, layer, 1)
        p = p_values(values.astype(np.float32), drawn, flips, generator)
        of_layer = {"layer": layer, "expert": np.arange(len(p)), "clean": sides[0].mean(0), "patch": sides[1].mean(0)}
        of_layer |= {"log_ratio": logs[0] - logs[1], "p_value": p, "q_value": q_values(p, len(p))}
        by_layer.append(pd.DataFrame(of_layer))
    return pd.concat(by_layer, ignore_index=True)


def read_shares(running: Running, rows: Sequence[np.ndarray], counts: Sequence[int]) -> dict[int, np.ndarray]:
    """Returns the share of the last tokens of each prompt that each expert gets, by layer [prompt, expert].

    `counts`: number of these tokens of each prompt.
    """
    layers = running.loaded.anatomy.layers
    found = {layer.index: np.zeros((len(rows), experts_of(layer))) for layer in layers if experts_of(layer)}
    for batch in batches(np.array([*map(len, rows)]), running.batch_tokens):
        its = tokens_of([rows[n] for n in batch], [counts[n] for n in batch], running.loaded.device)
        for layer, own in route(running.loaded, its.ids, its.chosen).items():
            sent = one_hot(own.expert + 1, found[layer].shape[1] + 1).sum(1)[:, 1:].double()  # empty slots are left out
            found[layer][batch] = torch.stack([part.mean(0) for part in sent.split(its.counts)]).cpu().numpy()
    return found


class Leaving(NamedTuple):
    """What the experts of a layer write at tokens, and by what o changes when one of them leaves."""

    expert: Tensor  # number of the expert; -1: none [token, slot]
    written: Tensor  # [token, slot, d]
    changes: Tensor  # NaN where it is not known [token, slot, change, d]


def read_leaving(running: Running, its: Tokens, unproven: dict[int, str]) -> dict[int, Leaving]:
    """Reads, by layer, what experts write at the chosen tokens, and by what o changes when one leaves, in each of `CHANGES`.

    The weights of the others cannot be scaled where they act inside of experts, or where there is no other expert. What takes
    the place of an expert is known if a router that leaves nothing out does what it did; and, at a token, if the expert is gone
    and as many experts work. `unproven`: gets the layers where this fails, and why.
    """
    outputs, factors = dict[int, Tensor](), dict[int, Tensor]()

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        (outputs if quantity == "o" else factors)[layer.index] = tensor.clone()

    plain = route(running.loaded, its.ids, its.chosen, receive)
    instead = replaced(running, its, plain, outputs, unproven)
    found = {}
    for layer, own in plain.items():
        s = factors[layer].flatten(0, 1)[its.chosen].float()[:, None] if layer in factors else 1
        c, weight = s * own.written, own.weight[..., None]
        total = c.sum(1, keepdim=True)
        grow = weight / (weight.sum(1, keepdim=True) - weight)
        found[layer] = Leaving(own.expert, c, torch.stack([-c, grow * (total - c) - c, s * instead[layer] - total], 2))
    return found


def replaced(
    running: Running, its: Tokens, plain: Mapping[int, Routed], outputs: Mapping[int, Tensor], unproven: dict[int, str]
) -> dict[int, Tensor]:
    """Returns what all experts of a token write if the router leaves one out, by layer [token, slot, d]; NaN: see `read_leaving`."""
    found = {layer: torch.full_like(own.written, torch.nan) for layer, own in plain.items()}
    none = {layer: torch.full_like(its.chosen, -1).to(own.expert.device) for layer, own in plain.items()}
    slots = max(own.expert.shape[1] for own in plain.values())
    for slot in range(-1, slots):  # first nothing is left out
        out = {n: own.expert[:, slot] if 0 <= slot < own.expert.shape[1] else none[n] for n, own in plain.items()}
        made = tried(route_without, running.loaded, its.ids, its.chosen, outputs, out)
        for layer, own in plain.items():
            if isinstance(made, Exception):
                unproven[layer] = f"{type(made).__name__}: {made}"[:200]
            elif slot < 0 and not relative_error(made[layer].written.sum(1), own.written.sum(1)) < TOLERANCE:
                unproven[layer] = "a router that leaves nothing out does something else"
            elif 0 <= slot < own.expert.shape[1] and layer not in unproven:
                new, old = made[layer].expert, out[layer][:, None]
                proven = (new != old).all(1) & ((new >= 0).sum(1) == (own.expert >= 0).sum(1))
                if not (proven | (old[:, 0] < 0)).all():
                    unproven[layer] = "the router does not send each token to as many other experts"
                found[layer][proven, slot] = made[layer].written.sum(1)[proven]
    return found


def changes_beside(its: Leaving) -> tuple[Tensor, Tensor]:
    """Returns the experts of a prompt [expert], and by what o changes when each leaves [expert, change, 1 + control, token, d].

    A control is a change of the same length at each token by which another expert of this token would leave. It is 0 where that
    expert writes nothing.
    """
    experts, (tokens, slots) = its.expert[its.expert >= 0].unique(), its.expert.shape
    found = its.written.new_zeros(len(experts), len(CHANGES), slots, tokens, its.written.shape[-1])
    away = -normalize(its.written, dim=-1, eps=1e-30)
    for of_expert, expert in zip(found, experts, strict=True):
        token, slot = torch.where(its.expert == expert)
        own = its.changes[token, slot].transpose(0, 1)
        of_expert[:, 0, token] = own
        for control in range(slots - 1):
            of_expert[:, 1 + control, token] = own.norm(dim=-1, keepdim=True) * away[token, control + (control >= slot)]
    return experts, found


class Effects(NamedTuple):
    """What the experts of a layer do on prompts; 0 where no token is sent to them."""

    own: np.ndarray  # by how much the logit difference falls when each leaves [prompt, reach, expert, change]
    beside: np.ndarray  # the same of its controls, their mean; NaN without one [prompt, reach, expert, change]
    length: np.ndarray  # length of what the expert writes, summed over tokens [prompt, expert]
    active: np.ndarray  # whether a token is sent to it [prompt, expert]


def measure_effects(
    running: Running, prompts: Sequence[Encoded], group: np.ndarray, flips: int, seed: int
) -> pd.DataFrame:
    """Returns the columns of the table `EXPERTS` about effects, a row per expert that a token is sent to, change and reach.

    `group`: of each prompt [prompt].
    """
    loaded, unproven, made = running.loaded, dict[int, str](), dict[int, Effects]()
    layers = [layer for layer in loaded.anatomy.layers if experts_of(layer)]
    for layer in layers:
        of_prompt = len(prompts), experts_of(layer)
        effects = np.zeros((2, len(prompts), len(REACHES), experts_of(layer), len(CHANGES)))
        made[layer.index] = Effects(effects[0], effects[1], np.zeros(of_prompt), np.zeros(of_prompt, bool))
    with progress(len(prompts), "prompts", "experts") as bar:
        for rows in side_by_side(prompts, running.batch_tokens):
            own = [prompts[n] for n in rows]
            clean = [each.clean for each in own]
            its = tokens_of(clean, [each.tokens for each in own], loaded.device)
            leaving = read_leaving(running, its, unproven)
            for layer, bases in zip(layers, run_unchanged(loaded, layers, clean, running.keeps), strict=True):
                parts = zip(*(part.split(its.counts) for part in leaving[layer.index]), strict=True)
                measure_layer(running, layer, own, bases, [Leaving(*part) for part in parts], made[layer.index], rows)
            bar.update(len(rows))
    for number, why in unproven.items():
        say(
            f"Layer {number}: what takes the place of an expert is not always known ({why}): there `replaced` is empty."
        )
    generator, drawn = random_stream(seed, Purpose.EXPERT_FLIPS, 0, 2), Drawn(np.ones(len(group), bool), group)
    tested = [estimate_effects(own, drawn, flips, generator).assign(layer=number) for number, own in made.items()]
    found = pd.concat(tested, ignore_index=True)
    for _, own in found.dropna(subset="effect_p").groupby(["change", "reach"]):
        found.loc[own.index, "effect_q"] = q_values(own["effect_p"].to_numpy(), len(own))
    return found


def measure_layer(
    running: Running,
    layer: Layer,
    prompts: Sequence[Encoded],
    bases: Sequence[Unchanged],
    leaving: Sequence[Leaving],
    made: Effects,
    rows: np.ndarray,
) -> None:
    """Measures what the experts of a layer do on prompts that run side by side.

    `bases`: the prompts unchanged. `leaving`: what leaves, of each prompt. `made`: gets what is found, at some `rows`.
    """
    every = [changes_beside(its) for its in leaving]
    flat = [changes.flatten(0, 2).flatten(1) for _, changes in every]  # [change or control, token * d]
    known = [each.isfinite().all(1) for each in flat]
    run = [of & (each != 0).any(1) for each, of in zip(flat, known, strict=True)]
    # A change of nothing is the last one of each prompt: what it gives is rounded as the others are.
    asked = [torch.cat([each[its], torch.zeros_like(each[:1])]) for each, its in zip(flat, run, strict=True)]
    asked = [each.unflatten(1, (its.written.shape[0], -1)) for each, its in zip(asked, leaving, strict=True)]
    asked = [each[:, -1] for each in asked] if running.keeps else asked
    ends = changed_ends(running.loaded, layer, running.reruns[layer.index], bases, asked)
    counts = [*map(len, asked)]
    pairs = torch.tensor([(each.answer, each.wrong) for each in prompts]).repeat_interleave(torch.tensor(counts), 0)
    for number, reach in enumerate(REACHES):
        after = running.head.differences(torch.cat([*ends[reach]]), pairs, running.loaded.anatomy.read_as)
        parts = after.double().cpu().split(counts)
        for row, (experts, changes), told, ran, own in zip(rows, every, known, run, parts, strict=True):
            falls = torch.where(told.cpu(), 0, torch.nan).double()
            falls[ran.cpu()] = own[-1] - own[:-1]
            falls, nothing = (each.reshape(changes.shape[:3]) for each in (falls, ~ran.cpu()))
            controls = falls[..., 1:].masked_fill(nothing[..., 1:] & ~nothing[..., :1], torch.nan)
            place = row, number, experts.cpu().numpy()
            made.own[place], made.beside[place] = falls[..., 0].numpy(), controls.nanmean(-1).numpy()
    for row, (experts, changes) in zip(rows, every, strict=True):
        own = experts.cpu().numpy()
        made.active[row, own] = True
        made.length[row, own] = changes[:, CHANGES.index(REMOVED), 0].norm(dim=-1).sum(-1).cpu().numpy()


def estimate_effects(own: Effects, drawn: Drawn, flips: int, generator: np.random.Generator) -> pd.DataFrame:
    """Returns rows of a layer, as `measure_effects` does, without q-values.

    The p-value is that of effect minus control, by sign flips of groups. An expert whose mean effect is no larger than that of its
    controls has 1.
    """
    kinds = pd.MultiIndex.from_product(
        [REACHES, range(own.active.shape[1]), CHANGES], names=["reach", "expert", "change"]
    )
    found = kinds.to_frame(index=False)
    found = found.assign(
        prompts=len(own.active), active=own.active.sum(0)[found["expert"]], length=own.length.mean(0)[found["expert"]]
    )
    effects, controls = (each.reshape(len(each), -1) for each in (own.own, own.beside))
    effects[:, found["active"] == 0] = np.nan
    for name, values in (("effect", effects), ("difference", effects - controls)):
        start = "" if name == "effect" else f"{name}_"
        found[name], found[f"{start}low"], found[f"{start}high"] = estimate(values, drawn)
    found["beside"] = found["effect"] - found["difference"]
    tested = found["difference"].notna().to_numpy()
    found["effect_p"] = np.nan
    found.loc[tested, "effect_p"] = p_values(
        (effects - controls)[:, tested].astype(np.float32), drawn, flips, generator
    )
    found.loc[tested & (found["effect"].abs() <= found["beside"].abs()), "effect_p"] = 1.0
    return found
