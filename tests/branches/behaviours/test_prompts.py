"""Files of prompts: what is read, refused by line, or counted."""

import json
import shlex

import click
import numpy as np
import pytest
from click.testing import CliRunner
from support import WORDS, word_tokenizer

import ffkv
from ffkv.base.options import command_line, setting
from ffkv.base.settings import Corpus
from ffkv.branches.behaviours import words
from ffkv.branches.behaviours.encode import draw, encode_prompts
from ffkv.branches.behaviours.prompt_file import read_prompts
from ffkv.branches.settings import Behaviour
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
        ([{**PAIR, "clean_prefix": [{"content": "a"}]}], "line 1: field 'clean_prefix', message 0: it has no role"),
        ([""], "has no prompt"),
        ([{"positive": "a"}, {"positive": "b"}], "has one of two lists alone. Write negative prompts, too."),
        ([{"negative": "a"}], "has one of two lists alone. Write positive prompts, too."),
    ],
)
def test_what_is_wrong_is_told_by_line(tmp_path, rows, said):
    with pytest.raises(ffkv.UserError) as error:
        read_prompts(write(tmp_path / "p.jsonl", *rows))
    assert said in str(error.value) and "p.jsonl" in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ffkv.UserError, match="There is no file of prompts"):
        read_prompts(tmp_path / "none.jsonl")


THEIRS = {"clean_prefix": "clean", "patch_prefix": "corrupted", "clean_answer": "correct", "patch_answer": "incorrect"}


def test_fields_of_another_tool(tmp_path):
    """`prompt` is a field of ours, too; here it is what the file calls something else, or nothing that is read."""
    row = {theirs: PAIR[own] for own, theirs in THEIRS.items()} | {"noun": 3, "prompt": "x"}
    kind, (pair,) = read_prompts(write(tmp_path / "1", row), {**THEIRS, "group": "noun"})
    assert kind == "pairs" and pair == read_prompts(write(tmp_path / "2", {**PAIR, "group": 3}))[1][0]
    kind, (prompt,) = read_prompts(write(tmp_path / "3", {**PROMPT, "clean": "a"}), {"prompt": "clean"})
    assert kind == "prompts" and prompt.clean == "a"  # not that of the file's own `prompt`
    lists = write(tmp_path / "4", {"prompt": "a"}, {"negative": "b"})
    assert [each.positive for each in read_prompts(lists, {"positive": "prompt"})[1]] == [True, False]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"patch_prefix": "corrupts"},
            "line 1: lacks the field 'corrupts', which the setting `fields` names for patch_prefix. Did you mean 'corrupted'? "
            "There are: clean, corrupted.",
        ),
        ({"label": "case"}, "names for label. There are: clean, corrupted."),
        ({"positive": "good"}, "line 1: has the fields clean, corrupted."),
    ],
)
def test_fields_that_the_file_lacks_are_refused_with_those_that_it_has(tmp_path, fields, said):
    with pytest.raises(ffkv.UserError) as error:
        read_prompts(write(tmp_path / "p.jsonl", {"clean": "a", "corrupted": "b"}), fields)
    assert said in str(error.value)


def test_fields_that_ffkv_does_not_read_are_refused():
    def refused(fields: dict) -> str:
        (problem,) = Behaviour(prompts="p", fields=fields).contradictions()
        return problem

    assert refused({"clean_prefixes": "clean"}) == (
        "fields has no 'clean_prefixes'. Did you mean 'clean_prefix'? ffkv reads: clean_prefix, patch_prefix, clean_answer, "
        "patch_answer, prompt, answer, wrong, positive, negative, label, case, group"
    )
    for fields in ({"prompt": "a", "answer": "a"}, {"prompt": ""}, {"prompt": "a\0"}):
        assert "must give each field its own name" in refused(fields)
    assert Behaviour(prompts="p", fields=THEIRS).contradictions() == []


def test_the_command_takes_fields():
    """As the workflow passes them."""
    asked = {}
    words = shlex.split(
        command_line({"behaviours": {"prompts": "p", "fields": {"prompt": "a = b", "answer": "c"}}}, "behaviours")
    )
    assert words == ["--prompts", "p", "--fields", "prompt=a = b", "--fields", "answer=c"]

    @click.command()
    @setting(Behaviour, "fields")
    def command(fields: dict) -> None:
        asked.update(fields)

    CliRunner().invoke(command, words[2:], catch_exceptions=False)
    assert asked == {"prompt": "a = b", "answer": "c"}
    for wrong in ("prompt", "{prompt: a}"):
        assert f"'{wrong}' is not NAME=VALUE." in CliRunner().invoke(command, ["--fields", wrong]).output


def encoded(tmp_path, *rows, vocabulary=17, context=16):
    _, prompts = read_prompts(write(tmp_path / "p.jsonl", *rows))
    return encode_prompts(prompts, word_tokenizer(WORDS), [0], vocabulary, context)


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
    reasons = ["", "", words.MERGED, words.SAME, words.DOUBLED, words.LONG]
    assert [each.unused for each in found] == reasons
    first = found[0]
    assert (first.clean.tolist(), first.patch.tolist(), first.answer, first.wrong) == ([0, 1, 2], [0, 1, 3], 4, 5)


def test_a_prompt_without_a_token(tmp_path):
    _, prompts = read_prompts(write(tmp_path / "p.jsonl", {**PAIR, "clean_prefix": " "}, {**PAIR, "patch_prefix": " "}))
    found = encode_prompts(prompts, word_tokenizer(WORDS, bos=False), [], 17, 16)
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


ALONE = [*map(str, range(12))]  # each prompt is a group


def test_halves_are_equal_within_labels():
    labels = ["x"] * 6 + ["y"] * 5 + ["z"]
    part, order = draw([""] * 11 + [words.MERGED], np.ones(12, bool), labels, ALONE, 100, seed=3)
    assert part[11] == ""
    for label in ("x", "y"):
        of_label = [half for half, own in zip(part, labels) if own == label]
        assert abs(of_label.count(words.CHOOSE) - of_label.count(words.ESTIMATE)) <= 1
    assert order[11] == -1 and sorted(order[part == words.CHOOSE]) == [*range((part == words.CHOOSE).sum())]
    again = draw([""] * 11 + [words.MERGED], np.ones(12, bool), labels, ALONE, 100, seed=3)
    assert part.tolist() == again[0].tolist() and order.tolist() == again[1].tolist()
    assert (draw([""] * 12, np.ones(12, bool), labels, ALONE, 4, 3)[0] != "").sum() == 4
    lists, _ = draw([""] * 12, np.arange(12) < 9, [""] * 12, ALONE, 6, 3)
    assert (lists[:9] != "").sum() == 3 == (lists[9:] != "").sum()
