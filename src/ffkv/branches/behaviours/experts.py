"""Which experts the routers send prompts to, and what each expert does there: the step `experts`.

An expert leaves a prompt in three ways, at the tokens at which memories are patched. `removed`: its contribution leaves.
`renormalised`: the weights of the token's other experts grow, too, so that they sum up to what they did. `replaced`: the router
leaves it out, so that the next expert takes its place. In each way o of its layer changes by a known vector; the factor of a norm
behind the layer is held. Beside it stand changes of the same length by which the token's other experts would leave.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot
from torch.nn.functional import pad as pad_end
from torch.nn.utils.rnn import pad_sequence

from ffkv.base.batching import batches, pad, to_device
from ffkv.base.files import tables
from ffkv.base.files.columns import REACHES
from ffkv.base.intervals import put_estimate, without_each
from ffkv.base.multiple_tests import q_values
from ffkv.base.process.progress import progress
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.behaviours import stored
from ffkv.branches.behaviours.contrast import Drawn, p_values
from ffkv.branches.behaviours.settings import Behaviour
from ffkv.branches.behaviours.states import side_by_side
from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.behaviours.tables import EXPERTS
from ffkv.branches.behaviours.words import CHANGES, ESTIMATE, PAIRS, REFERENCE, REMOVED, REPLACED
from ffkv.branches.given import Given
from ffkv.model.anatomy import Layer
from ffkv.model.effects.rerun import TOLERANCE, Running, Unchanged, changed_ends, run_unchanged
from ffkv.model.routing import Routed, banks_of, leaving_out, route
from ffkv.model.tap.hooks import relative_error, tried


def measure_experts(given: Given, settings: Behaviour, seed: int = 0) -> pd.DataFrame:
    """Measures where routers send the prompts of a behaviour, and on prompts of the second half what each expert does.

    The model computes in float32. A model without experts has no rows. There is no effect where `measure_behaviour` measures
    nothing. Returns the table `EXPERTS`.

    Raises:
        UserError: the model cannot be changed while it runs.
    """
    frame, found = stored.used(given.table("encode", given.identity)), pd.DataFrame()
    if banks_of(given.anatomy.layers):
        with given.running(whole=settings.positions == "all") as its:
            found = measure_routing(its, frame, settings.flips, seed)
            found = found.merge(pd.DataFrame(itertools.product(CHANGES, REACHES), columns=["change", "reach"]), "cross")
            if stored.accuracy_of(given.table("answers", given.identity)) >= settings.minimum_accuracy:
                own = stored.first(frame, ESTIMATE, settings.effect_prompts)
                effects = measure_effects(its, stored.encoded(own), own["group"].to_numpy(str), settings.flips, seed)
                found = found.merge(effects, "left", ["layer", "expert", "change", "reach"])
    found = found.reindex(columns=EXPERTS.names).fillna({"prompts": 0, "active": 0})
    return tables.frame(EXPERTS, found.assign(behaviour=given.name), given.train_identity)


def measure_routing(running: Running, frame: pd.DataFrame, flips: int, seed: int) -> pd.DataFrame:
    """Returns the columns of the table `EXPERTS` about routing, a row per expert. All prompts count: nothing is chosen by them.

    `frame`: the prompts that are used, from the table `PROMPTS`. Pairs are compared with their other prompts, one of two lists
    with the other, and prompts with prefixes of other text.
    """
    pairs = stored.kind_of(frame) == PAIRS
    frame = frame[frame["part"] != REFERENCE] if pairs else frame
    drawn = Drawn.named(frame)
    prompts, by_layer = [each for each in stored.encoded(frame) if not each.after], []
    counts = [each.tokens for each in prompts]
    clean = read_shares(running, [each.clean for each in prompts], counts)
    patch = read_shares(running, [each.patch for each in prompts], counts) if pairs else {}
    for layer, own in clean.items():
        values = own - patch[layer] if pairs else own
        sides = (own, patch[layer]) if pairs else (own[drawn.positive], own[~drawn.positive])
        logs = [np.log2((each.sum(0) + 0.5) / (len(each) + 1)) for each in sides]
        p = p_values(values.astype(np.float32), drawn, flips, random_stream(seed, Purpose.EXPERT_FLIPS, layer, 1))
        of_layer = {"layer": layer, "expert": np.arange(len(p)), "clean": sides[0].mean(0), "patch": sides[1].mean(0)}
        of_layer |= {"log_ratio": logs[0] - logs[1], "p_value": p, "q_value": q_values(p, len(p))}
        by_layer.append(pd.DataFrame(of_layer))
    return pd.concat(by_layer, ignore_index=True)


def read_shares(running: Running, rows: Sequence[np.ndarray], counts: Sequence[int]) -> dict[int, np.ndarray]:
    """Returns the share of the last tokens of each prompt that each expert gets, by layer [prompt, expert].

    `counts`: number of these tokens of each prompt.
    """
    banks = banks_of(running.loaded.anatomy.layers)
    found = {layer.index: np.zeros((len(rows), bank.experts)) for layer, bank in banks}
    for batch in batches(np.array([*map(len, rows)]), running.batch_tokens):
        own, of_own = [rows[n] for n in batch], [counts[n] for n in batch]
        ids, chosen = side_by_side_at(own, of_own, running.loaded.device)
        for layer, routed in route(running.loaded, ids, chosen).items():
            sent = one_hot(routed.expert + 1, found[layer].shape[1] + 1).sum(1)[:, 1:].double()  # without empty slots
            found[layer][batch] = torch.stack([part.mean(0) for part in sent.split(of_own)]).cpu().numpy()
    return found


def side_by_side_at(
    rows: Sequence[np.ndarray], counts: Sequence[int], device: str, after: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns the ids of prompts, padded on the right [prompt, token], and the numbers in it of the last tokens of each, flat.

    `counts`: number of these tokens of each prompt. `after`: number of tokens behind them.
    """
    ids = pad(rows, device)
    ends = np.arange(len(rows)) * ids.shape[1] + [*map(len, rows)] - after
    last = [np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return ids, to_device(np.concatenate(last), device)


def read_changes(running: Running, ids: Tensor, chosen: Tensor, unproven: set[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """Reads the experts of some tokens [token, slot], and by what o changes when one leaves [token, slot, change, d], by layer.

    See `route`. NaN: where the weights of the others cannot be scaled, as there are none, or the weight acts inside the expert.
    What takes the place of an expert is known if a router that leaves nothing out does what it did, and one that does sends no
    token to its expert, and each to as many. `unproven`: gets the layers where this is not so.
    """
    plain, found = route(running.loaded, ids, chosen), dict[int, tuple[Tensor, Tensor]]()
    instead = {layer: torch.full_like(own.written, torch.nan) for layer, own in plain.items()}
    for slot in range(-1, max(own.expert.shape[1] for own in plain.values())):  # first nothing is left out
        left_out = {layer: ids.new_full((ids.numel(),), -1) for layer in plain}
        asked = {layer: own for layer, own in plain.items() if slot < own.expert.shape[1] and layer not in unproven}
        for layer, own in asked.items() if slot >= 0 else ():
            left_out[layer][chosen] = own.expert[:, slot].to(ids.device)
        made = tried(route, running.loaded, ids, chosen, leaving_out(running.loaded, plain, left_out))
        for layer, own in asked.items():
            if isinstance(made, Exception) or not _proves(made[layer], own, slot):
                unproven.add(layer)
            elif slot >= 0:
                instead[layer][:, slot] = made[layer].written.sum(1)
    for layer, own in plain.items():
        c, weight = own.factor * own.written, own.weight[..., None]
        total, others = c.sum(1, keepdim=True), 1 - torch.eye(c.shape[1], device=c.device)  # sums without one's own
        grown = weight / (others @ weight) * (others @ c)
        found[layer] = own.expert, torch.stack([-c, grown - c, own.factor * instead[layer] - total], 2)
    return found


def _proves(new: Routed, own: Routed, slot: int) -> bool:
    """Tells whether a pass without the experts of a slot is right, see `read_changes`. `slot`: -1: nothing was left out."""
    if slot < 0:
        return relative_error(new.written.sum(1), own.written.sum(1)) < TOLERANCE
    old, counts = own.expert[:, slot, None], ((its.expert >= 0).sum(1) for its in (new, own))
    return bool(((new.expert != old) | (old < 0)).all() & new.written.isfinite().all()) and torch.equal(*counts)


def changes_beside(expert: Tensor, changes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the experts of a prompt [expert], and by what o changes when each leaves [expert, change, 1 + control, token, d].

    A control is a change of the same length at each token by which another expert of this token would leave. It is 0 where that
    expert writes nothing. The arguments are those of its tokens, see `read_changes`.
    """
    experts, (tokens, slots) = expert[expert >= 0].unique(), expert.shape
    found = changes.new_zeros(len(experts), len(CHANGES), slots, tokens, changes.shape[-1])
    away = normalize(changes[:, :, CHANGES.index(REMOVED)], dim=-1, eps=1e-30)
    for of_expert, number in zip(found, experts, strict=True):
        token, slot = torch.where(expert == number)
        of_expert[:, 0, token] = own = changes[token, slot].transpose(0, 1)
        for control in range(slots - 1):
            of_expert[:, 1 + control, token] = own.norm(dim=-1, keepdim=True) * away[token, control + (control >= slot)]
    return experts, found


def measure_effects(
    running: Running, prompts: Sequence[Encoded], group: np.ndarray, flips: int, seed: int
) -> pd.DataFrame:
    """Returns the columns of the table `EXPERTS` about effects, a row per expert, change and reach.

    `prompts`: their rows, see `Encoded`. `group`: of each prompt [prompt].
    """
    loaded, unproven, tested = running.loaded, set[int](), list[pd.DataFrame]()
    banks, owner = banks_of(loaded.anatomy.layers), stored.owners(prompts)
    # By layer, prompt and expert, see `measure_prompt`: sums over the rows of the prompt.
    falls = dict[tuple[int, int, int], Tensor]()
    # See `estimate_effects`; 0 where a prompt is not sent to the expert.
    made = {layer.index: np.zeros((len(group), 4, len(REACHES), bank.experts, len(CHANGES))) for layer, bank in banks}
    with progress(len(prompts), "prompts", "experts") as bar:
        for rows in side_by_side(prompts, running.batch_tokens):
            own = [prompts[n] for n in rows]
            clean, counts = [each.clean for each in own], [each.tokens for each in own]
            changes = read_changes(running, *side_by_side_at(clean, counts, loaded.device, own[0].after), unproven)
            unchanged = run_unchanged(loaded, [layer for layer, _ in banks], clean, running.keeps)
            for (layer, _), bases in zip(banks, unchanged, strict=True):
                parts = zip(*(each.split(counts) for each in changes[layer.index]), strict=True)
                for row, base, part in zip(rows, bases, parts, strict=True):
                    experts, beside = changes_beside(*part)
                    of_prompt, chosen = made[layer.index][owner[row]], experts.tolist()
                    of_prompt[2:3, :, chosen] = beside[:, :, 0].norm(dim=-1).sum(-1).cpu()
                    of_prompt[3:, :, chosen] = 1
                    found = measure_prompt(running, layer, prompts[row], base, beside)
                    for expert, fall in zip(chosen, found.unbind(2), strict=True):
                        place = layer.index, owner[row], expert
                        # Routers that give tokens other numbers of experts in other batches have other numbers of controls.
                        own_rows = [falls[place], fall] if place in falls else [fall]
                        falls[place] = pad_sequence(own_rows, padding_value=torch.nan).sum(1)
            bar.update(len(rows))
    if unproven:
        say(f"Layers {sorted(unproven)}: no other expert can be made to take the place of one, so `replaced` is empty.")
    generator, drawn = random_stream(seed, Purpose.EXPERT_FLIPS, 0, 2), Drawn(np.ones(len(group), bool), group)
    for (index, prompt, expert), fall in falls.items():
        made[index][prompt, :2, :, expert] = torch.stack([fall[0], fall[1:].abs().nanmean(0)])
    for index, its in made.items():
        its[:, :3, ..., CHANGES.index(REPLACED)] += np.nan if index in unproven else 0
        tested.append(estimate_effects(its, drawn, flips, generator).assign(layer=index))
    table = pd.concat(tested, ignore_index=True)
    for _, known in table.dropna(subset="effect_p").groupby(["change", "reach"]):
        table.loc[known.index, "effect_q"] = q_values(known["effect_p"].to_numpy(), len(known))
    return table


def measure_prompt(running: Running, layer: Layer, prompt: Encoded, base: Unchanged, changes: Tensor) -> Tensor:
    """Returns by how much the logit difference falls when each expert leaves, and at its controls [1 + control, reach, expert, change].

    NaN: the change is not known, or there is no such control. `base`: the prompt unchanged. `changes`: see `changes_beside`.
    """
    flat, shape = changes.flatten(0, 2), changes.shape[:3]
    known, something = flat.isfinite().all(2).all(1), (flat != 0).any(2).any(1)
    run = known & something
    # A change of nothing is the last one: what it gives is rounded as the others are.
    asked = torch.cat([flat[run], flat.new_zeros(1, *flat.shape[1:])])
    asked = pad_end(asked, (0, 0, 0, prompt.after))
    ends = changed_ends(running.loaded, layer, running.reruns[layer.index], [base], [asked])
    falls = torch.where(known, 0, torch.nan).double().cpu().repeat(len(REACHES), 1)
    pairs = torch.tensor([[prompt.answer, prompt.wrong]]).expand(len(asked), -1)
    for row, reach in zip(falls, REACHES, strict=True):
        after = running.head.differences(ends[reach][0], pairs, running.loaded.anatomy.read_as).double().cpu()
        row[run.cpu()] = after[-1] - after[:-1]
    something, falls = something.cpu().reshape(shape), falls.reshape(len(REACHES), *shape)
    falls[..., 1:].masked_fill_(something[..., :1] & ~something[..., 1:], torch.nan)
    return falls.permute(3, 0, 1, 2)


def estimate_effects(its: np.ndarray, drawn: Drawn, flips: int, generator: np.random.Generator) -> pd.DataFrame:
    """Returns rows of a layer, as `measure_effects` does, without q-values.

    `its`: the effect; the mean size of its controls, as signs would cancel in their mean; the length of the change; and 1 where a prompt
    is sent there [prompt, 4, reach, expert, change]. The difference is that of the effect's size and theirs. Its p-value is by sign
    flips of groups; 1 of an effect that is no larger.
    """
    kinds = itertools.product(REACHES, range(its.shape[3]), CHANGES)
    found = pd.DataFrame(kinds, columns=["reach", "expert", "change"]).assign(prompts=len(its))
    own, beside, length, sent = its.reshape(len(its), 4, -1).swapaxes(0, 1)
    found["active"], found["length"], own[:, ~sent.any(0)] = sent.sum(0), length.mean(0), np.nan
    larger = np.sign(own.mean(0)) * own - beside
    weights = without_each(drawn.group)
    put_estimate(found, "effect", weights @ own, plain=True)
    put_estimate(found, "difference", weights @ larger)
    found["beside"], known = beside.mean(0) + 0 * found["effect"], found["difference"].notna().to_numpy()
    found.loc[known, "effect_p"] = p_values(larger[:, known].astype(np.float32), drawn, flips, generator)
    no_larger = found["difference"] <= 1e-4 * found["effect"].abs()  # the same change twice differs by rounding
    found.loc[no_larger, "effect_p"] = 1.0
    return found
