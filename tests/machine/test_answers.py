"""Answers are read strictly."""

import pytest

from ffkv.apps.machine.answers import Refused, read_intruder, read_label, read_marks, read_values


@pytest.mark.parametrize(
    "answer",
    [
        '{"texts": [1, 3]}',
        '{"texts":[3,1]}\n',
        '```json\n{"texts": [1, 3]}\n```',
        '<think>1? [2]</think>\n{"texts": [1, 3]}',
    ],
)
def test_the_form_that_was_asked_for_is_read(answer):
    assert read_marks(answer, 3) == [True, False, True]


@pytest.mark.parametrize(
    "answer",
    [
        "", "1, 3", "[1, 3]", "null", '{"texts": [1, 3]} I am sure.', 'Sure: {"texts": [1, 3]}', '{"texts": [1, 3]',
        '{"texts": "1, 3"}', '{"texts": [1.0]}', '{"texts": [true]}', '{"texts": ["1"]}', '{"texts": [0]}', '{"texts": [4]}',
        '{"texts": [-1]}', '{"texts": [1, 1]}', '{"texts": [1], "texts": [2]}', '{"texts": [1], "label": "x"}',
        '{"text": [1]}', '{"texts": {"1": true}}', '{"texts": [NaN]}', '{"texts": [[1]]}', "[" * 100_000,
        '```json\n{"texts": [1]}\n``` and {"texts": [2]}', '__import__("os").system("echo")', '{"texts": [1' + "0" * 5000 + "]}",
    ],
)  # fmt: skip
def test_anything_else_is_refused(answer):
    with pytest.raises(Refused):
        read_marks(answer, 3)


def test_no_text_and_all_texts_can_be_named():
    assert read_marks('{"texts": []}', 2) == [False, False]
    assert read_marks('{"texts": [2, 1]}', 2) == [True, True]


def test_intruders_count_from_one():
    assert read_intruder('{"intruder": 5}', 5) == 4
    for answer in (
        '{"intruder": 0}',
        '{"intruder": 6}',
        '{"intruder": [1]}',
        '{"intruder": true}',
        '{"intruder": null}',
    ):
        with pytest.raises(Refused):
            read_intruder(answer, 5)


def test_there_is_one_value_per_text():
    assert read_values('{"values": [0, 10, 3]}', 3) == [0, 10, 3]
    for answer in (
        '{"values": [0, 10]}',
        '{"values": [0, 10, 3, 3]}',
        '{"values": [0, 11, 3]}',
        '{"values": [0, 1.5, 3]}',
    ):
        with pytest.raises(Refused):
            read_values(answer, 3)


def test_a_label_is_one_line_without_commands_to_a_terminal():
    assert read_label('{"label": " ends\\nwith\\u001b[2J\\u202e a  year "}') == "ends with [2J a year"
    for answer in (
        '{"label": ""}',
        '{"label": "\\n"}',
        '{"label": 5}',
        '{"label": null}',
        '{"label": "%s"}' % ("x" * 301),
    ):
        with pytest.raises(Refused):
            read_label(answer)
