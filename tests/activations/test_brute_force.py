"""The trigger pass against every coefficient of every prefix, one prefix at a time; and prefixes that several sentences begin with."""

from collections import Counter, defaultdict
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from support import ROOT, prove_into, random_sentences

from ffkv.activations import batches
from ffkv.activations.batches import Batching
from ffkv.activations.trigger_file import HISTOGRAM_EDGES
from ffkv.activations.triggers import find_triggers
from ffkv.base.settings import Triggers as Settings
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.shared_prefixes import HISTOGRAM_EVERY
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.discover.prove import observe


def naive(loaded, corpus):
    """Every coefficient of every proper prefix, one prefix at a time: {row: [(coefficient, sentence, position)]}."""
    table = defaultdict(list)
    for sentence in range(len(corpus)):
        for position in range(1, int(corpus.lengths[sentence])):
            ids = torch.tensor([[*corpus.bos, *corpus.ids(sentence)[:position].tolist()]])
            states = observe(loaded.model, loaded.anatomy.layers, ids)
            m = torch.cat([layer["m"][0, -1] for layer in states]).tolist()
            for row, coefficient in enumerate(m):
                table[row].append((coefficient, sentence, position))
    return table


def followers(corpus):
    """The sentences that begin with each proper prefix, and the tokens that follow it there: {ids: [(sentence, token)]}."""
    table = defaultdict(list)
    for sentence in range(len(corpus)):
        ids = corpus.ids(sentence).tolist()
        for position in range(1, len(ids)):
            table[tuple(ids[:position])].append((sentence, ids[position]))
    return table


def reader(corpus, identical):
    """Whether a prefix competes in a sentence: each in all, or once, in the first that is no beginning of another one."""
    rows = [tuple(corpus.ids(sentence)[:-1].tolist()) for sentence in range(len(corpus))]
    read = [
        not any(
            other[: len(row)] == row and (len(other) > len(row) or before < at) for before, other in enumerate(rows)
        )
        for at, row in enumerate(rows)
    ]

    def competes(sentence, position):
        if identical == "per_sentence":
            return True
        same = [at for at, row in enumerate(rows) if read[at] and row[:position] == rows[sentence][:position]]
        return same[0] == sentence

    return competes


def alike_sentences(seed, count, longest=7):
    """Sentences of few words: most begin like others, some are the beginning of others, some occur twice."""
    draw = np.random.default_rng(seed).integers
    return [" ".join(f"w{word}" for word in draw(1, 4, draw(2, longest))) for _ in range(count)]


def first_highest(sign, entry):
    """What (coefficient, sentence, position) are sorted by: the first 15 significant binary digits, then the place."""
    mantissa, exponent = np.frexp(np.float32(sign * entry[0]))
    return -int(exponent), -int(mantissa * 2**15), *entry[1:]


def check_examples(side, sign, row, everything, corpus, one_prefix, identical):
    """One row's triggers of a sign against all of its coefficients: (coefficient, sentence, position)."""
    competes, after = reader(corpus, identical), followers(corpus)
    own = [entry for entry in everything if sign * entry[0] > 0 and competes(*entry[1:])]
    own.sort(key=partial(first_highest, sign))
    if one_prefix:
        best = {}
        for entry in own:
            best.setdefault(entry[1], entry)
        own = list(best.values())
    # A batched forward differs from a single one in the last digits: a few coefficients in a thousand then have other
    # binary digits, and tied ones are up to 0.01 % apart.
    kept = side.coefficient[row, : side.count[row]]
    np.testing.assert_allclose(kept, [entry[0] for entry in own[:6]], rtol=1e-4, atol=1e-5)
    assert (sign * kept > 0).all()
    assert not side.coefficient[row, side.count[row] :].any()
    by_place = {entry[1:]: entry[0] for entry in everything}
    for rank in range(side.count[row]):
        place = (int(side.sentence[row, rank]), int(side.position[row, rank]))
        assert by_place[place] == pytest.approx(float(side.coefficient[row, rank]), rel=1e-4, abs=1e-5)
        assert competes(*place)
        tokens = [token for _, token in after[tuple(corpus.ids(place[0])[: place[1]].tolist())]]
        w, count = Counter(tokens).most_common(1)[0]  # of equally frequent ones the first
        expected = (w, count, len(tokens)) if identical == "once" else (corpus.ids(place[0])[place[1]], 1, 1)
        assert (side.next_token[row, rank], side.next_count[row, rank], side.multiplicity[row, rank]) == expected
    values = np.array([entry[0] for entry in everything])
    unclear = (np.abs(values) <= 1e-5).sum()
    assert abs(side.fires[row] - (sign * values > 0).sum()) <= unclear


KINDS = ["gpt2", "gpt2-relu", "opt", "gpt-neox", "opt-post-norm", "llama"]


@pytest.mark.parametrize(
    ("kind", "one_prefix", "identical"),
    [*product(KINDS, (True, False), ("per_sentence", "once")), ("mixtral", True, "once")],
)
def test_equal_to_brute_force(model_and_corpus, kind, one_prefix, identical):
    texts = random_sentences(1, 24, longest=8) if identical == "per_sentence" else alike_sentences(1, 30)
    loaded, corpus = model_and_corpus(kind, sentences=texts)
    found = find_triggers(
        loaded,
        corpus,
        Settings(per_key=6, one_prefix_per_sentence=one_prefix, shared_prefixes_compete=identical),
        Batching(tokens=40, block_sentences=7),
    )
    assert found.prefixes == corpus.lengths.sum() - len(corpus)
    assert (found.negative is None) == (kind in ("gpt2-relu", "opt", "opt-post-norm"))
    for row, everything in naive(loaded, corpus).items():
        check_examples(found, 1, row, everything, corpus, one_prefix, identical)
        if found.negative:
            check_examples(found.negative, -1, row, everything, corpus, one_prefix, identical)
        values = np.array([entry[0] for entry in everything])
        assert found.mean[row] == pytest.approx(values.mean(), rel=1e-4, abs=1e-5)
        assert found.maximum[row] == pytest.approx(max(values.max(), 0), rel=1e-4, abs=1e-5)
        if found.negative:
            assert found.negative.minimum[row] == pytest.approx(min(values.min(), 0), rel=1e-4, abs=1e-5)
        counted = np.array([entry[0] for entry in everything if entry[1] % HISTOGRAM_EVERY == 0])
        assert found.histogram[row].sum() == len(counted)
        edges = HISTOGRAM_EDGES.astype(np.float64)
        if np.abs(counted[:, None] - edges[None, 1:-1]).min() > 1e-4:
            expected = [
                ((counted > low) if low == 0 else (counted >= low))
                & ((counted <= high) if high == 0 else (counted < high))
                for low, high in pairwise(edges)
            ]
            assert found.histogram[row].tolist() == [int(inside.sum()) for inside in expected]


STORIES = ROOT.parent / "shared/tinystories"
TIE = 1e-5  # relative: coefficients that are nearer than this are a tie, which rounding decides


@pytest.fixture
def alike(model_and_corpus):
    """A model, and 300 sentences of three words that all begin like others."""
    return model_and_corpus("llama", sentences=alike_sentences(5, 300, longest=9))


def runs(loaded, corpus, **settings):
    """The triggers for each size of the batches and number of threads."""
    threads = torch.get_num_threads()
    try:
        for batch_tokens, count in product((200, 1024, 5000), (1, 2)):
            torch.set_num_threads(count)
            yield find_triggers(loaded, corpus, Settings(per_key=5, **settings), Batching(tokens=batch_tokens))
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
        find_triggers(loaded, corpus, Settings(shared_prefixes_compete=identical), Batching())
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
    usual = find_triggers(*alike, Settings(), Batching())
    monkeypatch.setattr(batches, "EXACT", 0)
    exact = find_triggers(*alike, Settings(), Batching())
    np.testing.assert_array_equal(exact.fires, usual.fires)
    np.testing.assert_array_equal(exact.histogram, usual.histogram)
    np.testing.assert_allclose(exact.total, usual.total, rtol=1e-5, atol=10)


def test_no_prefix_is_among_the_triggers_twice(alike):
    loaded, corpus = alike
    found = find_triggers(loaded, corpus, Settings(per_key=50, one_prefix_per_sentence=False), Batching())
    for side in (found, found.negative):
        for row in range(0, len(side.count), 5):
            places = zip(side.sentence[row, : side.count[row]], side.position[row, : side.count[row]])
            ids = [tuple(corpus.ids(sentence)[:position].tolist()) for sentence, position in places]
            assert len(ids) == len(set(ids))
