"""From what memories do on prompts: contrast and screen of each memory, candidates, and how stable the choice is."""

import itertools
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.multiple_tests import q_values
from ffkv.base.settings import Behaviour
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.contrast import contrast, p_values, weights_of
from ffkv.branches.behaviours.stability import jaccard, largest, rank_biased_overlap, resampled
from ffkv.branches.behaviours.states_file import PromptStates
from ffkv.branches.behaviours.words import (
    BOOTSTRAPS,
    BY_CONTRAST,
    BY_SCREEN,
    CHOOSE,
    ESTIMATE,
    HALVES,
    LABELS,
    RANDOM,
)

LEAST_OF_LABEL = 3  # prompts that a label must have to be compared with others


def join(parts: Sequence[PromptStates]) -> PromptStates:
    """Puts the prompts of all shards below each other."""
    names = {field.name for field in fields(PromptStates)} - {"layer_offset", "norm", "attributes"}
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **joined)


def accuracy_of(answers: pd.DataFrame) -> float:
    """Returns the share of prompts on which the answer has a higher logit than the wrong answer; NaN in lists."""
    known = answers["difference"].dropna()
    return float((known > 0).mean()) if len(known) else np.nan


def measure_memories(
    states: PromptStates, part: np.ndarray, positive: np.ndarray, settings: Behaviour, seed: int
) -> pd.DataFrame:
    """Returns the table `MEMORIES`, without the behaviour: contrast and screen of each memory.

    Args:
        part: half of each prompt [prompt].
        positive: whether a prompt is of the first of two lists [prompt].
    """
    first, second = part == CHOOSE, part == ESTIMATE
    halves = positive[first], positive[second]
    weights = [weights_of(half) for half in halves]
    by_layer, offset = [], states.layer_offset
    for layer, (start, stop) in enumerate(itertools.pairwise(offset)):
        place = slice(start, stop)
        values, generator = states.contribution[:, place], random_stream(seed, Purpose.SIGN_FLIPS, layer, 2)
        found = contrast(values[first], values[second], halves, settings.flips, generator)
        found = found.rename(columns={"low": "estimate_low", "high": "estimate_high"})
        found.insert(0, "memory", np.arange(stop - start))
        found.insert(0, "layer", layer)
        found["coefficient"] = weights_of(positive) @ states.coefficient[:, place].astype(np.float64)
        for name, estimate in (("screen", "screen_estimate"), ("frozen_screen", "frozen_estimate")):
            of_layer = getattr(states, name)[:, place].astype(np.float64)
            found[name], found[estimate] = weights[0] @ of_layer[first], weights[1] @ of_layer[second]
        of_layer = states.screen[first][:, place]
        generator = random_stream(seed, Purpose.SIGN_FLIPS, layer, 1)
        found["screen_p"] = p_values(of_layer, halves[0], settings.flips, generator)
        found["screen_q"] = q_values(found["screen_p"].to_numpy(), len(found))
        by_layer.append(found)
    table = pd.concat(by_layer, ignore_index=True)
    table["size"] = states.change[first].mean(0) * states.norm
    for name in (BY_CONTRAST, BY_SCREEN):
        sizes = table[name].abs().to_numpy()
        chosen = largest(sizes, settings.candidates)
        table[f"by_{name}"] = np.isin(np.arange(len(table)), chosen[sizes[chosen] > 0])
    return table


def measure_stability(
    states: PromptStates, part: np.ndarray, positive: np.ndarray, labels: np.ndarray, settings: Behaviour, seed: int
) -> list[dict]:
    """Returns rows of the table `STABILITY`, without the behaviour: how alike the sets of other prompts are.

    Of two lists only the contrast ranks memories. Labels are compared if each of two has `LEAST_OF_LABEL` prompts.
    """
    rows: list[dict] = []
    rankings = {BY_CONTRAST: states.contribution} | ({BY_SCREEN: states.screen} if states.screen.any() else {})
    for name, values in rankings.items():
        count = min(settings.candidates, values.shape[1])
        generator = random_stream(seed, Purpose.BEHAVIOUR_BOOTSTRAP, int(name == BY_SCREEN))

        def top(rows: np.ndarray, name: str = name, values: np.ndarray = values, count: int = count) -> np.ndarray:
            mean = weights_of(positive[rows]) @ values[rows].astype(np.float64)
            return largest(np.abs(mean), count)

        first = part == CHOOSE
        drawn = resampled(values[first].astype(np.float32), positive[first], count, settings.bootstraps, generator)
        pairs = [(BOOTSTRAPS, "", "", one, other) for one, other in zip(drawn[::2], drawn[1::2])]
        everything = np.arange(len(part))
        pairs.append((HALVES, "", "", top(everything[first]), top(everything[part == ESTIMATE])))
        named = [
            label for label in dict.fromkeys(labels.tolist()) if label and (labels == label).sum() >= LEAST_OF_LABEL
        ]
        named = [label for label in named if positive.all() or len({*positive[labels == label].tolist()}) == 2]
        tops = {label: top(everything[labels == label]) for label in named[:20]}
        pairs += [(LABELS, one, other, tops[one], tops[other]) for one, other in itertools.combinations(tops, 2)]
        moved = np.flatnonzero(np.abs(values[first]).any(0))
        for _ in range(settings.bootstraps // 2):
            one, other = (generator.permutation(moved)[:count] for _ in range(2))
            pairs.append((RANDOM, "", "", one, other))
        rows += [
            {
                "ranking": name,
                "compared": compared,
                "first": one,
                "second": other,
                "memories": count,
                "jaccard": jaccard(left, right),
                "overlap": rank_biased_overlap(left, right),
            }
            for compared, one, other, left, right in pairs
        ]
    return rows
