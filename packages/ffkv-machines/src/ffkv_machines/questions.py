"""The questions that a machine gets, and its answers, which are read strictly.

Corpus text is data in questions: it stands in JSON strings and nowhere else. An answer is one JSON object of the form
that was asked for. Any other answer raises `Refused`. Texts count from 1 in answers, and from 0 in what is read from them.
"""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo

from ffkv.base.files.journal import problem_of
from ffkv.base.lookup import parse_json
from ffkv_annotation.records import MOST_PATTERNS, MarkedPattern, printable_line
from ffkv_annotation.sheets import Sheet
from ffkv_machines.texts import Example, end_of

OPENED, CLOSED = "\N{LEFT-POINTING DOUBLE ANGLE QUOTATION MARK}", "\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK}"
TEXTS = tomllib.loads((files(__package__) / "questions.toml").read_text(encoding="utf-8"))
SAME_WORD = "detection of the same word"  # it has the text of "detection"
LONGEST_LABEL = 300  # characters
SCALE = 10  # highest integer of a simulated coefficient
THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)


class Refused(ValueError):
    """An answer that is not of the form that was asked for. The message says what is wrong with it."""


Line = Annotated[str, AfterValidator(printable_line), Field(min_length=1, max_length=LONGEST_LABEL)]


def _places(numbers: list[int], asked: ValidationInfo) -> list[int]:
    texts: Any = asked.context
    if not all(1 <= number <= texts for number in numbers) or len(set(numbers)) < len(numbers):
        raise ValueError(f"must be different numbers from 1 to {texts}")
    return sorted(number - 1 for number in numbers)


Places = Annotated[list[int], AfterValidator(_places)]


class _Pattern(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    label: Line
    kind: Literal["shallow", "semantic"]
    texts: Places


def _read(answer: str, name: str, form: Any, texts: int = 0) -> Any:
    """Returns the value of an answer that is one JSON object with exactly this name; about some number of texts.

    A block of thoughts in front, `<think>...</think>`, and a fence around the object, ```` ```json ````, are allowed.
    Nothing else may stand beside the object. `form`: the type of the value.
    """
    rest = THOUGHT.sub("", answer, count=1)
    fence = FENCE.fullmatch(rest)
    try:
        found = parse_json(fence[1] if fence else rest)
    except ValueError as error:
        raise Refused(f"not JSON: {error}") from error
    if not isinstance(found, dict) or set(found) != {name}:
        raise Refused(f"not one object with {name} and nothing else")
    try:
        return TypeAdapter(form).validate_python(found[name], strict=True, context=texts)
    except ValidationError as error:
        raise Refused(": ".join(filter(None, (name, *problem_of(error))))) from error


# What read an answer: the explanation, one line of at most `LONGEST_LABEL` characters; and whether two tokens are related.
read_label = partial(_read, name="label", form=Line)
read_related = partial(_read, name="related", form=Literal["true", "false", "unsure"])


def read_marks(answer: str, texts: int) -> list[bool]:
    """Reads a bool per text: whether the answer names it. No text may be named twice."""
    named = _read(answer, "texts", Places, texts)
    return [place in named for place in range(texts)]


def read_patterns(answer: str, texts: int) -> list[MarkedPattern]:
    """Reads the patterns that an annotator sees in the texts of a key."""
    found = _read(answer, "patterns", Annotated[list[_Pattern], Field(max_length=MOST_PATTERNS)], texts)
    return [MarkedPattern(label=each.label, kind=each.kind, prefixes=tuple(each.texts)) for each in found]


def read_intruder(answer: str, texts: int) -> int:
    """Reads the place of the one text that does not belong."""
    return int(_read(answer, "intruder", Annotated[int, Field(ge=1, le=texts)])) - 1


def read_values(answer: str, texts: int) -> list[int]:
    """Reads one integer from 0 to `SCALE` per text, in their order [text]."""
    strengths = list[Annotated[int, Field(ge=0, le=SCALE)]]
    return list(_read(answer, "values", Annotated[strengths, Field(min_length=texts, max_length=texts)]))


class Question(NamedTuple):
    """One question to the annotator."""

    # "label", "patterns", "related", "detection", "detection of the same word", "fuzzing", "intruder" or "simulation"
    kind: str
    messages: list[dict[str, str]]  # what is sent: a system message and a user message
    read: Callable[[str], Any]  # reads an answer; raises `Refused` if it has another form


def _question(kind: str, data: dict[str, Any], read: Callable[[str], Any], minimum: int = 0) -> Question:
    asked = TEXTS["detection" if kind == SAME_WORD else kind]
    task = asked["task"].format(SCALE=SCALE, LONGEST_LABEL=LONGEST_LABEL, OPENED=OPENED, CLOSED=CLOSED, minimum=minimum)
    form = f"Answer with one JSON object and nothing else: {asked['form']}"
    system = f"{TEXTS['about']} {task}\n\n{TEXTS['data']}\n\n{form}"
    user = json.dumps(data, ensure_ascii=False)
    return Question(kind, [{"role": "system", "content": system}, {"role": "user", "content": user}], read)


def _of_texts(kind: str, texts: Sequence[str], read: Callable[..., Any], minimum: int = 0, **label: str) -> Question:
    """Asks about numbered texts. `read` gets an answer and the number of texts; `label`: what is said about them, if anything."""
    numbered = [{"number": number, "text": text} for number, text in enumerate(texts, 1)]
    return _question(kind, {**label, "texts": numbered}, partial(read, texts=len(texts)), minimum)


def strength(coefficient: float, highest: float) -> int:
    """Rounds a coefficient to an integer: floor(10 max(m, 0) / highest), 10 at most (as OpenAI's explainer has it)."""
    return min(SCALE, int(SCALE * max(coefficient, 0.0) / highest)) if highest > 0 else 0


def ask_label(shown: Sequence[Example]) -> Question:
    """Asks for what trigger examples have in common that the unit reacts to. The highest coefficient comes first."""
    highest = max(example.coefficient for example in shown)
    rated = [
        {"number": number, "text": each.text, "activation": strength(each.coefficient, highest)}
        for number, each in enumerate(shown, 1)
    ]
    return _question("label", {"texts": rated}, read_label)


def marked(example: Example) -> str:
    """Marks the last token of the prefix in the whole sentence. Marks in the text itself become plain ones."""
    start = len(example.text) - example.last
    parts = (example.text[:start], example.text[start:], example.following)
    before, token, after = (part.replace(OPENED, "<").replace(CLOSED, ">") for part in parts)
    return f"{before}{OPENED}{token}{CLOSED}{after}"


# Questions about texts that hold a label, by their kind: what reads the answer.
BY_LABEL: dict[str, Callable[[str, int], Any]] = {
    **dict.fromkeys(("detection", SAME_WORD, "fuzzing"), read_marks),
    "simulation": read_values,
}


def ask_by_label(kind: str, label: str, texts: Sequence[Example]) -> Question:
    """Asks on which texts, or how strongly, the unit is active, by its label. `kind`: one of `BY_LABEL`."""
    shown = [marked(each) if kind == "fuzzing" else each.text for each in texts]
    return _of_texts(kind, shown, BY_LABEL[kind], label=label)


def ask_intruder(texts: Sequence[Example]) -> Question:
    """Asks which text does not belong. There is no label: the answer says something about the memory itself."""
    return _of_texts("intruder", [each.text for each in texts], read_intruder)


def ask_items(sheet: Sheet, minimum: int) -> list[Question]:
    """Asks what people are asked about each item of a sheet, in the order of their ids.

    Nothing but the sheet is read, so the machine is as blind as people. `minimum`: fewest prefixes of a pattern.
    """
    items = [sheet.items[number] for number in sorted(sheet.items)]
    if sheet.kind == "change":
        asked = [{"text": end_of(item.text), "before": item.before, "after": item.after} for item in items]
        return [_question("related", data, read_related) for data in asked]
    return [_of_texts("patterns", list(map(end_of, item.prefixes)), read_patterns, minimum) for item in items]
