"""Shuffled labels: within strata, calibrated, and corrected for the number of tries."""

import numpy as np
import pytest

from ffkv.branches.concepts.draw import Task
from ffkv.branches.concepts.measure import best_rows
from ffkv.branches.concepts.null import best_of_layer, shuffle

TRAIN = np.arange(80) < 40


def shuffles(positive, document, length=None, count=99, seed=0, train=TRAIN):
    length = np.ones(len(positive)) if length is None else length
    task = Task("", "", [], np.ones(len(positive), int), positive, document, train, length)
    return shuffle(task, count, np.random.default_rng(seed))


def test_labels_change_places_within_halves():
    positive = np.random.default_rng(0).random(80) < 0.3
    found = shuffles(positive, np.arange(80))
    for half in (TRAIN, ~TRAIN):
        assert (found[:, half].sum(1) == positive[half].sum()).all()
    assert (found != positive).any(1).all()


def test_texts_of_a_document_keep_one_label():
    document = np.repeat(np.arange(20), 4)
    positive = document % 3 == 0
    found = shuffles(positive, document).reshape(99, 20, 4)
    assert (found == found[:, :, :1]).all()


def test_labels_of_a_mixed_document_change_places_inside_it():
    document = np.repeat(np.arange(20), 4)
    positive = np.random.default_rng(1).random(80) < 0.5
    found = shuffles(positive, document)
    assert (found.reshape(99, 20, 4).sum(2) == positive.reshape(20, 4).sum(1)).all()


def test_a_label_that_length_tells_is_no_finding():
    """Long texts have the label. A feature that counts tokens separates it, and so it does with labels shuffled among equal lengths."""
    length = np.tile(np.arange(40), 2).astype(float)
    positive = length >= 20
    x = length[:, None].astype(np.float32)
    found = best_of_layer(x, positive, TRAIN, shuffles(positive, np.arange(80), length))["ranked"]
    assert found.auc == 1 and (found.shuffled == 1).mean() > 0.5  # classes of length have one label each


def brute(x, positive, train):
    """The best feature by loops."""
    scaled = x[train] / (np.abs(x[train]).sum(0) / ((x[train] != 0).sum(0) + 1e-6) + 1e-6)
    difference = scaled[positive[train]].mean(0) - scaled[~positive[train]].mean(0)

    def auc(column):
        ones, zeros = column[~train & positive], column[~train & ~positive]
        return np.mean([(a > b) + 0.5 * (a == b) for a in ones for b in zeros])

    every = np.array([auc(column) for column in x.T])
    top = np.abs(difference).argmax()
    return (top, every[top] if difference[top] >= 0 else 1 - every[top]), np.maximum(every, 1 - every).max()


def test_the_best_features_are_those_of_brute_force():
    generator = np.random.default_rng(2)
    x, positive = np.maximum(generator.normal(size=(80, 12)), 0).astype(np.float32), generator.random(80) < 0.4
    shuffled = shuffles(positive, np.arange(80), count=20)
    found = best_of_layer(x, positive, TRAIN, shuffled)
    (top, auc), best = brute(x, positive, TRAIN)
    assert found["ranked"].feature == top
    np.testing.assert_allclose([found["ranked"].auc, found["best"].auc], [auc, best], atol=1e-6)  # float32
    for labels, ranked, highest in zip(shuffled, found["ranked"].shuffled, found["best"].shuffled, strict=True):
        (_, auc), best = brute(x, labels, TRAIN)
        np.testing.assert_allclose([ranked, highest], [auc, best], atol=1e-6)


@pytest.mark.slow
def test_the_best_of_many_layers_and_memories_is_found_by_chance_no_more_often_than_it_may():
    """200 tasks of labels that mean nothing, 3 layers of 50 features: the largest test AUC of 150 is 0.75, and its p-value is fair."""
    generator, p = np.random.default_rng(3), {"ranked": [], "best": []}
    largest = []
    for seed in range(200):
        positive = generator.permutation(80) % 2 > 0
        layers = [np.maximum(generator.normal(size=(80, 50)), 0).astype(np.float32) for _ in range(3)]
        shuffled = shuffles(positive, np.arange(80), count=99, seed=seed)
        best = [best_of_layer(x, positive, TRAIN, shuffled) for x in layers]
        for choice, found in p.items():
            row = best_rows("memories", choice, [each[choice] for each in best])[-1]
            assert row["layer"] == -1 and row["tries"] == {"ranked": 3, "best": 150}[choice]
            found.append(row["p"])
        largest.append(row["auc"])
    assert np.mean(largest) > 0.7
    for found in p.values():
        assert np.mean(np.array(found) <= 0.05) <= 0.1  # 5 % of 200, and 3 binomial errors
        assert 0.4 < np.mean(found) < 0.6
