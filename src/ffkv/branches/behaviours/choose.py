"""The third step: contrast and screen of each memory, candidates, and how stable the choice is."""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.intervals import drawn_again
from ffkv.base.multiple_tests import q_values
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours import stored, words
from ffkv.branches.behaviours.contrast import Drawn, cells_of, estimate, p_values, smallest_p, weights_of
from ffkv.branches.behaviours.settings import Behaviour
from ffkv.branches.behaviours.stored import PromptStates, largest
from ffkv.branches.behaviours.tables import ANSWERS, MEMORIES, STABILITY
from ffkv.branches.given import Given

PERSISTENCE = 0.9  # of rank-biased overlap: the first 10 ranks have some 86 % of the weight
LEAST_OF_LABEL = 3  # prompts that a label must have to be compared with others
ROUNDING = 1e-12  # of the largest number: what rounding leaves of a mean of pairs in both directions, which cancel


def choose_memories(given: Given, settings: Behaviour, seed: int = 0) -> tuple[pd.DataFrame, ...]:
    """Tests the contrast of every memory on one half of the prompts, estimates it on the other, and chooses candidates.

    Returns the tables `MEMORIES`, `ANSWERS` and `STABILITY`.

    Raises:
        UserError: prompts are missing.
    """
    frame = stored.used(given.table("encode", given.identity))
    states = stored.join_states(given.files["read"], frame.attrs)
    if states.prompt.tolist() != frame["prompt"].tolist():
        raise UserError(
            f"The files of --read do not have the prompts of {given.files['encode']}, each once and in their order."
        )
    memories = measure_memories(states, frame, settings, seed)
    answers = frame[["prompt", "label", "part"]].assign(
        difference=states.difference,
        patch_difference=states.patch_difference,
        floor=states.patch_difference if settings.baseline == "patch" else np.nan,
        probability=states.probability,
    )
    stability = measure_stability(states, frame, settings, seed, given.anatomy.experts)
    made = (MEMORIES, memories), (ANSWERS, answers[frame["part"] != words.REFERENCE]), (STABILITY, stability)
    return tuple(tables.frame(each, own.assign(behaviour=given.name), states.attributes) for each, own in made)


def measure_memories(states: PromptStates, prompts: pd.DataFrame, settings: Behaviour, seed: int) -> pd.DataFrame:
    """Returns the table `MEMORIES`, without the behaviour: contrast and screen of each memory.

    `prompts`: those of the states, from the table `PROMPTS`. References count as the second one of two lists. The contrast of pairs is
    no difference from a mean, and needs none.
    """
    part, drawn = prompts["part"].to_numpy(), Drawn.named(prompts)
    first, second, beside = part == words.CHOOSE, part == words.ESTIMATE, part != words.ESTIMATE
    pairs = stored.kind_of(prompts) == words.PAIRS
    measured = np.isin(states.prompt, stored.first(prompts, words.ESTIMATE, settings.effect_prompts)["prompt"])
    weights = [weights_of(drawn.positive[own]) for own in (first, second, first | second)]
    tests = (
        ("screen", "screen_p", "screen_q", beside),
        ("contribution", "p_value", "q_value", first if pairs else beside),
    )
    by_layer, offset = [], states.layer_offset
    for layer, (start, stop) in enumerate(itertools.pairwise(offset)):
        place = slice(start, stop)
        found = pd.DataFrame({"layer": layer, "memory": np.arange(stop - start)})
        values = states.contribution[:, place]
        found["contrast"] = weights[0] @ values[first].astype(np.float64)
        found["estimate"], found["estimate_low"], found["estimate_high"] = estimate(values[second], drawn.of(second))
        for stream, (name, p, q, own) in enumerate(tests, 1):
            generator = random_stream(seed, Purpose.SIGN_FLIPS, layer, stream)
            found[p] = p_values(getattr(states, name)[own][:, place], drawn.of(own), settings.flips, generator)
            found[q] = q_values(found[p].to_numpy(), len(found))
        found["coefficient"] = weights[2] @ states.coefficient[first | second][:, place].astype(np.float64)
        for name, rest in (("screen", "screen"), ("frozen_screen", "frozen")):
            of_layer = getattr(states, name)[:, place].astype(np.float64)
            found[name], found[f"{rest}_estimate"] = weights[0] @ of_layer[first], weights[1] @ of_layer[second]
            found[f"{rest}_measured"] = of_layer[measured].mean(0)
        by_layer.append(found)
    table = pd.concat(by_layer, ignore_index=True)
    table["smallest_p"] = smallest_p(drawn.of(tests[1][-1]), settings.flips)
    table["size"] = states.change[first].mean(0) * states.norm
    for name, values in ((words.BY_CONTRAST, states.contribution), (words.BY_SCREEN, states.screen)):
        sizes = table[name].abs().to_numpy()
        chosen, left = largest(sizes, settings.candidates), ROUNDING * max(values.max(), -values.min())
        table[f"by_{name}"] = np.isin(np.arange(len(table)), chosen[sizes[chosen] > left])
    return table


def measure_stability(
    states: PromptStates, prompts: pd.DataFrame, settings: Behaviour, seed: int, experts: Sequence[np.ndarray] = ()
) -> pd.DataFrame:
    """Returns the table `STABILITY`, without the behaviour: how alike the sets of other prompts are.

    Of two lists only the contrast ranks memories. Labels are compared if each of two has `LEAST_OF_LABEL` prompts. `prompts`: see
    `measure_memories`. `experts`: the memories of each, which are ranked by their summed screen; at most a quarter of them is in a set.
    """
    rows, drawn, part = list[tuple](), Drawn.named(prompts), prompts["part"].to_numpy()
    positive, lists = drawn.positive, not drawn.positive[part != words.REFERENCE].all()
    rankings = {words.BY_CONTRAST: states.contribution}
    if states.screen.any():
        rankings[words.BY_SCREEN] = states.screen
        if experts:
            rankings[words.FIRST_EXPERTS] = np.stack([states.screen[:, own].sum(1) for own in experts], 1)
    for name, values in rankings.items():
        count = min(settings.candidates, max(1, len(experts) // 4) if name == words.FIRST_EXPERTS else values.shape[1])
        generator = random_stream(seed, Purpose.BEHAVIOUR_BOOTSTRAP, words.RANKINGS.index(name))

        def top(rows: np.ndarray, values: np.ndarray = values, count: int = count) -> np.ndarray:
            mean = weights_of(positive[rows]) @ values[rows].astype(np.float64)
            return largest(np.abs(mean), count)

        first = part == words.CHOOSE
        again = resampled(values[first].astype(np.float32), drawn.of(first), count, settings.bootstraps, generator)
        pairs = [((words.BOOTSTRAPS, "", ""), sets) for sets in zip(again[::2], again[1::2])]
        pairs.append(((words.HALVES, "", ""), (top(first), top(part == words.ESTIMATE))))
        named = {label: (prompts["label"] == label).to_numpy() for label in prompts["label"].unique() if label}
        known = [own for own in named.items() if own[1].sum() >= LEAST_OF_LABEL]
        known = [own for own in known if not lists or len({*positive[own[1]].tolist()}) == 2]
        tops = {label: top(own) for label, own in known[:20]}
        pairs += [((words.LABELS, *two), (tops[two[0]], tops[two[1]])) for two in itertools.combinations(tops, 2)]
        moved = np.flatnonzero(np.abs(values[first]).any(0))
        random = [generator.permutation(moved)[:count] for _ in range(settings.bootstraps // 2 * 2)]
        pairs += [((words.RANDOM, "", ""), sets) for sets in zip(random[::2], random[1::2])]
        rows += [(name, *about, count, jaccard(*sets), rank_biased_overlap(*sets)) for about, sets in pairs]
    return pd.DataFrame(rows, columns=STABILITY.names[1:])


def jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """Returns the share of memories in both sets among those in any; NaN if both are empty."""
    union = np.union1d(first, second)
    return len(np.intersect1d(first, second)) / len(union) if len(union) else np.nan


def rank_biased_overlap(first: np.ndarray, second: np.ndarray, persistence: float = PERSISTENCE) -> float:
    """Returns how much two rankings of equal length overlap, the first ranks counting most (Webber et al. 2010, equation 32).

    What is behind the last rank is taken to overlap as the ranks before: 1 for equal rankings, 0 for disjoint ones.
    """
    depth = len(first)
    if not depth:
        return np.nan
    place = {memory: rank for rank, memory in enumerate(second.tolist())}
    # The rank, of both, from which a memory is in the overlap.
    both = [max(rank, place[memory]) for rank, memory in enumerate(first.tolist()) if memory in place]
    overlap = np.cumsum(np.bincount(both, minlength=depth)[:depth]) / np.arange(1, depth + 1)
    weights = (1 - persistence) * persistence ** np.arange(depth)
    return float((weights * overlap).sum() + overlap[-1] * persistence**depth)


def resampled(
    values: np.ndarray, drawn: Drawn, count: int, times: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Returns the `count` memories with the largest contrast over groups of prompts that are drawn again so many times [time][rank].

    Groups of one list, of the other one, and of both are drawn again, with replacement, by themselves. `values`: [prompt, memory].
    """
    weights = np.zeros((times, len(values)))
    cells = cells_of(drawn)
    kinds = np.where(cells.other[cells.number] < 0, drawn.positive, 2)
    for kind in np.unique(kinds):
        weights[:, kinds == kind] = drawn_again(drawn.group[kinds == kind], times, generator)
    for own, sign in ((drawn.positive, 1), (~drawn.positive, -1)):
        if own.any():
            weights[:, own] *= sign / weights[:, own].sum(1, keepdims=True)
    return [largest(np.abs(of_draw @ values), count) for of_draw in weights.astype(np.float32)]
