"""What the best feature of many separates by chance: labels are shuffled, and the best one is chosen again, among as many."""

from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from ffkv.branches.concepts.draw import Task
from ffkv.branches.concepts.probe import areas, normalize

STRATA = 4  # classes of length among which labels of documents are shuffled


class Best(NamedTuple):
    """The best feature of a layer, with the labels as they are and as they are shuffled."""

    feature: int
    tries: int  # how many features it is the best one of: the ranking tries one on the test half
    auc: float  # on the test half
    shuffled: np.ndarray  # the AUC of the best feature with each shuffle [shuffle]
    each: np.ndarray  # the AUC of every feature; below 0.5 if it is larger without the label [feature]

    @property
    def chance(self) -> float:
        """The AUC that the best feature has by chance: the 95 % quantile over shuffles."""
        return float(np.nanquantile(self.shuffled, 0.95))


def shuffle(task: Task, count: int, generator: np.random.Generator) -> np.ndarray:
    """Shuffles the labels of a task within strata. Returns them [shuffle, text].

    If each document has one label, documents of the same half and of similar length change labels: then a label that length alone tells
    is told as well by shuffled ones. Else labels are shuffled inside each document.
    """
    unit, first, at = np.unique(task.document, return_index=True, return_inverse=True)
    ones, texts = np.bincount(at, task.positive), np.bincount(at)
    if not ((ones == 0) | (ones == texts)).all():
        return task.positive[_within(at, count, generator)]
    stratum, mean = np.zeros(len(unit), int), np.bincount(at, task.length) / texts
    for half in (True, False):
        own = task.train[first] == half
        edges = np.quantile(mean[own], np.arange(1, STRATA) / STRATA) if own.any() else []
        stratum[own] = 2 * np.searchsorted(edges, mean[own]) + half
    return task.positive[first][_within(stratum, count, generator)][:, at]


def _within(stratum: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Returns orders in which the members of each stratum have changed places [order, member]."""
    order = np.argsort(stratum, kind="stable")
    keys = generator.random((count, len(stratum)))
    mixed = np.empty((count, len(stratum)), int)
    mixed[:, order] = np.lexsort((keys, np.broadcast_to(stratum, keys.shape)))
    return mixed


def best_of_layer(x: np.ndarray, positive: np.ndarray, train: np.ndarray, shuffled: np.ndarray) -> dict[str, Best]:
    """Finds the best feature of a layer, and what the best one of as many is with shuffled labels.

    `x`: features [text, feature]. `positive`, `train`: label and half [text]. `shuffled`: see `shuffle`. Returns two: "ranked": the first
    one of the ranking on the train half, in the direction that it has there; "best": the one with the largest AUC of all on the test half,
    in whatever direction, as is often reported.
    """
    labels = np.concatenate([positive[None], shuffled])
    ones = np.maximum(labels[:, train].sum(1, dtype=np.float32)[:, None], 1)
    zeros = np.maximum(train.sum(dtype=np.float32) - ones, 1)
    scaled = normalize(x[train]).astype(np.float32)
    difference = labels[:, train].astype(np.float32) @ scaled
    difference *= 1 / ones + 1 / zeros  # in place: there are as many numbers as shuffles and features
    difference -= scaled.sum(0) / zeros
    every, top = np.arange(len(labels)), np.abs(difference).argmax(1)
    above = areas(rank_texts(x[~train]), labels[:, ~train])
    each = above[0].astype(float).round(6)  # float32 rounds it
    above -= 0.5
    ranked = 0.5 + above[every, top] * np.where(difference[every, top] < 0, -1, 1)
    np.abs(above, out=above)
    highest = above.argmax(1)
    best = 0.5 + above[every, highest]
    tops = {"ranked": (top[0], 1, ranked), "best": (highest[0], x.shape[1], best)}
    return {
        choice: Best(int(at), tries, round(float(auc[0]), 6), auc[1:], each)
        for choice, (at, tries, auc) in tops.items()
    }


def rank_texts(x: np.ndarray) -> np.ndarray:
    """Ranks the texts by each feature, from 1; equal ones share the mean of theirs. `x`: [text, feature]. Returns [feature, text]."""
    order = np.argsort(x := np.ascontiguousarray(x.T), 1)
    ranks, ordered = np.empty(x.shape, np.float32), np.take_along_axis(x, order, 1)  # exact for up to 2^23 texts
    np.put_along_axis(ranks, order, np.arange(1, x.shape[1] + 1, dtype=np.float32)[None], 1)
    tied = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    ranks[tied] = rankdata(x[tied], axis=1)  # five times slower
    return ranks


def p_value(own: float, shuffled: np.ndarray) -> float:
    """Returns the share of shuffles, and the labels as they are, whose AUC is as large."""
    return float((1 + (~(shuffled < own - 1e-6)).sum()) / (len(shuffled) + 1))  # float32 rounds AUCs by less
