"""Search over all memories: by promoted token, by text, by numbers."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffkv.errors import UserError
from ffkv.results import search
from ffkv.results.search import _first_matches


def names(memories):
    return memories["name"].tolist()


def test_without_a_search_all_memories_come_in_order(run):
    memories = run.memories()
    assert names(memories) == ["L0.0", "L0.1", "L0.2", "L1.0", "L1.1"]
    assert memories["maximum_coefficient"].tolist() == [4, 1, 0, 0.5, 9]
    assert memories["top_token"].tolist()[:2] == [" church", " the"]


def test_a_caller_may_change_the_table(run):
    memories = run.memories()
    memories["norm"] = 17
    assert (run.memories()["norm"] == 1).all()


def test_promotes_finds_a_token_with_and_without_its_blank(run):
    memories = run.memories(promotes="church")
    assert names(memories) == ["L0.0", "L0.1", "L1.1", "L1.0"]
    assert memories["promoted_token"].tolist() == [" church", "church", "church", " church"]
    assert memories["promoted_rank"].tolist() == [0, 1, 0, 2]
    assert memories["promoted_probability"].to_numpy() == pytest.approx([0.5, 0.125, 0.1, 0.125 / 4])


@pytest.mark.parametrize("token, suggested", [("chur", "' church', 'church'"), ("churches", "' church', 'church'")])
def test_a_token_that_the_model_lacks_is_refused_with_similar_ones(run, token, suggested):
    with pytest.raises(UserError, match=f"'{token}' is not a token of synthetic.*Similar tokens: {suggested}"):
        run.memories(promotes=token)


def test_text_finds_what_the_trigger_prefixes_contain(run):
    memories = run.memories(text="thechurch")
    assert names(memories) == ["L0.0"]
    assert memories["examples_with_text"].tolist() == [1]
    assert memories["coefficient_with_text"].tolist() == [4]


def test_text_looks_at_the_prefix_not_at_the_sentence(run):
    # Sentence 0 goes on with " nan", the prefix of L0.0 does not; the prefix of L0.1 is " nan".
    assert names(run.memories(text="nan")) == ["L0.1"]
    assert names(run.memories(text="é")) == ["L1.1", "L0.0"]  # the second example of L1.1
    assert run.memories(text="é")["coefficient_with_text"].tolist() == [8, 4]
    assert names(run.memories(text="no such text")) == []


def test_text_does_not_reach_into_the_next_sentence(run):
    assert names(run.memories(text=" nan é")) == []


def test_an_empty_text_is_refused(run):
    with pytest.raises(UserError, match="empty"):
        run.memories(text="")


def test_both_searches_hold_together(run):
    assert names(run.memories(promotes="é", text="the")) == ["L0.0"]


def test_sort_puts_the_largest_first_and_minimum_cuts(run):
    assert names(run.memories(sort="maximum_coefficient")) == ["L1.1", "L0.0", "L0.1", "L1.0", "L0.2"]
    assert names(run.memories(sort="maximum_coefficient", minimum=1)) == ["L1.1", "L0.0", "L0.1"]
    assert names(run.memories(promotes="church", minimum=0.12)) == ["L0.0", "L0.1"]
    assert names(run.memories(text="the", sort="norm")) == ["L0.0", "L1.0", "L1.1"]  # equals keep their order


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sort": "beauty"}, "no column 'beauty'. Choose one of: layer, memory"),
        ({"minimum": 1}, "minimum needs a column to compare with"),
        ({"sort": "top_token", "minimum": 1}, "needs a column of numbers"),
    ],
)
def test_what_cannot_be_sorted_is_refused(run, options, message):
    with pytest.raises(UserError, match=message):
        run.memories(**options)


def test_blocks_of_sentences_do_not_change_what_is_found(run, monkeypatch):
    whole = run.memories(text="the")
    monkeypatch.setattr(search, "BLOCK", 1)
    assert run.memories(text="the").equals(whole)


@given(st.lists(st.text("ab", max_size=6), min_size=1), st.text("ab", min_size=1, max_size=3))
def test_the_first_match_of_each_text_is_found(texts, text):
    starts = [0, *itertools.accumulate(map(len, texts))]
    matches = list(_first_matches("".join(texts).encode(), starts, re.compile(re.escape(text.encode()))))
    expected = [
        (number, starts[number] + each.index(text) + len(text)) for number, each in enumerate(texts) if text in each
    ]
    assert matches == expected
