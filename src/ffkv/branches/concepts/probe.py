"""How well features separate two labels: ranking, sparse logistic regression, and the area under the curve (AUC).

After k-sparse probing (Gurnee et al. 2023) as sae-probes does it (Kantamneni et al. 2025). It differs: the features of a regression have
unit variance, so that one penalty suits all layers; documents are never split; and each AUC has an interval.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit, stdtrit
from scipy.stats import rankdata
from sklearn import config_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from ffkv.base.intervals import LEAST_GROUPS, wilson
from ffkv.branches.concepts.draw import Task

VALIDATION, MOST_VALIDATION = 0.2, 100  # of the train half: a share, and texts at most, as sae-probes takes
TINY = 1e-6  # as sae-probes adds
NOTHING = 1e-5  # of the largest size of a feature: below it rounding decides which coefficients of a GELU are 0


class Score(NamedTuple):
    """What a regression does on the test half."""

    auc: float
    low: float  # of the interval (95 %) of the AUC
    high: float
    error: float  # standard error of the AUC
    f1: float  # mean of both labels' F1, weighted by their numbers of texts
    accuracy: float
    validation: float  # AUC on the last part of the train half


def rank(x: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranks features by the difference of the means of both labels, over the mean size where the feature is not 0.

    `x`: features of the train half [text, feature]. `positive`: whether each text has the positive label [text]. Returns the features, the
    largest difference first; and the difference of each [feature].
    """
    scaled = normalize(x)
    difference = scaled[positive].mean(0) - scaled[~positive].mean(0)
    return np.argsort(-np.abs(difference), kind="stable"), difference


def normalize(x: np.ndarray) -> np.ndarray:
    """Divides features [text, feature] by their mean size over texts where they are not next to nothing, see `NOTHING`."""
    sizes = np.abs(x)
    return x / (sizes.sum(0) / ((sizes > NOTHING * sizes.max(0)).sum(0) + TINY) + TINY)


def areas(ranks: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Computes the AUC of features with labellings, by the rank sum of Mann and Whitney.

    `ranks`: the rank of each text, from 1; equal ones share the mean of theirs [feature, text]. `positive`: labels [labelling, text]. Returns [labelling, feature]; NaN with one label.
    """
    ones = positive.sum(1)[:, None]
    zeros = positive.shape[1] - ones
    with np.errstate(invalid="ignore", divide="ignore"):
        found = positive.astype(ranks.dtype) @ ranks.T
        found -= (ones * (ones + 1) / 2).astype(ranks.dtype)
        found /= (ones * zeros).astype(ranks.dtype)
    return found


def area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Computes the AUC of scores [text]; NaN with one label."""
    return float(areas(rankdata(scores)[None], positive[None])[0, 0])


def interval(
    scores: np.ndarray, positive: np.ndarray, document: np.ndarray, weights: np.ndarray
) -> tuple[float, float, float]:
    """Computes the 95 % interval of an AUC, and its standard error, by drawing documents again.

    It is Student's t interval of the log-odds: percentiles of draws cover 82 % with 10 documents, and 92 % with 100. Where all draws are
    alike, as every text is on its side, it is that of a share of 1 among texts of the rarer label. NaN with fewer documents than `LEAST_GROUPS`.

    `scores`, `positive`, `document`: [text]. `weights`: how often each text is there in each draw [draw, text].
    """
    above = (1 + np.sign(scores[positive][:, None] - scores[~positive])) / 2
    ones, zeros = weights[:, positive], weights[:, ~positive]
    with np.errstate(invalid="ignore"):
        drawn = ((ones @ above) * zeros).sum(1) / (ones.sum(1) * zeros.sum(1))
    drawn, documents, own = drawn[np.isfinite(drawn)], len(np.unique(document)), float(above.mean())
    if documents < LEAST_GROUPS or not len(drawn):
        return (float("nan"),) * 3
    if np.ptp(drawn) == 0:
        low, high = map(float, wilson(own * min(above.shape), min(above.shape)))
        return low, high, (high - low) / 4
    error = float(drawn.std() * np.sqrt(documents / (documents - 1)))
    half = stdtrit(documents - 1, 0.975) * error / (own * (1 - own))
    low, high = expit(logit(own) + half * np.array([-1, 1])).tolist()
    return low, high, error


def validation_of(document: np.ndarray) -> np.ndarray:
    """Tells which texts of the train half [text] are for choices: a fifth, and 100 at most, those of the documents that come last.

    Of one document, they are its last texts.
    """
    units, first, at = np.unique(document, return_index=True, return_inverse=True)
    if len(units) == 1:
        units, first, at = (np.arange(len(document)),) * 3
    wanted = min(int(VALIDATION * len(document)), MOST_VALIDATION)
    last = np.argsort(-first)  # the units, the last one first
    count = 1 + np.searchsorted(np.cumsum(np.bincount(at)[last])[1:-1], wanted, "right")
    return np.isin(at, last[:count])


def fit(
    x: np.ndarray, positive: np.ndarray, test: np.ndarray, choosing: np.ndarray, strengths: Sequence[float], seed: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Fits a logistic regression on the train half, and applies it to the test half.

    `x`, `test`: features of both halves [text, feature]. `positive`, `choosing`: labels, and `validation_of`, of the train half
    [text]. `strengths`: see the setting `regularization`; the first best one counts. Returns the probability of the positive label
    [test text], whether it is predicted [test text], and the AUC on the texts for choices.
    """
    mean, deviation = x.mean(0), x.std(0)
    x, test = ((each - mean) / np.where(deviation > 0, deviation, 1) for each in (x, test))

    def model(strength: float, rows: np.ndarray) -> LogisticRegression:
        return LogisticRegression(C=strength, random_state=seed, max_iter=1000).fit(x[rows], positive[rows])

    chosen, best = strengths[0], float("nan")
    if len({*positive[choosing].tolist()}) == len({*positive[~choosing].tolist()}) == 2:
        found = [area(model(each, ~choosing).decision_function(x[choosing]), positive[choosing]) for each in strengths]
        chosen, best = strengths[int(np.argmax(found))], max(found)
    whole = model(chosen, np.ones(len(x), bool))
    return whole.predict_proba(test)[:, 1], whole.predict(test), best


def score(x: np.ndarray, task: Task, weights: np.ndarray, strengths: Sequence[float], seed: int) -> Score:
    """Fits on the train half of a task, and scores on the test half.

    `x`: some features [text, feature]. `weights`: see `interval`. Others: see `fit`.
    """
    train, truth = task.train, task.positive[~task.train]
    with warnings.catch_warnings(), config_context(assume_finite=True, skip_parameter_validation=True):
        warnings.simplefilter("ignore", ConvergenceWarning)  # what it has after so many steps is scored as it is
        choosing = validation_of(task.document[train])
        found, said, best = fit(x[train], task.positive[train], x[~train], choosing, strengths, seed)
    own = area(found, truth), *interval(found, truth, task.document[~train], weights)
    return Score(*own, weighted_f1(said, truth), float((said == truth).mean()), best)


def weighted_f1(said: np.ndarray, truth: np.ndarray) -> float:
    """Returns the mean of the F1 of both labels, weighted by how many texts have each [text]."""
    total = 0.0
    for label in (True, False):
        own, wanted = said == label, truth == label
        total += wanted.mean() * 2 * (own & wanted).sum() / max(own.sum() + wanted.sum(), 1)
    return float(total)
