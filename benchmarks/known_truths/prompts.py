"""Tests and intervals of behaviours, on prompts that are no independent draws, and on skewed ones."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.known_truths import COVERAGE, FALSE, Case, covered
from ffkv.base.intervals import interval_over_groups, without_each
from ffkv.base.multiple_tests import SIGNIFICANT, q_values
from ffkv.branches.behaviours.contrast import Drawn, estimate, p_values
from ffkv.branches.behaviours.encode import group_by_words

MEMORIES = 200  # of a layer
FLIPS = 10_000
SAFE = (COVERAGE[0], 1.0)


def tests(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """p-values of the contrast where there is nothing: a memory is on clean prompts as it is on patch prompts."""
    normal = generator.standard_normal

    def of_words(words: int, templates: int, within: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        group = np.repeat(np.arange(words), templates)
        values = np.sqrt(within) * normal((words, MEMORIES))[group]
        return values + np.sqrt(1 - within) * normal((len(group), MEMORIES)), group, group >= 0

    def mirrored(pairs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        values, group = normal((pairs, MEMORIES)), np.tile(np.arange(pairs), 2)
        return np.concatenate([values, -values]), group, group >= 0

    def crossed(words: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        one, other = np.array([*itertools.combinations(range(words), 2)]).T
        texts = [[f"word{number}" for number in side] for side in (one, other)]
        own = normal((words, MEMORIES))
        return own[one] + own[other], np.array(group_by_words(*texts)), one >= 0

    def skewed(prompts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        group = np.arange(2 * prompts + 100)
        return generator.exponential(size=(len(group), MEMORIES)) - 1, group, group < prompts

    def lists(groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        group = np.repeat(np.arange(groups), np.tile([2, 3, 5, 6], groups // 4))
        return normal((groups, MEMORIES))[group] + normal((len(group), MEMORIES)), group, group < groups // 2

    for what, truth, draw in (
        ("contrast", "8 prompts", partial(of_words, 8, 1, 1)),
        ("contrast", "14 prompts", partial(of_words, 14, 1, 1)),
        ("contrast", "50 prompts", partial(of_words, 50, 1, 1)),
        ("contrast", "10 words in 10 templates, correlated by 0.5 within a word", partial(of_words, 10, 10, 0.5)),
        ("contrast", "10 words in 10 templates, correlated by 0.9 within a word", partial(of_words, 10, 10, 0.9)),
        ("contrast", "25 words in 4 templates, correlated by 0.5 within a word", partial(of_words, 25, 4, 0.5)),
        ("contrast", "14 prompts, each twice", partial(of_words, 14, 2, 1)),
        ("contrast", "14 pairs, each in both directions", partial(mirrored, 14)),
        ("contrast", "18 words, each with each other one: one group", partial(crossed, 18)),
        *(
            ("contrast from a mean", f"{n} prompts and {n + 100} prefixes, exponential", partial(skewed, n))
            for n in (8, 15, 50)
        ),
        ("contrast of two lists", "16 groups of 2 to 6 prompts", partial(lists, 16)),
    ):
        small, any_found, layers = 0, 0, max(repetitions // 20, 20)
        for _ in range(layers):
            values, group, positive = draw()
            p = p_values(values.astype(np.float32), Drawn(positive, group), FLIPS, generator)
            small += int((p <= 0.05).sum())
            any_found += int((q_values(p, MEMORIES) <= SIGNIFICANT).any())
        size = f"{MEMORIES} memories"
        yield Case(f"p of the {what} (behaviours): up to 0.05", truth, size, small, layers * MEMORIES, FALSE)
        yield Case(f"q of the {what} (behaviours): any in a layer", truth, size, any_found, layers, FALSE)


def intervals(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Shares of a behaviour, effects and contrasts; half of the variance is of the group, half of its prompts."""
    draws: dict[str, Callable[[tuple[int, ...]], np.ndarray]] = {
        "normal": generator.standard_normal,
        "exponential": lambda shape: generator.exponential(size=shape) - 1,
    }
    for (name, draw), (groups, prompts) in itertools.product(
        draws.items(), ((5, 1), (5, 7), (7, 7), (10, 1), (20, 1), (20, 3), (50, 1))
    ):
        group = np.repeat(np.arange(groups), prompts)
        weights = without_each(group)
        bounds: dict[str, list[tuple[float, float]]] = {"share of a behaviour": [], "effect": [], "contrast": []}
        for _ in range(max(repetitions // 2, 100)):
            noise = [draw((groups,))[group] + draw((len(group),)) for _ in range(2)]
            has, lost = 4 + noise[0], 1.6 + 0.2 * noise[0] + 0.6 * noise[1]
            bounds["share of a behaviour"].append(interval_over_groups(weights @ lost / (weights @ has)))
            bounds["effect"].append(interval_over_groups(weights @ lost))
            (_, *ends) = estimate(lost[:, None], Drawn(np.ones(len(group), bool), group))[:, 0].tolist()
            bounds["contrast"].append(tuple(ends))
        size = f"{groups} groups of {prompts}"
        for what, own in bounds.items():
            hits = covered(own, 0.4 if what.startswith("share") else 1.6)
            note = "Student's t knows no skewness." if what == "contrast" else ""
            yield Case(f"{what} (behaviours)", name, size, *hits, SAFE if groups < 20 else COVERAGE, note=note)
