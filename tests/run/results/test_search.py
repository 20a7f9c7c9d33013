"""Search over all memories: by promoted token, by text, by numbers."""

import inspect
import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffkv.base.errors import UserError
from ffkv.base.settings.section import compile_expression
from ffkv.run.results import indexes, text_search
from ffkv.run.results.run import Run, open
from ffkv.run.results.search import Search, find
from ffkv_explorer.page_search import FIELDS
from tests.run.results.conftest import add_behaviours, add_roles


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


def test_text_finds_what_the_trigger_prefixes_contain(run):
    memories = run.memories(text="thechurch")
    assert names(memories) == ["L0.0"]
    assert memories["examples_with_text"].tolist() == [1]
    assert memories["coefficient_with_text"].tolist() == [4]


# What a search asks for, and the memories that it finds, in order.
FOUND = [
    # Sentence 0 goes on with " nan", the prefix of L0.0 does not; the prefix of L0.1 is " nan".
    ({"text": "nan"}, ["L0.1"]),
    ({"text": "é"}, ["L1.1", "L0.0"]),  # the second example of L1.1
    ({"text": "no such text"}, []),
    ({"text": " nan é"}, []),  # it does not reach into the next sentence
    ({"text": "\0"}, []),
    ({"text": "the.hurch", "expression": True}, ["L0.0"]),
    ({"text": "^ nan", "expression": True}, ["L0.1"]),
    ({"text": "é|nan", "expression": True}, ["L1.1", "L0.0", "L0.1"]),
    ({"text": "q", "expression": True}, []),
    ({"promotes": "é", "text": "the"}, ["L0.0"]),
    ({"promotes": 2}, ["L0.1", "L1.1"]),
    ({"sort": "maximum_coefficient"}, ["L1.1", "L0.0", "L0.1", "L1.0", "L0.2"]),
    ({"sort": "maximum_coefficient", "minimum": 1}, ["L1.1", "L0.0", "L0.1"]),
    ({"sort": "maximum_coefficient", "ascending": True}, ["L0.2", "L1.0", "L0.1", "L0.0", "L1.1"]),
    ({"promotes": "church", "minimum": 0.12}, ["L0.0", "L0.1"]),
    ({"text": "the", "sort": "norm"}, ["L0.0", "L1.0", "L1.1"]),  # equals keep their order
    ({"layer": 1}, ["L1.0", "L1.1"]),
    ({"between": {"maximum_coefficient": (0.5, 4)}}, ["L0.0", "L0.1", "L1.0"]),
    ({"between": {"maximum_coefficient": (None, 1)}, "layer": 0}, ["L0.1", "L0.2"]),
    ({"sort": "maximum_coefficient", "minimum": np.float32(1), "between": {"norm": np.array([0.5, 2])}},
     ["L1.1", "L0.0", "L0.1"]),
    ({"pattern": "begins"}, []),
]  # fmt: skip


def test_searches_find_what_they_ask_for_in_order(subtests, run):
    for options, expected in FOUND:
        with subtests.test(options=options):
            assert names(run.memories(**options)) == expected


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


def test_a_token_is_found_in_any_case(run):
    with pytest.raises(UserError, match="is not a token"):
        run.memories(promotes="CHURCH")
    assert run.memories(promotes="CHURCH", any_case=True).equals(run.memories(promotes="church"))


def test_demotes_looks_at_the_other_end(run):
    found = run.memories(demotes=" é")
    bottom = {memory.name: memory.demotes(3)["token"].tolist() for memory in map(run.memory, names(run.memories()))}
    assert names(found) == [name for name, tokens in bottom.items() if " é" in tokens]
    assert found["demoted_rank"].tolist() == [tokens.index(" é") for tokens in bottom.values() if " é" in tokens]


def test_memories_of_a_role_are_found(folder):
    run = open(add_roles(folder))
    assert names(run.memories(role="enrichment")) == ["L0.0", "L1.0"]
    assert names(run.memories(role="")) == ["L0.2"] and names(run.memories(role="proportional change")) == []
    assert names(run.memories(output_role="prediction")) == ["L0.0", "L1.1"]
    assert names(run.memories(role="depletion", output_role="prediction", layer=1)) == ["L1.1"]
    with pytest.raises(
        UserError, match=r"no role 'enrichement'\. Did you mean 'enrichment'\? Choose one of: enrichment, "
    ):
        run.memories(role="enrichement")
    with pytest.raises(UserError, match=r"no output role 'noise'\. Choose one of: prediction, suppression, other\.$"):
        run.memories(output_role="noise")


def test_a_run_without_roles_says_so(run):
    with pytest.raises(
        UserError, match=r"^The run lacks the table roles/by_memory, so no role is known\. Start snakemake"
    ):
        run.memories(output_role="prediction")


REFUSED = [
    ({"sort": "nrom"}, "no column 'nrom'. Did you mean 'norm'[?] Choose one of: layer, memory"),
    ({"promotes": "chorch"}, "Similar tokens: ' church', 'church'"),
    ({"promotes": "chur"}, "'chur' is not a token of synthetic.*Similar tokens: ' church', 'church'"),
    ({"promotes": "churches"}, "'churches' is not a token of synthetic.*Similar tokens: ' church', 'church'"),
    ({"promotes": -1}, "There is no token -1. The model has tokens 0 to 5."),
    ({"promotes": 6}, "There is no token 6. The model has tokens 0 to 5."),
    ({"text": ""}, "empty"),
    ({"sort": "beauty"}, "no column 'beauty'. Choose one of: layer, memory"),
    ({"concept": "French"}, "that a memory separates, called .French.. There is none at all.$"),
    ({"minimum": 1}, "minimum needs a column to compare with"),
    ({"sort": "top_token", "minimum": 1}, "needs a column of numbers"),
    ({"layer": 2}, "no layer 2. The model has layers 0 to 1"),
    ({"between": {"beauty": (0, 1)}}, "no column 'beauty'"),
    ({"between": {"top_token": (0, 1)}}, "needs a column of numbers, and top_token holds texts"),
    ({"layer": "x"}, "layer is 'x'. Write a whole number"),
    ({"text": 5}, "text is 5: must be text"),
    ({"pattern": ["a"]}, r"pattern is \['a'\]: must be text"),
    ({"sort": ["norm"]}, r"sort is \['norm'\]: must be text"),
    ({"any_case": "yes"}, "any_case is 'yes': must be true or false"),
    ({"promote": "church"}, "Unknown setting 'promote'. Did you mean 'promotes'?"),
    ({"promotes": 1.5}, "A token's id is 1.5. Write a whole number"),
    ({"between": 5}, "between is 5. Write a column and its range"),
    ({"between": {"norm": 5}}, r"The range of norm is 5. Write its lowest and its highest value, as in \(0.1, 5\)"),
    ({"between": {"norm": ("a", None)}}, r"The range of norm is \('a', None\). Write its"),
    ({"between": {"norm": (1, 2, 3)}}, r"The range of norm is \(1, 2, 3\). Write its"),
    ({"between": {"norm": (float("nan"), 1)}}, r"The range of norm is \(nan, 1\). Write its"),
    ({"between": {"norm": (5, 1)}}, "begins at 5 and ends at 1, so no memory is in it. Write the lower number first"),
    ({"sort": "norm", "minimum": "a"}, "minimum is 'a'. Write a number"),
]


def test_what_cannot_be_searched_is_refused(subtests, run):
    for options, message in REFUSED:
        with subtests.test(options=options), pytest.raises(UserError, match=message):
            run.memories(**options)


def test_numbers_of_numpy_are_taken(run):
    assert run.memories(promotes=np.int64(2), layer=np.int64(1)).equals(run.memories(promotes=2, layer=1))


def test_one_description_gives_signature_and_words_and_the_fields_of_the_form():
    """A filter is written once: in `Search`."""
    told = inspect.signature(Run.memories).parameters
    assert {*told} == {"self", *Search.model_fields}
    for name, field in Search.model_fields.items():
        assert told[name].default == field.default
        assert f"    {name}: {' '.join(field.description.split())}\n" in Run.memories.__doc__
    assert {*FIELDS} < {*Search.model_fields}


def test_a_pattern_is_found_by_a_part_of_its_label(run):
    found = run.memories(pattern="ENDS WITH")
    assert names(found) == ["L0.0", "L1.0"]
    assert found["examples_with_pattern"].tolist() == [4, 4]  # of its two patterns the one in more examples


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


NO_EXPRESSIONS = ["(", "[", "a{9999}", "(?P<n>", "\\", "a" * 501, "\ud800"]
LACKING = ["(?R)", "(?=a)b", "(?<!a)b", r"(a)\1", "a++", "(?>a)b", "(((a{500}){500}){500}){500}"]


def test_what_is_no_expression_or_the_engine_lacks_is_told(subtests, run):
    for expression in (*NO_EXPRESSIONS, *LACKING):
        message = "RE2, without lookaround, backreferences" if expression in LACKING else "is not a regular expression"
        with subtests.test(expression=expression), pytest.raises(UserError, match=message):
            run.memories(text=expression, expression=True)


def test_an_expression_that_takes_long_is_stopped(run, monkeypatch):
    monkeypatch.setattr(text_search, "SECONDS", -1.0)
    with pytest.raises(UserError, match="takes longer than"):
        run.memories(text="a", expression=True)


def test_a_part_of_what_was_found_is_that_part_of_the_table(run):
    found = find(run.files, Search(promotes="church"))
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
    assert names(found) == ["L0.0", "L1.1", "L0.1"]  # by size, whatever the sign
    assert found["behaviour_effect"].tolist() == [-2, 1.5, 0.5]
    assert found["behaviour_q"].tolist() == [-0.2, 0.15, 0.05]
    assert found["behaviour_screen"].tolist() == [2, -4, 0.5]
    for column in ("behaviour_contrast", "behaviour_screen"):
        assert names(run.memories(behaviour="agreement", sort=column)) == ["L1.1", "L0.0", "L0.1"]
    assert names(run.memories(behaviour="agreement", layer=0, ascending=True)) == ["L0.1", "L0.0"]
    assert names(run.memories(behaviour="agreement", minimum=0.5)) == ["L1.1", "L0.1"]
    assert names(run.memories(behaviour="agreement", promotes="church", text="é")) == ["L0.0", "L1.1"]


def test_without_effects_the_contrast_orders_a_behaviour(folder):
    found = open(add_behaviours(folder)).memories(behaviour="lists")
    assert names(found) == ["L0.1", "L1.0"] and found["behaviour_contrast"].tolist() == [3, 1]


def test_a_behaviour_that_the_run_lacks_is_refused(folder, run):
    with pytest.raises(UserError, match=r"has no behaviours\. Name some in its settings"):
        run.memories(behaviour="agreement")
    with pytest.raises(
        UserError,
        match=r"no behaviour in .* called 'agreeing'\. Did you mean 'agreement'[?] Choose one of: agreement, lists",
    ):
        open(add_behaviours(folder)).memories(behaviour="agreeing")
