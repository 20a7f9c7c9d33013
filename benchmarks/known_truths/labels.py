"""Labels and memories, or experts, that have nothing to do with each other; and intervals of areas under the curve."""

from collections.abc import Iterator

import numpy as np
import torch

from benchmarks.known_truths import FALSE, Case, covered
from benchmarks.known_truths.intervals import SAFE
from ffkv.base.intervals import drawn_again
from ffkv.branches.concepts.draw import Task
from ffkv.branches.concepts.null import best_of_layer, p_value, shuffle
from ffkv.branches.concepts.probe import interval
from ffkv.branches.roles.measure import compare
from ffkv.branches.routing.measure import rows_of_patterns

AREA = 0.7602  # of normal scores that are one standard deviation apart


def areas(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """Intervals of the AUC of concepts; half of the variance is of the document, which has one label."""
    for documents, texts in ((10, 10), (20, 5), (30, 1), (100, 1), (200, 1)):
        bounds, document = [], np.repeat(np.arange(documents), texts)
        for _ in range(max(repetitions // 2, 100)):
            positive = (generator.permutation(documents) < documents // 2)[document]
            noise = generator.standard_normal(documents)[document], generator.standard_normal(len(document))
            scores = positive + (noise[0] + noise[1]) / np.sqrt(2)
            bounds.append(interval(scores, positive, document, drawn_again(document, 200, generator))[:2])
        size = f"{documents} documents of {texts}"
        yield Case("AUC (concepts)", f"{AREA:.2f}; normal scores", size, *covered(bounds, AREA), SAFE)


def concepts(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """p-values of the best memory of a layer where labels have nothing to do with what memories do."""
    trials = max(repetitions // 5, 60)
    for truth, size, both in (("one label", 1, False), ("one label", 5, False), ("both labels", 5, True)):
        found, document = {"ranked": 0, "best": 0}, np.repeat(np.arange(200 // size), size)
        for _ in range(trials):
            own = generator.random(200) < 0.5 if both else (generator.random(200 // size) < 0.5)[document]
            x = generator.standard_normal((200 // size, 100))[document] + generator.standard_normal((200, 100))
            length, train = generator.integers(2, 30, 200 // size)[document], document % 2 == 0
            task = Task("", "", [], np.ones(200), own, document, train, length)
            for choice, best in best_of_layer(x, own, train, shuffle(task, 199, generator)).items():
                found[choice] += p_value(best.auc, best.shuffled) <= 0.05
        for choice, count in found.items():
            what = f"p of the memory that is {choice} (concepts): up to 0.05"
            yield Case(what, f"documents of {size} with {truth}", "200 texts, 100 memories", count, trials, FALSE)


def routes(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """p-values of experts and patterns that both go on for some tokens, each by itself."""

    def runs(share: float, stays: float) -> np.ndarray:
        new = generator.random(3000) >= stays
        drawn = generator.random(3000) < share
        new[0] = True
        return drawn[np.maximum.accumulate(np.where(new, np.arange(3000), 0))]

    texts = max(repetitions // 20, 30)
    for stays in (0.0, 0.8, 0.97):
        p = []
        for _ in range(texts):
            sent = np.stack([runs(0.25, stays) for _ in range(8)], 1)
            p += [row["p"] for row in rows_of_patterns(sent, {"": runs(0.1, stays)})]
        truth = f"runs of {1 / (1 - stays):.0f} draws" if stays else "tokens alone"
        small = int((np.array(p) <= 0.05).sum())
        yield Case("p of an expert and a pattern: up to 0.05", truth, "3,000 tokens", small, len(p), FALSE, texts)


def roles(repetitions: int, generator: np.random.Generator) -> Iterator[Case]:
    """p-values of cosines of two vectors of each memory that are drawn apart, with or without a mean in common."""
    layers = max(repetitions // 20, 30)
    for mean in (0.0, 1.0):
        small = 0
        for _ in range(layers):
            common = mean * generator.standard_normal(16)
            a, b = (torch.from_numpy(generator.standard_normal((256, 16)) + common) for _ in range(2))
            small += int((compare(a, b, generator).p <= 0.05).sum())
        truth = "a mean in common" if mean else "random vectors"
        yield Case("p of a cosine (roles): up to 0.05", truth, "256 memories", small, layers * 256, FALSE, layers * 64)
