"""Words, as opposed to tokens."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffkv.base.settings.common import ANY, ENGLISH
from ffkv.corpus.words import stop_words, word_at, word_spans, words


@pytest.mark.parametrize(
    "text, expected",
    [
        ("It's a state-of-the-art test.", ["It's", "a", "state-of-the-art", "test", "."]),
        ("don’t use os.path, 3.14!", ["don’t", "use", "os.path", ",", "3.14", "!"]),
        ("(a) -- b", ["(", "a", ")", "-", "-", "b"]),
        ("snake_case naïve 字", ["snake_case", "naïve", "字"]),
        ("Ma<0xC3>", ["Ma<0xC3>"]),  # the part of "Mañana" that has been read
        ("a <0xE6><0x98>", ["a", "<0xE6><0x98>"]),
        ("a<0x41>", ["a", "<", "0x41", ">"]),  # a text about bytes
        ("", []),
        (" \n", []),
    ],
)
def test_words_of_raw_text(text, expected):
    assert words(text, False) == expected


def test_words_of_text_that_is_split_already_stand_between_blanks():
    text = " The <unk> well @-@ known , 3.5  m "
    assert words(text, True) == text.split()


@given(st.text(max_size=30), st.booleans())
def test_spans_are_ordered_and_hold_every_sign(text, pretokenized):
    spans = word_spans(text, pretokenized)
    assert all(start < end for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert "".join(text[start:end] for start, end in spans) == "".join(text.split())


def test_the_word_of_a_token_is_the_whole_word():
    text = "the unbelievable end."
    assert word_at(text, 6, False) == "unbelievable"  # "the un|believable"
    assert word_at(text, 16, False) == "unbelievable"
    assert word_at(text, 3, False) == "the"
    assert word_at(text, 21, False) == "."
    assert word_at(text, 21, True) == "end."


@pytest.mark.parametrize("end", [0, 4])
def test_a_token_of_white_space_has_no_word(end):
    assert word_at("the  end", end, False) == ""


def test_english_stop_words_are_those_of_scikit_learn():
    """Those of the authors' definition; spaCy's English list is another one."""
    listed = stop_words(ENGLISH)
    assert {"the", "of", "and"} <= listed and len(listed) == 318


@pytest.mark.slow
@pytest.mark.parametrize(("language", "word"), [("de", "und"), ("fr", "les"), ("ru", "что"), ("tr", "ve")])
def test_other_languages_have_the_lists_of_spacy(language, word):
    listed = stop_words(language)
    assert word in listed and "the" not in listed
    assert all(each == each.lower() for each in listed)


def test_a_language_without_rules_has_no_list():
    assert stop_words(ANY) == frozenset()
