"""Files of prompts: what is read, refused by line, or counted."""

import json

import numpy as np
import pytest
from support import WORDS, word_tokenizer

import ffkv
from ffkv.base.settings import Corpus
from ffkv.branches.behaviours import words
from ffkv.branches.behaviours.encode import draw, encode_prompts
from ffkv.branches.behaviours.prompt_file import read_prompts
from ffkv.corpus.chat import chat_renderer

PAIR = {"clean_prefix": "a b", "patch_prefix": "a c", "clean_answer": " d", "patch_answer": " e"}
PROMPT = {"prompt": "a b", "answer": " d", "wrong": " e"}


def write(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_three_kinds_of_files(tmp_path):
    kind, (pair, other) = read_prompts(write(tmp_path / "1", {**PAIR, "case": "x"}, "\n", {**PAIR, "label": "y"}))
    assert kind == "pairs" and (pair.clean, pair.patch, pair.answer, pair.wrong) == ("a b", "a c", " d", " e")
    assert (pair.label, other.label, other.line) == ("x", "y", "line 3")
    kind, (prompt,) = read_prompts(write(tmp_path / "2", [PROMPT]))  # all in one list
    assert kind == "prompts" and prompt.patch is None and prompt.answer == " d"
    kind, lists = read_prompts(write(tmp_path / "3", {"positive": "a"}, {"positive": "b", "negative": "c"}))
    assert kind == "lists" and [(each.clean, each.positive) for each in lists] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["{]\n"], "line 1"),
        (["3\n"], "line 1: contains int"),
        ([PAIR, {"text": "a"}], "line 2: has the fields text"),
        ([{"clean_prefix": "a"}], "line 1: lacks patch_prefix, clean_answer, patch_answer"),
        ([PAIR, PROMPT], "line 2: has the fields of prompts, and the first line those of pairs"),
        ([{**PAIR, "clean_answer": 3}], "line 1: field 'clean_answer' contains int. Write text."),
        ([{**PAIR, "clean_prefix": ""}], "line 1: field 'clean_prefix' contains nothing. Write text, or a list"),
        ([{**PAIR, "clean_answer": [{"role": "user"}]}], "field 'clean_answer' contains list"),
        ([{**PAIR, "clean_prefix": [{"content": "a"}]}], "field 'clean_prefix' contains list"),
        ([""], "has no prompt"),
    ],
)
def test_what_is_wrong_is_told_by_line(tmp_path, rows, said):
    with pytest.raises(ffkv.UserError) as error:
        read_prompts(write(tmp_path / "p.jsonl", *rows))
    assert said in str(error.value) and "p.jsonl" in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ffkv.UserError, match="There is no file of prompts"):
        read_prompts(tmp_path / "none.jsonl")


def encoded(tmp_path, *rows, vocabulary=17, context=16):
    _, prompts = read_prompts(write(tmp_path / "p.jsonl", *rows))
    return encode_prompts(prompts, word_tokenizer(WORDS), [0], vocabulary, context, str)


def test_answers_are_the_token_that_continues_the_prompt(tmp_path):
    rows = [
        PAIR,
        {**PAIR, "clean_answer": " d d"},
        {**PAIR, "clean_answer": "x"},  # "bx" is another word
        {**PAIR, "patch_answer": " d"},
        PAIR,
        {**PAIR, "clean_prefix": " ".join("ab" * 8)},
    ]
    found = encoded(tmp_path, *rows)
    reasons = ["", words.SEVERAL, words.MERGED, words.SAME, words.DOUBLED, words.LONG]
    assert [each.unused for each in found] == reasons
    first = found[0]
    assert (first.clean.tolist(), first.patch.tolist(), first.answer, first.wrong) == ([0, 1, 2], [0, 1, 3], 4, 5)


def test_a_prompt_without_a_token(tmp_path):
    _, prompts = read_prompts(write(tmp_path / "p.jsonl", {**PAIR, "clean_prefix": " "}, {**PAIR, "patch_prefix": " "}))
    found = encode_prompts(prompts, word_tokenizer(WORDS, bos=False), [], 17, 16, str)
    assert [each.unused for each in found] == [words.EMPTY, words.EMPTY]


def test_chats_are_written_up_to_the_answer(tmp_path):
    tokenizer = word_tokenizer(WORDS)
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.content }} {% endfor %}{% if add_generation_prompt %}p{% endif %}"
    )
    render = chat_renderer(tokenizer, Corpus(chat_template=True), answer=True)
    assert render([{"role": "user", "content": "a b"}]) == "a b p"
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(ffkv.UserError, match="refuses"):
        chat_renderer(tokenizer, Corpus(chat_template=True), answer=True)


def test_a_token_that_the_model_does_not_know(tmp_path):
    assert encoded(tmp_path, PAIR, vocabulary=5)[0].unused == words.UNKNOWN


def test_halves_are_equal_within_labels():
    labels = ["x"] * 6 + ["y"] * 5 + ["z"]
    part = draw([""] * 11 + [words.SEVERAL], np.ones(12, bool), labels, 100, seed=3)
    assert part[11] == ""
    for label in ("x", "y"):
        of_label = [half for half, own in zip(part, labels) if own == label]
        assert abs(of_label.count(words.CHOOSE) - of_label.count(words.ESTIMATE)) <= 1
    assert [*draw([""] * 12, np.ones(12, bool), labels, 100, 3)] == [
        *draw([""] * 12, np.ones(12, bool), labels, 100, 3)
    ]
    assert (draw([""] * 12, np.ones(12, bool), labels, 4, 3) != "").sum() == 4
    lists = draw([""] * 12, np.arange(12) < 9, [""] * 12, 6, 3)
    assert (lists[:9] != "").sum() == 3 == (lists[9:] != "").sum()
