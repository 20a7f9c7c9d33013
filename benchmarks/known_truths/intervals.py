"""Intervals of shares, means, agreement and differences, on samples of distributions that are known."""

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.known_truths import COVERAGE, Case, covered
from ffkv.base.intervals import difference_of_intervals, mean_interval, wilson
from ffkv_annotation import summaries as agreement
from ffkv_comparison.step import difference_of_means, difference_of_medians

SAFE = (COVERAGE[0], 1.0)  # of numbers with few values, which no interval can cover in exactly 95 % of the cases
SKEWED = "So few numbers do not show how long the tail is."
DEPENDENT = (
    "Prefixes count as independent. Those of one sentence are not: the more of them, the less an interval covers."
)
WIDE = "Longer than necessary."

Draw = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
# What is drawn, and the mean of the distribution.
DISTRIBUTIONS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda generator, shape: generator.standard_normal(shape), 0.0),
    "exponential": (lambda generator, shape: generator.exponential(size=shape), 1.0),
    "log-normal, sigma 1": (lambda generator, shape: generator.lognormal(0, 1, shape), float(np.exp(0.5))),
    "half 0, half exponential": (
        lambda generator, shape: generator.exponential(size=shape) * (generator.random(shape) < 0.5),
        0.5,
    ),
    "t of 3 degrees of freedom": (lambda generator, shape: generator.standard_t(3, shape), 0.0),
    "accuracy of 10 texts": (lambda generator, shape: generator.binomial(10, generator.beta(8, 2, shape)) / 10, 0.8),
}


def shares(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Wilson intervals, of the sizes that the figures have by default."""
    for where, trials, truths in (
        ("agreement by layer (figure 4)", 512, (0.5, 0.05, 0.002)),
        ("a bin of the top probability (figure 6)", 20, (0.5, 0.1, 0.01)),
        ("prefixes (figures 8, 9, 11)", 4000, (0.5, 0.01, 0.0002)),
        ("kept memories", 200, (0.9, 0.005)),
        ("controls of annotators", 12, (0.1, 0.02)),
    ):
        for truth in truths:
            low, high = wilson(generator.binomial(trials, truth, 10 * repetitions), np.full(10 * repetitions, trials))
            limits = SAFE if trials * truth < 5 or trials < 50 else COVERAGE
            yield Case(f"share: {where}", f"{truth:g}", f"{trials:,}", *covered(zip(low, high), truth), limits)
    for of_sentence in (4, 16):
        share = generator.beta(2.25, 2.25, (repetitions, 4000 // of_sentence))  # correlation 1 / (1 + 4.5) within one
        low, high = wilson(generator.binomial(of_sentence, share).sum(1), np.full(repetitions, 4000))
        hits = covered(zip(low, high), 0.5)
        name = f"0.5; {of_sentence} of each sentence, correlated by 0.18"
        yield Case("share: prefixes (figures 8, 9, 11)", name, "4,000", *hits, note=DEPENDENT)


def means(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Intervals of means over memories or keys."""
    for where, size in (
        ("interventions by layer, scores of machines", 6),
        ("scores of machines by layer", 10),
        ("interventions by layer", 20),
        ("token removal (figure 3)", 100),
        ("doses over all layers", 120),
    ):
        for name, (draw, truth) in DISTRIBUTIONS.items():
            bounds = (mean_interval(sample) for sample in draw(generator, (2 * repetitions, size)))
            note = SKEWED if name.startswith(("log-normal", "half 0")) else ""
            yield Case(f"mean: {where}", name, f"{size}", *covered(bounds, truth), note=note)


def differences(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Differences of two runs."""
    for size, flipped in ((512, 0.1), (4000, 0.1), (4000, 0.01)):
        bounds = []
        for _ in range(repetitions):
            x = generator.random(size) < 0.3
            y = np.where(generator.random(size) < flipped, generator.random(size) < 0.3, x)
            bounds.append(difference_of_means(x.astype(float), y.astype(float))[1:3])
        name = f"0; {flipped:.0%} of the units are drawn anew"
        yield Case("difference of shares, paired", name, f"{size:,}", *covered(bounds, 0), SAFE)
    for size in (20, 120):
        bounds = []
        for _ in range(repetitions):
            x, y = generator.exponential(size=(2, size)) * generator.exponential(size=size)
            bounds.append(difference_of_means(x, y)[1:3])
        yield Case("difference of means, paired", "0; of products of exponentials", f"{size}", *covered(bounds, 0))
    for size in (20, 512):
        for paired in (True, False):
            found = []
            for _ in range(max(repetitions // 2, 20)):
                common = generator.standard_normal(size) if paired else 0
                x, y = np.floor(np.exp(5 + common + generator.standard_normal((2, size))))
                found.append(difference_of_medians(x, y, paired, generator)[1:3])
            name = "difference of medians, " + ("paired" if paired else "independent")
            yield Case(name, "0; of ranks", f"{size}", *covered(found, 0), note=WIDE)
    for size, share in ((512, 0.05), (4000, 0.5)):
        a, b = generator.binomial(size, share, (2, repetitions))
        bounds = [
            difference_of_intervals(one / size, *wilson(one, size), other / size, *wilson(other, size))[1:3]
            for one, other in zip(a, b)
        ]
        yield Case("difference of shares, independent", f"0; both {share:g}", f"{size:,}", *covered(bounds, 0))
    bounds = []
    for x, y in generator.exponential(size=(repetitions, 2, 20)):
        bounds.append(difference_of_intervals(x.mean(), *mean_interval(x), y.mean(), *mean_interval(y))[1:3])
    yield Case("difference of means, independent", "0; both exponential", "20", *covered(bounds, 0))


def annotators(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Agreement of two annotators about keys of 25 prefixes, some clearer than others; the truth is that of many keys."""
    statistics = {"raw agreement": agreement.raw_agreement, "kappa": agreement.kappa}
    for clear, truth in ((0.7, "clear in 70 %"), (0.0, "0; they guess")):
        answers = _answers(10_000, clear, generator)
        confusions = np.stack([agreement.confusion(first, second, 4) for first, second in answers])
        coincidences = np.stack([agreement.coincidences(each, 4) for each in answers])
        found = {name: (confusions, statistic) for name, statistic in statistics.items()}
        found["alpha"] = (coincidences, lambda table: agreement.alpha(table, 1 - np.eye(4)))
        for name, (tables, statistic) in found.items():
            value = 0.0 if not clear and name != "raw agreement" else float(statistic(tables.sum(0)))
            for keys in (15, 60):
                drawn = generator.integers(0, len(tables), (repetitions, keys))
                bounds = (agreement.with_interval(statistic, tables[rows])[1:] for rows in drawn)
                yield Case(f"agreement: {name}", truth, f"{keys} keys", *covered(bounds, value), note=WIDE)


def _answers(keys: int, clear: float, generator: np.random.Generator) -> np.ndarray:
    """Returns the categories that two annotators see in the prefixes of keys [key, annotator, prefix]."""
    seen = (generator.beta(4 * clear, 4 * (1 - clear), (keys, 1, 1)) if clear else 0) > generator.random((keys, 2, 25))
    common = (generator.random((keys, 1, 1)) + 0.5 * generator.random((keys, 1, 25))) * 4 / 1.5
    return np.where(seen, common.astype(int), generator.choice(4, (keys, 2, 25), p=(0.6, 0.2, 0.1, 0.1)))
