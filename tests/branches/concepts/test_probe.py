"""Ranking, regression and AUC, against planted features, brute force, scikit-learn and sae-probes."""

import importlib
import sys
from types import ModuleType
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from sklearn.metrics import f1_score, roc_auc_score
from support import ROOT

from ffkv.base.intervals import drawn_again
from ffkv.branches.concepts.draw import Task
from ffkv.branches.concepts.probe import (
    area,
    areas,
    fit,
    interval,
    rank,
    score,
    validation_of,
    weighted_f1,
)  # fmt: skip

CS = np.logspace(5, -5, 10).tolist()  # those of sae-probes


def task(positive, train) -> Task:
    """A task of which each text is a document."""
    number, one = np.arange(len(positive)), np.ones(len(positive))
    return Task("", "", [], one, positive, number, train, one)


def features(seed, texts=200, count=60, told=5, by=0.7):
    """Returns rectified features, of which the first ones tell the label, and labels."""
    generator = np.random.default_rng(seed)
    positive = generator.random(texts) < 0.5
    x = generator.normal(size=(texts, count)).astype(np.float32)
    x[:, :told] += by * positive[:, None]
    return np.maximum(x, 0), positive


def test_the_area_is_that_of_scikit_learn():
    x, positive = features(1, texts=60)
    expected = [roc_auc_score(positive, column) for column in x.T]
    assert areas(rankdata(x.T, axis=1), positive[None])[0] == pytest.approx(expected, abs=1e-6)  # float32
    assert np.isnan(area(x[:, 0].astype(float), np.ones(60, bool)))


def test_f1_is_that_of_scikit_learn():
    generator = np.random.default_rng(2)
    said, truth = generator.random((2, 40)) < 0.4
    assert weighted_f1(said, truth) == pytest.approx(f1_score(truth, said, average="weighted"), abs=1e-12)
    assert weighted_f1(np.zeros(40, bool), np.ones(40, bool)) == 0


def test_a_feature_that_fires_on_the_label_is_first_and_separates_it():
    x, positive = features(3, told=0)
    x[:, 17] = positive * 0.01  # however small its numbers are
    order, difference = rank(x[:100], positive[:100])
    assert order[0] == 17 and difference[17] > 0
    train = np.arange(200) < 100
    found = score(x[:, order[:1]].astype(float), task(positive, train), np.ones((1, 100)), [1.0], 0)
    assert (found.auc, found.accuracy, found.f1) == (1, 1, 1)


def test_a_feature_that_fires_without_the_label_is_first_too():
    x, positive = features(4, told=0)
    x[:, 3] = ~positive
    order, difference = rank(x, positive)
    assert order[0] == 3 and difference[3] < 0


def test_features_that_never_fire_come_last_and_do_no_harm():
    x, positive = features(5)
    x[:, 7] = 0
    order, difference = rank(x, positive)
    assert difference[7] == 0 and order[-1] == 7
    probability, _, _ = fit(x[:100].astype(float), positive[:100], x[100:].astype(float), np.arange(100) > 80, CS, 0)
    assert np.isfinite(probability).all()


def test_rounding_ranks_nothing():
    """GPT-2's GELU is 0 far below 0 in float32, and some 1e-12 in float64: memories have the same rank. float32 rounds by 1e-7."""
    generator = np.random.default_rng(8)
    reads, positive = torch.from_numpy(generator.normal(-4, 3, (100, 30))), generator.random(100) < 0.5
    (order, difference), (exact, expected) = (
        rank(torch.nn.functional.gelu(reads.to(dtype), approximate="tanh").double().numpy(), positive)
        for dtype in (torch.float32, torch.float64)
    )
    assert difference == pytest.approx(expected, abs=1e-5) and order.tolist() == exact.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("documents", "texts"), [(10, 10), (100, 1)])
def test_the_interval_covers_the_true_area(documents, texts):
    """Scores of two normal distributions that are one standard deviation apart have an AUC of Φ(1 / √2) = 0.760.

    Half of their variance is of the document, which has one label.
    """
    generator, covered, document = np.random.default_rng(6), 0, np.repeat(np.arange(documents), texts)
    for _ in range(300):
        positive = (generator.permutation(documents) < documents // 2)[document]
        noise = generator.normal(size=documents)[document], generator.normal(size=len(document))
        scores = positive + (noise[0] + noise[1]) / np.sqrt(2)
        low, high, _ = interval(scores, positive, document, drawn_again(document, 200, generator))
        covered += low <= 0.7602 <= high
    assert covered >= 270  # 95 % of 300, less 4 binomial errors; percentiles of the draws of 10 documents cover 83 %


def test_the_interval_of_a_perfect_separation_has_a_length():
    positive = np.arange(40) < 20
    low, high, error = interval(positive + 0.0, positive, np.arange(40), np.ones((20, 40)))
    assert 0.8 < low < 1 and high == 1 and error > 0
    assert np.isnan(interval(positive + 0.0, positive, np.arange(40), np.zeros((20, 40)))).all()  # no draws
    assert np.isnan(interval(positive + 0.0, positive, np.arange(40) % 4, np.ones((20, 40)))).all()  # four documents


def test_documents_are_drawn_and_not_texts():
    """Ten copies of each text tell no more than one."""
    generator = np.random.default_rng(7)
    positive, scores = np.arange(30) < 15, generator.normal(size=30)
    draws = generator.multinomial(30, np.full(30, 1 / 30), 500).astype(float)
    once = interval(scores, positive, np.arange(30), draws)
    tenfold = [np.repeat(each, 10) for each in (scores, positive, np.arange(30))]
    copies = interval(*tenfold, np.repeat(draws, 10, axis=1))
    assert copies == pytest.approx(once, abs=1e-9)


def test_texts_for_choices_are_the_last_fifth_and_no_document_is_split():
    assert np.flatnonzero(validation_of(np.arange(100))).tolist() == [*range(80, 100)]
    assert validation_of(np.arange(1000)).sum() == 100
    document = np.random.default_rng(8).integers(0, 9, 60)
    own = validation_of(document)
    assert 0 < own.sum() < 40 and not {*document[own].tolist()} & {*document[~own].tolist()}
    assert validation_of(np.zeros(20, int)).sum() == 4  # of one document some texts


def test_order_and_scores_are_those_of_sae_probes(monkeypatch):
    """Its own functions on the same features give the same, up to the rounding of the sums."""
    theirs = next(ROOT.glob(".venv-peers/lib/python*/site-packages/sae_probes"), None)
    if theirs is None:
        pytest.skip("the package sae-probes is not installed: make peers")
    for name in ("sae_lens", "transformer_lens", "xgboost"):  # which it imports beside these functions
        monkeypatch.setitem(sys.modules, name, MagicMock())
    package = ModuleType("sae_probes")
    package.__path__ = [str(theirs)]
    monkeypatch.setitem(sys.modules, "sae_probes", package)
    evals, training = (importlib.import_module(f"sae_probes.{name}") for name in ("run_sae_evals", "utils_training"))
    for seed, size in ((9, 1), (10, 8), (11, 32)):
        x, positive = features(seed)
        train = np.arange(200) < 150
        order, _ = rank(x[train], positive[train])
        labels = torch.tensor(positive[train].astype(int))
        theirs = evals.get_sorted_indices(torch.tensor(x[train]), labels, evals.mean_act_normalization)
        assert order.tolist() == theirs.tolist()
        own = x[:, order[:size]].astype(float)
        own = (own - own[train].mean(0)) / own[train].std(0)
        found = training.find_best_reg(
            own[train], positive[train].astype(int), own[~train], positive[~train].astype(int)
        )
        made = score(own, task(positive, train), np.ones((1, 50)), CS, 1)
        expected = found.metrics.test_auc, found.metrics.test_f1, found.metrics.test_acc, found.metrics.val_auc
        assert (made.auc, made.f1, made.accuracy, made.validation) == pytest.approx(expected, abs=1e-6)
