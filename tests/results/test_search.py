"""Search over all memories: by promoted token, by text, by numbers."""

import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from results.conftest import add_behaviours

from ffkv.base.errors import UserError
from ffkv.base.expressions import compile_expression
from ffkv.run.results import indexes, text_search
from ffkv.run.results.run import open
from ffkv.run.results.search import find


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


def test_by_weight_a_memory_that_never_fires_comes_last(run):
    memories = run.memories(promotes="church", sort="promoted_weight")
    weight = memories["promoted_probability"] * memories["firing_rate"]
    assert memories["promoted_weight"].tolist() == weight.tolist() == sorted(weight, reverse=True)


def test_a_misspelt_token_is_answered_with_near_spellings(run):
    with pytest.raises(UserError, match="Similar tokens: ' church', 'church'"):
        run.memories(promotes="chorch")


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
    monkeypatch.setattr(text_search, "BLOCK", 1)
    assert run.memories(text="the").equals(whole)


@given(st.lists(st.text("ab", max_size=6), min_size=1), st.text("ab", min_size=1, max_size=3))
def test_the_first_match_of_each_text_is_found(texts, text):
    starts = [0, *itertools.accumulate(map(len, texts))]
    matches = list(text_search.first_matches("".join(texts).encode(), starts, re.compile(re.escape(text.encode()))))
    expected = [
        (number, starts[number] + each.index(text) + len(text)) for number, each in enumerate(texts) if text in each
    ]
    assert matches == expected


def test_a_token_is_found_by_its_id_and_in_any_case(run):
    assert names(run.memories(promotes=2)) == ["L0.1", "L1.1"]
    with pytest.raises(UserError, match="is not a token"):
        run.memories(promotes="CHURCH")
    assert run.memories(promotes="CHURCH", any_case=True).equals(run.memories(promotes="church"))


@pytest.mark.parametrize("token", [-1, 6])
def test_an_id_that_the_model_lacks_is_refused(run, token):
    with pytest.raises(UserError, match=f"There is no token {token}. The model has tokens 0 to 5."):
        run.memories(promotes=token)


def test_demotes_looks_at_the_other_end(run):
    found = run.memories(demotes=" é")
    bottom = {memory.name: memory.demotes(3)["token"].tolist() for memory in map(run.memory, names(run.memories()))}
    assert names(found) == [name for name, tokens in bottom.items() if " é" in tokens]
    assert found["demoted_rank"].tolist() == [tokens.index(" é") for tokens in bottom.values() if " é" in tokens]


def test_a_layer_and_ranges_hold_together(run):
    assert names(run.memories(layer=1)) == ["L1.0", "L1.1"]
    assert names(run.memories(between={"maximum_coefficient": (0.5, 4)})) == ["L0.0", "L0.1", "L1.0"]
    assert names(run.memories(between={"maximum_coefficient": (None, 1)}, layer=0)) == ["L0.1", "L0.2"]
    assert names(run.memories(sort="maximum_coefficient", ascending=True)) == ["L0.2", "L1.0", "L0.1", "L0.0", "L1.1"]


LIMITS = [
    ({"layer": 2}, "no layer 2. The model has layers 0 to 1"),
    ({"between": {"beauty": (0, 1)}}, "no column 'beauty'"),
    ({"between": {"top_token": (0, 1)}}, "needs a column of numbers, and top_token holds texts"),
    ({"layer": "x"}, "layer is 'x'. Write a whole number"),
    ({"text": 5}, "text is 5. Write it as text."),
    ({"pattern": ["a"]}, r"pattern is \['a'\]. Write it as text."),
    ({"sort": ["norm"]}, r"sort is \['norm'\]. Write it as text."),
    ({"promotes": 1.5}, "A token's id is 1.5. Write a whole number"),
    ({"between": 5}, "between is 5. Write a column and its range"),
    ({"between": {"norm": 5}}, r"The range of norm is 5. Write its lowest and its highest value, as in \(0.1, 5\)"),
    ({"between": {"norm": ("a", None)}}, r"The range of norm is \('a', None\). Write its"),
    ({"between": {"norm": (1, 2, 3)}}, r"The range of norm is \(1, 2, 3\). Write its"),
    ({"between": {"norm": (float("nan"), 1)}}, r"The range of norm is \(nan, 1\). Write its"),
    (
        {"between": {"norm": (5, 1)}},
        "begins at 5 and ends at 1, so no memory is in it. Write the lower number first",
    ),
    ({"sort": "norm", "minimum": "a"}, "minimum is 'a'. Write a number"),
]


def test_what_cannot_be_limited_is_refused(subtests, run):
    for options, message in LIMITS:
        with subtests.test(options=options, message=message), pytest.raises(UserError, match=message):
            run.memories(**options)


def test_a_pattern_is_found_by_a_part_of_its_label(run):
    found = run.memories(pattern="ENDS WITH")
    assert names(found) == ["L0.0", "L1.0"]
    assert found["examples_with_pattern"].tolist() == [4, 4]  # of its two patterns the one in more examples
    assert names(run.memories(pattern="begins")) == []


@pytest.mark.parametrize(
    "expression, expected",
    [("the.hurch", ["L0.0"]), ("^ nan", ["L0.1"]), ("é|nan", ["L1.1", "L0.0", "L0.1"]), ("q", [])],
)
def test_an_expression_finds_what_its_first_match_lies_in(run, expression, expected):
    assert names(run.memories(text=expression, expression=True)) == expected


@given(
    st.lists(st.text("abé\n", max_size=6), min_size=1),
    st.sampled_from(["a", "ab", "b+", "^a", "a$", "", "é*", ".", "b|"]),
)
def test_an_expression_is_searched_in_each_text_alone(texts, expression):
    starts = [0, *itertools.accumulate(len(text.encode()) for text in texts)]
    needle = compile_expression(expression)
    found = list(text_search.matches_of_each("".join(texts).encode(), starts, needle, math.inf))
    matches = [re.search(expression.replace("$", r"\Z"), text) for text in texts]
    ends = [match and len(match.string[: match.end()].encode()) for match in matches]
    assert found == [(number, starts[number] + end) for number, end in enumerate(ends) if end is not None]


@pytest.mark.parametrize("block", [1, 16_384])
def test_a_match_of_nothing_is_in_every_trigger_example(run, monkeypatch, block):
    monkeypatch.setattr(text_search, "BLOCK", block)
    found = run.memories(text="q*", expression=True)
    places = indexes.trigger_places(run.files)
    with_examples = (places.sentence >= 0).sum(1)
    assert dict(zip(found["name"], found["examples_with_text"])) == {
        name: count for name, count in zip(run.memories()["name"], with_examples) if count
    }


@pytest.mark.parametrize("expression", ["(", "[", "a{9999}", "(?P<n>", "\\", "a" * 501, "\ud800"])
def test_what_is_no_expression_is_refused(run, expression):
    with pytest.raises(UserError, match="is not a regular expression"):
        run.memories(text=expression, expression=True)


@pytest.mark.parametrize(
    "expression", ["(?R)", "(?=a)b", "(?<!a)b", r"(a)\1", "a++", "(?>a)b", "(((a{500}){500}){500}){500}"]
)
def test_what_the_engine_lacks_is_told(run, expression):
    with pytest.raises(UserError, match="RE2, without lookaround, backreferences"):
        run.memories(text=expression, expression=True)


def test_an_expression_that_takes_long_is_stopped(run, monkeypatch):
    monkeypatch.setattr(text_search, "SECONDS", -1.0)
    with pytest.raises(UserError, match="takes longer than"):
        run.memories(text="a", expression=True)


def test_a_part_of_what_was_found_is_that_part_of_the_table(run):
    found = find(run.files, promotes="church")
    whole = run.memories(promotes="church")
    assert len(found) == 4
    assert found.table(1, 3).equals(whole.iloc[1:3].reset_index(drop=True))


def test_files_that_are_kept_open_give_the_same(run, folder):
    kept = open(folder, keep_open=True)
    for name in names(run.memories()):
        one, other = run.memory(name), kept.memory(name)
        assert one.statistics.equals(other.statistics) and one.patterns.equals(other.patterns)
        assert one.triggers.equals(other.triggers) and one.promotes(3).equals(other.promotes(3))
    assert kept.memories(text="é").equals(run.memories(text="é"))


def test_projections_of_other_layer_groups_are_refused(run, folder):
    first, second = (folder / f"values/projections/{group}.h5" for group in (0, 1))
    second.write_bytes(first.read_bytes())
    second.with_name(".1.h5.sha256").unlink(missing_ok=True)
    with pytest.raises(UserError, match="does not hold every memory once"):
        run.memories(promotes="church")


def test_a_behaviour_finds_its_candidates_by_their_total_effect(folder):
    run = open(add_behaviours(folder))
    found = run.memories(behaviour="agreement")
    assert names(found) == ["L1.1", "L0.1", "L0.0"]
    assert found["behaviour_effect"].tolist() == [1.5, 0.5, -0.5]
    assert found["behaviour_q"].tolist() == [0.15, 0.05, -0.05]
    assert found["behaviour_screen"].tolist() == [-4, 0.5, 2]
    assert names(run.memories(behaviour="agreement", sort="behaviour_contrast")) == ["L0.0", "L0.1", "L1.1"]
    assert names(run.memories(behaviour="agreement", layer=0, ascending=True)) == ["L0.0", "L0.1"]
    assert names(run.memories(behaviour="agreement", minimum=0.5)) == ["L1.1", "L0.1"]
    assert names(run.memories(behaviour="agreement", promotes="church", text="é")) == ["L0.0", "L1.1"]


def test_without_effects_the_contrast_orders_a_behaviour(folder):
    found = open(add_behaviours(folder)).memories(behaviour="lists")
    assert names(found) == ["L0.1", "L1.0"] and found["behaviour_contrast"].tolist() == [3, 1]


def test_a_behaviour_that_the_run_lacks_is_refused(folder, run):
    with pytest.raises(UserError, match=r"has no behaviours\. Name some in its settings"):
        run.memories(behaviour="agreement")
    with pytest.raises(UserError, match=r"no behaviour in .* called 'agreeing'\. Choose one of: agreement, lists"):
        open(add_behaviours(folder)).memories(behaviour="agreeing")
