"""Documents to sentences."""

import time

import numpy as np
import pytest
import spacy
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import tries

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus
from ffkv.corpus import sentences
from ffkv.corpus.sentences import split_sentences
from ffkv.corpus.sources import documents_of

SPLITTERS = ["sentence", "line", "document"]


def test_sentences_end_at_full_stops_not_within_abbreviations_and_numbers():
    text = "Dr. Smith paid 3.50 dollars, e.g. for tea. Was it much? No! It was not."
    assert split_sentences(text, "sentence", False) == [
        "Dr. Smith paid 3.50 dollars, e.g. for tea.",
        "Was it much?",
        "No!",
        "It was not.",
    ]


def test_abbreviations_are_those_of_the_language():
    text = "Es kostet ca. 3 Euro. Er fragt bzw. klagt."
    german = ["Es kostet ca. 3 Euro.", "Er fragt bzw. klagt."]
    assert split_sentences(text, "sentence", False, language="de") == german
    assert split_sentences(text, "sentence", False, language="en") != german


def test_a_language_that_needs_a_package_is_refused_by_name(monkeypatch):
    def blank(_code):
        raise ImportError("Japanese support requires SudachiPy")

    monkeypatch.setattr("spacy.blank", blank)
    sentences._language.cache_clear()
    with pytest.raises(UserError, match=r"'ja'.*SudachiPy.*'xx'"):
        split_sentences("A. B.", "sentence", False, language="ja")


def test_the_line_breaks_of_wrapped_text_are_blanks():
    text = "A sentence over\n   two lines.\tAnd\n\nanother one."
    assert split_sentences(text, "sentence", False) == ["A sentence over two lines.", "And another one."]


@pytest.mark.parametrize(
    "line, expected",
    [
        (" = Valkyria Chronicles III = \n", ["= Valkyria Chronicles III ="]),
        (" The <unk> of 1 @,@ 200 men was well @-@ known . It fell . \n", ["The <unk> of 1 @,@ 200 men was well @-@ known .", "It fell ."]),
        (" A   run  of blanks . ", ["A   run  of blanks ."]),
        (" He said \" no . \" Then he left . ", ['He said " no . "', "Then he left ."]),
        (" No. 3 of 3.5 ", ["No. 3 of 3.5"]),
    ],
)  # fmt: skip
def test_text_that_is_split_already_is_kept_to_the_letter(line, expected):
    assert split_sentences(line, "sentence", True) == expected


def test_a_line_is_a_sentence():
    assert split_sentences("one. two.\n\n  three \n", "line", False) == ["one. two.", "", "three"]


def test_a_line_ends_where_one_of_a_txt_file_does(subtests, tmp_path):
    for sign in ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]:
        for white_space in ["collapse", "keep"]:
            with subtests.test(sign=sign, white_space=white_space):
                text = f"a{sign}b\nc\r\nd\re\n"
                (tmp_path / "a.txt").write_bytes(text.encode())
                read = documents_of(str(tmp_path / "a.txt"), "text", Corpus(white_space=white_space))
                lines = [document.text for document in read]
                kept = split_sentences(text, "line", False, white_space)
                assert len(kept) == len(lines) == 4
                if white_space == "keep":
                    assert [line.rstrip("\r\n") for line in kept] == lines and "".join(kept) == text


def test_a_document_is_a_sentence():
    assert split_sentences(" one.\ntwo.  three ", "document", False) == ["one. two. three"]
    assert split_sentences(" one .\ntwo .  three ", "document", True) == ["one .\ntwo .  three"]


def test_blank_text_has_no_words(subtests):
    for splitter in SPLITTERS:
        for pretokenized in [False, True]:
            for text in ["", " ", "\n \t\n", "\u00a0"]:
                with subtests.test(splitter=splitter, pretokenized=pretokenized, text=text):
                    assert "".join(split_sentences(text, splitter, pretokenized)) == ""


@given(
    st.text(st.sampled_from("ab.!? \n\t\0<>@-😀\u2028\u00a0é"), max_size=40), st.sampled_from(SPLITTERS), st.booleans()
)
@hypothesis_settings(max_examples=tries(150))
def test_no_sign_is_lost_or_added(text, splitter, pretokenized):
    parts = split_sentences(text, splitter, pretokenized)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(part == part.strip() for part in parts)


def test_a_long_line_without_blanks_takes_no_time(subtests):
    """spaCy alone needs 40 seconds for 20,000 emoji or brackets, four times as long for twice as many."""
    for sign in ["x", "😀", "(", "\0", ".", "字", "a'b-"]:
        for pretokenized in [False, True]:
            with subtests.test(sign=sign, pretokenized=pretokenized):
                text = sign * (200_000 // len(sign))
                started = time.process_time()
                found = split_sentences(f"Before. {text} after.", "sentence", pretokenized)
                assert " ".join(found) == f"Before. {text} after."
                assert time.process_time() - started < 10


def test_a_long_run_still_ends_a_sentence():
    run = "(😀" * 200
    assert split_sentences(f"{run}. Then this.", "sentence", False) == [f"{run}.", "Then this."]


CODE = "def f(x):\n    # One. Two.  Three.\n\tif x.y:\r\n        return 1.5\n\n\n# End!\n    pass"


def test_white_space_that_is_kept_stays_where_it_is():
    keep = {"pretokenized": False, "white_space": "keep"}
    assert split_sentences(CODE, "document", **keep) == [CODE]
    assert split_sentences(CODE, "line", **keep) == CODE.splitlines(keepends=True)
    assert split_sentences(CODE, "sentence", **keep) == [
        "def f(x):\n    # One.",
        " Two.",
        "  Three.\n",
        "\tif x.y:\r\n        return 1.5\n\n\n# End!\n",
        "    pass",
    ]


@given(
    st.text(st.sampled_from("ab.!? \n\r\t\0<>@-😀\u2028\u00a0\x1cé。"), max_size=60),
    st.sampled_from(SPLITTERS),
    st.booleans(),
    st.sampled_from([3, 200_000]),
)
@hypothesis_settings(max_examples=tries(300))
def test_kept_sentences_are_the_text_and_end_where_the_others_do(text, splitter, pretokenized, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "PIECE_CHARACTERS", piece)
        kept = split_sentences(text, splitter, pretokenized, "keep")
        collapsed = split_sentences(text, splitter, pretokenized, "collapse")
    assert "".join(kept) == text
    plain = [part.strip() if pretokenized else " ".join(part.split()) for part in kept]
    assert [part for part in plain if part] == [part for part in collapsed if part]


def test_a_long_text_is_kept_in_seconds():
    text = "    The cat sat.\n\n" * 20_000 + " " * 200_000 + "x" * 200_000
    started = time.process_time()
    assert "".join(split_sentences(text, "sentence", False, "keep")) == text
    assert time.process_time() - started < 20


SIGNS = ["ca.", "3.", "4", "U.S.", "u.a.", "http://a.b?", "Er", "?!", "...", "。", "۔", "।", ";)", "«", '"', "-"]


@pytest.mark.parametrize("language", ["en", "de", "ru", "ar", "hi", "hu", "xx"])
def test_sentences_are_those_of_spacy_that_finds_out_all_of_each_word(language):
    whole, generator = spacy.blank(language), np.random.default_rng(0)
    whole.add_pipe("sentencizer")
    for _ in range(tries(50)):
        text = " ".join(generator.choice(SIGNS, 20))
        expected = [sentence.text for sentence in whole(text).sents]
        assert split_sentences(text, "sentence", False, language=language) == expected
