"""Prefixes that several sentences begin with: w depends on neither batches nor threads; statistics count occurrences."""

from itertools import product

import numpy as np
import pytest
import torch
from support import ROOT

from ffkv.activations import batches
from ffkv.activations.triggers import find_triggers
from ffkv.base.settings import Batches
from ffkv.base.settings import Triggers as Settings
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer

STORIES = ROOT.parent / "shared/tinystories"
TIE = 1e-5  # relative: coefficients that are nearer than this are a tie, which rounding decides


@pytest.fixture
def alike(proven, write_corpus):
    """A model, and 300 sentences of three words that all begin like others."""
    generator = np.random.default_rng(5)
    texts = [" ".join(f"w{word}" for word in generator.integers(1, 4, generator.integers(2, 9))) for _ in range(300)]
    return load(proven("llama"), "cpu"), read_corpus(write_corpus(texts, load_tokenizer(proven("llama"))))


def runs(loaded, corpus, **settings):
    """The triggers for each size of the batches and number of threads."""
    threads = torch.get_num_threads()
    try:
        for batch_tokens, count in product((200, 1024, 5000), (1, 2)):
            torch.set_num_threads(count)
            yield find_triggers(loaded, corpus, Settings(per_key=5, **settings), Batches(tokens=batch_tokens))
    finally:
        torch.set_num_threads(threads)


def check_w(found):
    """w is the same in all runs, but for keys whose two best prefixes tie. Returns how many tie."""
    first, *others = found
    for other in others:
        differs = np.flatnonzero(first.next_token[:, 0] != other.next_token[:, 0])
        gap = np.abs(first.coefficient[differs, 0] - first.coefficient[differs, 1])
        assert (gap <= TIE * np.abs(first.coefficient[differs, 0])).all()
    return int((first.coefficient[:, 0] - first.coefficient[:, 1] <= TIE * first.coefficient[:, 0]).sum())


def test_w_depends_on_neither_batches_nor_threads(alike):
    found = list(runs(*alike))
    assert check_w(found) < 0.02 * len(found[0].count)
    assert (found[0].multiplicity[:, 0] > 1).mean() > 0.2  # many of the best prefixes are shared ones


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.exists(), reason="the trained model is not beside the project")
def test_w_of_a_trained_model_depends_on_neither_batches_nor_threads(tmp_path, write_corpus):
    from support import prove_into

    folder = prove_into(tmp_path / "stage", STORIES / "model")
    stories = (STORIES / "train.txt").read_text().splitlines()[:10]
    sentences = [sentence.strip() + "." for story in stories for sentence in story.split(".") if len(sentence) > 9]
    corpus = read_corpus(write_corpus(sentences, load_tokenizer(folder)))
    found = list(runs(load(folder, "cpu"), corpus))
    assert check_w(found) <= 2


def test_statistics_count_every_occurrence(alike):
    """As if shared prefixes competed per sentence; but for coefficients near 0, whose sign rounding decides."""
    loaded, corpus = alike
    once, each = (
        find_triggers(loaded, corpus, Settings(shared_prefixes_compete=identical), Batches())
        for identical in ("once", "per_sentence")
    )
    assert once.prefixes == each.prefixes
    assert np.abs(once.fires - each.fires).max() <= 0.01 * each.prefixes
    np.testing.assert_allclose(once.mean, each.mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(once.maximum, each.maximum, rtol=1e-5)
    np.testing.assert_array_equal(once.histogram.sum(1), each.histogram.sum(1))
    assert (once.histogram != each.histogram).mean() < 0.02  # a coefficient beside an edge may fall on its other side


def test_counts_that_float32_cannot_hold_are_counted_in_float64(alike, monkeypatch):
    """Here the limit is lowered: a prefix of 2^24 sentences would take too long. Sums are rounded elsewhere."""
    usual = find_triggers(*alike, Settings(), Batches())
    monkeypatch.setattr(batches, "EXACT", 0)
    exact = find_triggers(*alike, Settings(), Batches())
    np.testing.assert_array_equal(exact.fires, usual.fires)
    np.testing.assert_array_equal(exact.histogram, usual.histogram)
    np.testing.assert_allclose(exact.total, usual.total, rtol=1e-5, atol=10)


def test_no_prefix_is_among_the_triggers_twice(alike):
    loaded, corpus = alike
    found = find_triggers(loaded, corpus, Settings(per_key=50, one_prefix_per_sentence=False), Batches())
    for side in (found, found.negative):
        for row in range(0, len(side.count), 5):
            places = zip(side.sentence[row, : side.count[row]], side.position[row, : side.count[row]])
            ids = [tuple(corpus.ids(sentence)[:position].tolist()) for sentence, position in places]
            assert len(ids) == len(set(ids))
