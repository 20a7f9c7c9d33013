"""Sentences that begin alike: their beginning is read once, and nothing else changes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ffkv.activations import stages, triggers
from ffkv.activations.stages import stages_of
from ffkv.activations.triggers import find_triggers
from ffkv.base.parts import Part
from ffkv.base.settings import Activations
from ffkv.base.settings import Triggers as Settings
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.shared_prefixes import find_shared_prefixes
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.tap.beginning import can_read_on


class Text:
    """What stages need of a corpus."""

    def __init__(self, sentences: list[list[int]], bos: list[int]):
        self.bos, self.tokens = bos, np.concatenate([np.array(each, np.int32) for each in sentences])
        self.lengths = np.array([len(each) for each in sentences])
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        self.first_new, self.shared = find_shared_prefixes(self.tokens, self.offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, sentence: int) -> list[int]:
        """The tokens that the model reads."""
        ids = self.tokens[self.offsets[sentence] : self.offsets[sentence + 1]]
        return [*self.bos, *ids[:-1].tolist()]


@pytest.fixture
def any_saving(monkeypatch):
    monkeypatch.setattr(stages, "LEAST_SAVED", -np.inf)


rows = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=14), min_size=1, max_size=40)


@given(rows, st.integers(0, 2), st.integers(5, 60), st.integers(1, 20), st.booleans())
@hypothesis_settings(deadline=None)
def test_each_sentence_is_read_once_after_what_it_begins_with(sentences, bos, batch_tokens, block, empty):
    text = Text(sentences, [9] * bos)
    competing = CompetingPrefixes(text, once=True, empty=empty and bos > 0)
    batching = Activations(batch_tokens=batch_tokens, block_sentences=block)
    least, stages.LEAST_SAVED = stages.LEAST_SAVED, -np.inf
    try:
        found = list(stages_of(competing, batching))
        in_shards = [stage for shard in range(3) for stage in stages_of(competing, batching, Part(shard, 3))]
    finally:
        stages.LEAST_SAVED = least
    read = [sentence for stage in found for batch in (*stage.whole, *stage.others) for sentence in batch.tolist()]
    assert sorted(read) == np.flatnonzero(competing.counts).tolist()
    assert stages.count_tokens(competing, batching) == text.lengths[read].sum()
    assert [repr(stage) for stage in in_shards] == [repr(stage) for stage in found]
    for stage in found:
        whole = np.concatenate(stage.whole)
        for batch, begun in [(each, 0) for each in stage.whole] + [(each, stage.begin) for each in stage.others]:
            longest = max(len(text.row(sentence)) for sentence in batch)
            assert len(batch) == 1 or len(batch) * (longest - begun) <= batch_tokens
            assert len(batch) == 1 or not begun or len(batch) * longest <= stages.MOST_HELD * batch_tokens
        for batch, like in zip(stage.others, stage.like, strict=True):
            for sentence, other in zip(batch.tolist(), whole[like].tolist(), strict=True):
                assert text.row(sentence)[: stage.begin] == text.row(other)[: stage.begin]
                assert len(text.row(sentence)) > stage.begin
                assert competing.first[sentence] > stage.begin - bos  # no prefix competes that is not read here
    assert all(not stage.others for stage in stages_of(CompetingPrefixes(text, once=False), batching))


def test_a_beginning_that_many_sentences_share_is_read_once():
    """100 sentences of 20 tokens, of which 16 are the same: the others are read from there on, which saves 1,683 tokens."""
    text = Text([[*range(16), 20 + number, 1, 2, 3] for number in range(100)], [9])
    (stage,) = stages_of(CompetingPrefixes(text, once=True), Activations(batch_tokens=1024))
    assert [batch.tolist() for batch in stage.whole] == [[0]]
    assert stage.begin == 17 and sum(map(len, stage.others)) == 99


def test_short_rests_hold_no_more_beginnings_than_their_memory_allows():
    """A batch of rests of two tokens has room for 512 of them, but their beginnings of 65 tokens are kept, too."""
    text = Text([[*range(64), 64 + number, 1, 2] for number in range(100)], [9])
    (stage,) = stages_of(CompetingPrefixes(text, once=True), Activations(batch_tokens=1024))
    assert stage.begin == 65
    assert [len(batch) for batch in stage.others] == [30, 30, 30, 9]  # of 67 tokens each, 2 * 1024 at most


def test_beginnings_that_save_less_than_a_batch_are_not_worth_batches_of_their_own():
    text = Text([[0, 1, 2, 3 + number, 1] for number in range(20)], [])
    assert all(not stage.others for stage in stages_of(CompetingPrefixes(text, once=True), Activations()))


def alike(seed: int, count: int) -> list[str]:
    """Sentences that begin in one of three ways."""
    generator = np.random.default_rng(seed)
    beginnings = [" ".join(f"w{word}" for word in generator.integers(1, 50, length)) for length in (3, 6, 12)]
    rest = [" ".join(f"w{word}" for word in generator.integers(1, 50, generator.integers(3, 9))) for _ in range(count)]
    return [f"{beginnings[number % 3]} {each}" for number, each in enumerate(rest)]


@pytest.mark.parametrize("kind", ["gpt2", "opt", "gpt-neox", "opt-post-norm", "llama"])
@pytest.mark.parametrize("one_prefix", [True, False])
@pytest.mark.usefixtures("any_saving")
def test_the_triggers_are_those_of_whole_sentences(proven, write_corpus, monkeypatch, kind, one_prefix):
    loaded = load(proven(kind), "cpu")
    corpus = read_corpus(write_corpus(alike(3, 60), load_tokenizer(proven(kind))))
    settings = Settings(per_key=5, one_prefix_per_sentence=one_prefix)
    batching = Activations(batch_tokens=60, block_sentences=40)
    assert any(stage.others for stage in stages_of(CompetingPrefixes(corpus, once=True), batching))
    assert can_read_on(loaded)
    found = find_triggers(loaded, corpus, settings, batching)
    monkeypatch.setattr(triggers, "can_read_on", lambda loaded: False)
    expected = find_triggers(loaded, corpus, settings, batching)
    # The last digits depend on the shape of a batch.
    np.testing.assert_allclose(found.coefficient, expected.coefficient, rtol=1e-4, atol=1e-5)
    # In the first parallel layer all prefixes that end with one token tie.
    assert (found.sentence == expected.sentence).mean() > 0.9 and (found.position == expected.position).mean() > 0.9
    assert found.prefixes == expected.prefixes and np.abs(found.fires - expected.fires).max() <= 2
    assert (found.histogram.sum(1) == expected.histogram.sum(1)).all()


@pytest.mark.usefixtures("any_saving")
def test_a_model_that_cannot_read_on_reads_whole_sentences(proven, write_corpus, capsys):
    """As a recurrent model, which keeps a state, and no keys and values."""
    loaded = load(proven("llama"), "cpu")
    corpus = read_corpus(write_corpus(alike(3, 60), load_tokenizer(proven("llama"))))
    usual, forward = find_triggers(loaded, corpus, Settings(per_key=5), Activations()), loaded.model.forward

    def without_cache(*arguments, past_key_values=None, use_cache=False, **named):
        return forward(*arguments, use_cache=False, **named)

    loaded.model.forward = without_cache
    assert not can_read_on(loaded)
    found = find_triggers(loaded, corpus, Settings(per_key=5), Activations())
    assert "each read whole" in capsys.readouterr().err
    np.testing.assert_allclose(found.coefficient, usual.coefficient, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("any_saving")
def test_a_pass_goes_on_at_any_batch_with_the_same_numbers(proven, write_corpus):
    """Beginnings that a killed process kept are read again, and not counted again."""
    loaded = load(proven("gpt2"), "cpu")
    corpus = read_corpus(write_corpus(alike(4, 40), load_tokenizer(proven("gpt2"))))
    competing, batching = CompetingPrefixes(corpus, once=True), Activations(batch_tokens=60, block_sentences=20)
    found = list(stages_of(competing, batching))
    total = sum(map(len, found))
    assert any(stage.others for stage in found) and total > 10

    def read(state, until=None):
        with torch.no_grad(), triggers.coefficients(loaded) as run:
            for batch in triggers.run_stages(found, competing, "cpu", state, run):
                state.count(batch)
                if state.batches == until:
                    return state
        return state

    def fresh():
        return triggers.start(loaded.anatomy.layers, Settings(per_key=5), loaded.devices)

    whole = triggers.triggers_of(read(fresh()), competing, loaded)
    for until in range(1, total):
        parts = triggers.triggers_of(read(read(fresh(), until)), competing, loaded)
        for name in ("coefficient", "sentence", "position", "fires", "total", "histogram", "maximum"):
            assert getattr(parts, name).tobytes() == getattr(whole, name).tobytes(), (until, name)
        assert parts.prefixes == whole.prefixes
