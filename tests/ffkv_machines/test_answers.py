"""Answers are read strictly."""

import json
from functools import partial

import pytest

from ffkv_annotation.records import MarkedPattern
from ffkv_machines.questions import (
    Refused,
    read_intruder,
    read_label,
    read_marks,
    read_patterns,
    read_related,
    read_values,
)

SAID = {"label": "x", "kind": "semantic"}
PATTERN = {**SAID, "texts": [2, 1]}


def patterns(*found) -> str:
    return json.dumps({"patterns": found})


@pytest.mark.parametrize(
    ("read", "answer", "said"),
    [
        (partial(read_marks, texts=3), '{"texts": [1, 3]}', [True, False, True]),
        (partial(read_marks, texts=3), '{"texts":[3,1]}\n', [True, False, True]),
        (partial(read_marks, texts=3), '```json\n{"texts": [1, 3]}\n```', [True, False, True]),
        (partial(read_marks, texts=3), '<think>1? [2]</think>\n{"texts": [1, 3]}', [True, False, True]),
        (partial(read_marks, texts=2), '{"texts": []}', [False, False]),
        (partial(read_intruder, texts=5), '{"intruder": 5}', 4),
        (partial(read_values, texts=3), '{"values": [0, 10, 3]}', [0, 10, 3]),
        # one line without commands to a terminal
        (read_label, '{"label": " ends\\nwith\\u001b[2J\\u202e a  year "}', "ends with [2J a year"),
        (read_related, '{"related": "false"}', "false"),
        (partial(read_patterns, texts=2), patterns(), []),
        (partial(read_patterns, texts=2), patterns(PATTERN), [MarkedPattern(**SAID, prefixes=(0, 1))]),
    ],
)
def test_the_form_that_was_asked_for_is_read(read, answer, said):
    assert read(answer) == said


@pytest.mark.parametrize(
    ("read", "answers"),
    [
        (partial(read_marks, texts=3), [
            "", "1, 3", "[1, 3]", "null", '{"texts": [1, 3]} I am sure.', 'Sure: {"texts": [1, 3]}', '{"texts": [1, 3]',
            '{"texts": "1, 3"}', '{"texts": [1.0]}', '{"texts": [true]}', '{"texts": ["1"]}', '{"texts": [0]}',
            '{"texts": [4]}', '{"texts": [-1]}', '{"texts": [1, 1]}', '{"texts": [1], "texts": [2]}',
            '{"texts": [1], "label": "x"}', '{"text": [1]}', '{"texts": {"1": true}}', '{"texts": [NaN]}',
            '{"texts": [[1]]}', "[" * 100_000, '```json\n{"texts": [1]}\n``` and {"texts": [2]}',
            '__import__("os").system("echo")', '{"texts": [1' + "0" * 5000 + "]}",
        ]),
        (partial(read_intruder, texts=5), [f'{{"intruder": {wrong}}}' for wrong in ("0", "6", "[1]", "true", "null")]),
        (partial(read_values, texts=3), [
            f'{{"values": {wrong}}}' for wrong in ("[0, 10]", "[0, 10, 3, 3]", "[0, 11, 3]", "[0, 1.5, 3]")
        ]),
        (read_label, [f'{{"label": {wrong}}}' for wrong in ('""', '"\\n"', "5", "null", f'"{"x" * 301}"')]),
        (read_related, ['{"related": true}', '{"related": "yes"}', "true", '{"related": ["true"]}']),
        (partial(read_patterns, texts=2), [
            *(patterns({**PATTERN, **wrong}) for wrong in ({"kind": "both"}, {"texts": [3]}, {"label": ""}, {"more": 1})),
            patterns({"label": "x"}), patterns(5), patterns(*[PATTERN] * 51),
        ]),
    ],
)  # fmt: skip
def test_anything_else_is_refused(read, answers):
    for answer in answers:
        with pytest.raises(Refused):
            read(answer)
