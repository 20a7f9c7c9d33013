"""Chance levels, p-values and baselines where there is nothing to be found."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pandas as pd

from benchmarks.known_truths import COVERAGE, FALSE, Case, covered
from ffkv.base.multiple_tests import SIGNIFICANT, permutation_p, q_values
from ffkv.branches.refinement.summarize import measure_closeness
from ffkv.branches.translation.section import answer
from ffkv.branches.translation.summarize import summarize_differences
from ffkv.branches.translation.tables import ALL_READINGS, DIFFERENCES
from ffkv.branches.values.summarize import summarize_agreement
from ffkv_comparison.same_memories import Memories, compare_memories, find_partners, permute, standardise, take, unit
from ffkv_machines.explain import PER_SET, score, summarize

VOCABULARY, KEYS = 2000, 512


def _frequent(generator: np.random.Generator, shape: tuple[int, ...], spread: float = 1.0) -> np.ndarray:
    """Draws token ids, whose frequencies are about 1 / (id + 1)."""
    weights = 1 / np.arange(1, VOCABULARY + 1) ** spread
    return generator.choice(VOCABULARY, shape, p=weights / weights.sum())


def agreement(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Figure 4 where top(v) and w have nothing to do with each other."""
    unigram = np.bincount(_frequent(generator, (10**6,)), minlength=VOCABULARY)
    inside, baseline = 0, 0
    repetitions = max(repetitions // 4, 50)
    for seed in range(repetitions):
        top, w = _frequent(generator, (2, KEYS))
        table = pd.DataFrame({"layer": 0, "triggers": 1, "top_token": top, "next_token": w, "agrees": top == w})
        rows = summarize_agreement(table, unigram, seed).set_index("source")
        own, permuted, drawn = (rows.loc[source] for source in ("trigger", "permuted", "unigram"))
        inside += int(permuted["low"] <= own["rate"] <= permuted["high"])
        baseline += int(own["low"] <= drawn["rate"] <= own["high"])
    yield Case(
        "keys permuted (figure 4): the band has the rate", "top(v) and w unrelated", f"{KEYS} keys", inside, repetitions
    )
    name = "unigram baseline (figure 4): the rate's interval has it"
    yield Case(name, "top(v) and w unrelated", f"{KEYS} keys", baseline, repetitions)


def lenses(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """The answer about translated values where no reading of a value has to do with the token that follows its key."""
    layers, yes, trials = 4, {"translated": 0, "jacobian": 0}, max(repetitions // 10, 20)
    for _ in range(trials):
        w, of_head = _frequent(generator, (2, layers * KEYS))
        rows = pd.DataFrame({"layer": np.arange(layers * KEYS) // KEYS, "memory": np.arange(layers * KEYS) % KEYS})
        rows = rows.assign(triggers=1, next_token=w, head_top_token=of_head, head_agrees=of_head == w)
        # Maps may send values to other tokens than the head does, as frequent ones or more so.
        tops = {reading: _frequent(generator, (layers * KEYS,), generator.uniform(1, 1.5)) for reading in ALL_READINGS}
        found = pd.concat([rows.assign(reading=name, top_token=top, agrees=top == w) for name, top in tops.items()])
        table = summarize_differences(found, layers)
        run = SimpleNamespace(
            table=lambda name, table=table: table,
            tables=[DIFFERENCES.name],
            anatomy=SimpleNamespace(weights="checkpoint"),
        )
        for reading in yes:
            yes[reading] += answer(run, None, reading).startswith("Yes")
    for reading, count in yes.items():
        yield Case(f"answer, {reading}: yes", "no value agrees", f"{layers} layers of {KEYS}", count, trials, FALSE)


def memories(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """The same memory in two runs that share nothing but frequent prefixes and tokens."""
    above, trials = 0, max(repetitions // 4, 50)
    for _ in range(trials):
        a, b = (_made_up_memories(generator) for _ in range(2))
        own = compare_memories(a, b, True).mean()
        drawn = [compare_memories(a, take(b, permute(np.array([0, 128]), generator)), True).mean() for _ in range(10)]
        above += int(own["jaccard"] > np.mean([each["jaccard"] for each in drawn]))
    yield Case("memories permuted (comparison): exceeded", "unrelated runs", "128 memories", above, trials, (0.5, 0.5))


def _made_up_memories(generator: np.random.Generator) -> Memories:
    triggers = np.stack([np.unique(row)[:20] for row in _frequent(generator, (128, 60), 0.7)])
    value = unit(generator.standard_normal((128, 16)))
    return Memories(triggers, _frequent(generator, (128,)), np.ones(128), np.ones(128, bool), None, value)


def partners(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Partners in random layers that read the same inputs, and in layers one half of whose memories were copied."""
    runs = max(repetitions // 50, 4)
    for activation, width in itertools.product(("relu", "gelu", "gated"), (8, 64)):
        small, false, tested = 0, 0, 0
        for _ in range(runs):
            x = generator.standard_normal((1000, width)) * np.exp(0.3 * generator.standard_normal((1000, 1)))
            own, *layers = (_coefficients(x, activation, 200, generator) for _ in range(4))
            p = find_partners(standardise(own), layers)["p_value"].to_numpy()
            small, tested = small + (p <= 0.05).sum(), tested + len(p)
            false += int((q_values(p, len(p)) <= SIGNIFICANT).any())
        truth, size = f"random {activation} layers over {width} shared inputs", "3 layers of 200"
        yield Case("partner (comparison): p up to 0.05", truth, size, small, tested, FALSE, tested // 10)
        yield Case("partner (comparison): any in a run", truth, size, false, runs, FALSE)
    found, copied = 0, 0
    for _ in range(runs):
        x = generator.standard_normal((1000, 64))
        own, other = (_coefficients(x, "gelu", 200, generator) for _ in range(2))
        other[:, :100] = own[:, :100] + own.std() * generator.standard_normal((1000, 100))
        matches = find_partners(standardise(own), [other])
        q = q_values(matches["p_value"].to_numpy(), len(matches))
        found += ((q <= SIGNIFICANT) & (matches["matched_memory"] == np.arange(200)))[:100].sum()
        copied += 100
    truth = "copies with as much noise as signal (correlation 0.7)"
    yield Case("partner (comparison): found", truth, "200 memories, 100 copies", found, copied, (0.8, 1), copied // 10)


def _coefficients(x: np.ndarray, activation: str, memories: int, generator: np.random.Generator) -> np.ndarray:
    """Returns the coefficients of a layer with random keys [prefix, memory]."""
    g, u = (x @ generator.standard_normal((x.shape[1], memories)) / np.sqrt(x.shape[1]) for _ in range(2))
    gate = {"relu": np.maximum(g, 0), "gelu": g / (1 + np.exp(-1.702 * g)), "gated": g / (1 + np.exp(-g)) * u}
    return gate[activation]


def tests(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """The p-values of interventions, and what is left of them after the correction for many tests."""
    effects = generator.standard_t(3, (20 * repetitions, 100))  # a memory and 99 random ones that are like it
    p = np.array([permutation_p(row[0], row[1:]) for row in effects])
    yield Case(
        "p of interventions: up to 0.05", "the memory is like its controls", "99", int((p <= 0.05).sum()), len(p), FALSE
    )
    layers = p.reshape(-1, 20)
    any_found = sum((q_values(row, 20) <= SIGNIFICANT).any() for row in layers)
    yield Case(
        "q of interventions: any in a layer", "20 memories like their controls", "99", any_found, len(layers), FALSE
    )
    false, families = 0.0, 5 * repetitions
    for row in generator.random((families, 40)):
        row[:10] **= 8  # ten of which something is true
        found = q_values(row, 40) <= SIGNIFICANT
        false += found[10:].sum() / max(found.sum(), 1)
    yield Case("q-values: share of false ones", "30 of 40 tests of nothing", "40", round(false), families, FALSE)
    embedding = generator.standard_normal((VOCABULARY, 32))
    first, second = generator.integers(0, VOCABULARY, (2, 20 * repetitions))
    _, percentile = measure_closeness(embedding, first, second, np.arange(VOCABULARY), 0)
    close = int((percentile[first != second] > 0.95).sum())
    name = "percentile of a cosine (changes of the last layer): above 0.95"
    yield Case(name, "random pairs", "10,000 pairs", close, int((first != second).sum()), (0.04, 0.06))


def machines(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Scores of explanations by an annotator who guesses: the interval over 10 memories has the chance level."""
    scores = {"detection": [], "intruder": [], "simulation": [], "difference": []}
    trigger = np.repeat([True, False], 15)
    for _ in range(max(repetitions // 4, 50)):
        rows = []
        for memory, label in itertools.product(range(10), ("own", "other")):
            said = generator.random(30) < 0.3
            answers = {
                "detection": ([trigger], [said], 0.5),
                "intruder": (*generator.integers(0, PER_SET, (2, 10)), 1 / PER_SET),
                "simulation": ([generator.exponential(size=10)], [generator.integers(0, 11, 10)], 0.0),
            }
            values = {name: (score(name, true, told)[1], level) for name, (true, told, level) in answers.items()}
            counts = {"asked": 1, "answered": 1, "refused": 0}
            place = {"layer": 0, "memory": memory, "label": label}
            rows += [{**place, "score": name, "value": v, "chance": c, **counts} for name, (v, c) in values.items()]
        table = summarize(pd.DataFrame(rows)).set_index(["layer", "score", "label"]).sort_index()
        for name in ("detection", "intruder", "simulation"):
            scores[name].append((*table.loc[(0, name, "own"), ["low", "high"]], table.loc[(0, name, "own"), "chance"]))
        scores["difference"].append((*table.loc[(0, "detection", "own - other"), ["low", "high"]], 0.0))
    for name, found in scores.items():
        low, high, chance = np.array(found, float).T
        hits = covered(zip(low - chance, high - chance), 0)
        yield Case(
            f"scores of machines: {name} at its chance level", "guesses", "10 memories", *hits, (COVERAGE[0], 0.99)
        )
