"""Reads answers strictly: one JSON object of the form that was asked for. Any other answer raises `Refused`.

Texts count from 1 in answers, and from 0 in what is read from them.
"""

import re
from typing import Any

from ffkv.apps.annotation.records import MOST_PATTERNS, MarkedPattern, one_line
from ffkv.base.files.bounded import parse_json

LONGEST_LABEL = 300  # characters
SCALE = 10  # highest integer of a simulated coefficient
THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)


class Refused(ValueError):
    """An answer that is not of the form that was asked for. The message says what is wrong with it."""


def read_object(answer: str, *names: str) -> list[Any]:
    """Returns the values of an answer that is one JSON object with exactly these names, in the order of `names`.

    A block of thoughts in front, `<think>...</think>`, and a fence around the object, ```` ```json ````, are allowed.
    Nothing else may stand beside the object.
    """
    rest = THOUGHT.sub("", answer, count=1)
    fence = FENCE.fullmatch(rest)
    try:
        found = parse_json(fence[1] if fence else rest)
    except ValueError as error:
        raise Refused(f"not JSON: {error}") from error
    if not isinstance(found, dict) or set(found) != set(names):
        raise Refused(f"not one object with {', '.join(names)} and nothing else")
    return [found[name] for name in names]


def read_label(answer: str) -> str:
    """Reads the explanation: one line of at most `LONGEST_LABEL` characters."""
    return _line(*read_object(answer, "label"))


def _line(label: Any) -> str:
    if not isinstance(label, str):
        raise Refused("the label is not a text")
    line = one_line(label)
    if not 0 < len(line) <= LONGEST_LABEL:
        raise Refused(f"the label has {len(line)} characters, not 1 to {LONGEST_LABEL}")
    return line


def _places(numbers: Any, texts: int) -> list[int]:
    if not isinstance(numbers, list) or not all(type(number) is int and 1 <= number <= texts for number in numbers):
        raise Refused(f"not a list of numbers from 1 to {texts}")
    if len(set(numbers)) < len(numbers):
        raise Refused("a number occurs twice")
    return sorted(number - 1 for number in numbers)


def read_marks(answer: str, texts: int) -> list[bool]:
    """Reads a bool per text: whether the answer names it. No text may be named twice."""
    (numbers,) = read_object(answer, "texts")
    named = _places(numbers, texts)
    return [place in named for place in range(texts)]


def read_patterns(answer: str, texts: int) -> list[MarkedPattern]:
    """Reads the patterns that an annotator sees in the texts of a key."""
    (patterns,) = read_object(answer, "patterns")
    if not isinstance(patterns, list) or len(patterns) > MOST_PATTERNS:
        raise Refused(f"not a list of at most {MOST_PATTERNS} patterns")
    found = []
    for pattern in patterns:
        if not isinstance(pattern, dict) or set(pattern) != {"label", "kind", "texts"}:
            raise Refused("a pattern has not label, kind and texts")
        if pattern["kind"] not in ("shallow", "semantic"):
            raise Refused("a kind is neither shallow nor semantic")
        places = tuple(_places(pattern["texts"], texts))
        found.append(MarkedPattern(label=_line(pattern["label"]), kind=pattern["kind"], prefixes=places))
    return found


def read_related(answer: str) -> str:
    """Reads whether two tokens are related: "true", "false" or "unsure"."""
    (related,) = read_object(answer, "related")
    if related not in ("true", "false", "unsure"):
        raise Refused("related is not true, false or unsure")
    return related


def read_intruder(answer: str, texts: int) -> int:
    """Reads the place of the one text that does not belong."""
    (number,) = read_object(answer, "intruder")
    return _places([number], texts)[0]


def read_values(answer: str, texts: int) -> list[int]:
    """Reads one integer from 0 to `SCALE` per text, in their order [text]."""
    (values,) = read_object(answer, "values")
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value <= SCALE for value in values):
        raise Refused(f"not a list of integers from 0 to {SCALE}")
    if len(values) != texts:
        raise Refused(f"{len(values)} values for {texts} texts")
    return values
