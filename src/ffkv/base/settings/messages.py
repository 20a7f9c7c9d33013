"""Messages about settings that are refused: the key, the value, and what is allowed."""

import difflib
import re
import reprlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ffkv.base.doors import entries

WORDS = tomllib.loads(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))
RENAMED, ALLOWED = WORDS["renamed"], WORDS["allowed"]
NAMED = {"runs": "run name"} | {f"{each}s": f"name of a {each}" for each in ("comparison", "behaviour", "concept")}


def problems_of(model: type[BaseModel], values: dict[str, Any]) -> list[str]:
    """Checks values against a model. Returns one sentence per problem: the key, the value, and what is allowed."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        return sentences(model, error)
    return []


def sentences(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Words what pydantic refused in a model, as `problems_of`: one sentence per problem."""
    found = []
    for detail in error.errors():
        key, value = ".".join(map(str, detail["loc"])), detail["input"]
        of_section = f"{model.__name__.lower()}.{key}"  # if the section is made in Python
        found += new_names(key, value) or new_names(of_section, value) or [_sentence(model, dict(detail))]
    return found


def new_names(key: str, value: Any = None) -> list[str]:
    """Says what a setting is called now, or each setting of a section, in one sentence each. Most have no new name.

    `key`: the setting or section, such as "corpus_shards". Its `value` may have a new name, too.
    """
    if key in RENAMED and isinstance(value, dict):
        inside = [new_names(f"{key}.{name}", inner) for name, inner in value.items() if isinstance(name, str)]
        if any(inside):
            return [sentence for each in inside for sentence in each]
    with_value = f"{key}: {value}" if isinstance(value, str) else key
    return [f"{old} is called {RENAMED[old]} now." for old in (with_value, key) if old in RENAMED][:1]


def refusal(detail: Mapping[str, Any]) -> str:
    """Describes one error of pydantic: the refused value and what is allowed, such as "0: must be at least 1"."""
    value = shown(detail["input"])
    if detail["type"] == "string_type" and isinstance(detail["input"], bool):
        return f"{value}: must be text. YAML reads yes, no, on and off as true and false unless they are in quotation marks"
    if detail["type"] in ALLOWED:
        limits = detail.get("ctx", {})
        whole = {key: int(limit) for key, limit in limits.items() if isinstance(limit, float) and limit.is_integer()}
        return f"{value}: must be {ALLOWED[detail['type']].format(**limits | whole)}"
    return f"{value}: {detail['msg'].removeprefix('Value error, ')}"


def _sentence(model: type[BaseModel], detail: dict[str, Any]) -> str:
    place = [step for step in detail["loc"] if step != "[key]"]
    key = ".".join(step if re.fullmatch(r"[\w-]+", step) else repr(step) for step in map(str, place))
    if "[key]" in detail["loc"] and place[0] in NAMED:
        return _refused_name(place[0], detail["input"])
    if detail["type"] == "string_pattern_mismatch" and place[-1] != "device":
        return _refused_name(key, detail["input"])
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        if place[-1] in entries("branches") and place[-1] not in model.model_fields:
            return f"Unknown setting {key!r}: its branch cannot be used, and `ffkv {place[-1]}` says why"
        for step in place[:-1]:
            if (field := model.model_fields.get(str(step))) is not None:  # else it is a name that the user gave
                inside = [field.annotation, *get_args(field.annotation)]
                model = next((kind for kind in inside if isinstance(kind, type) and issubclass(kind, BaseModel)), model)
        valid = sorted(model.model_fields)
        return f"Unknown setting {key!r}.{suggestion(place[-1], valid)} Valid here: {', '.join(valid)}"
    if detail["type"] == "missing":
        return f"{key} is missing" + (": it names the runs, such as `runs: {mine: {}}`" if key == "runs" else "")
    if place == ["runs"] and "comparisons" in model.model_fields:
        return f"runs is {shown(detail['input'])}: must name one run or more, each with the settings that it overrides"
    return f"{key} is {refusal(detail)}"


def suggestion(name: object, valid: Iterable[str]) -> str:
    """Returns " Did you mean ...?" with the name that is most like one that does not exist; "" if none is like it."""
    similar = difflib.get_close_matches(str(name), [*valid], n=1, cutoff=0.7)
    return f" Did you mean {similar[0]!r}?" if similar else ""


def _refused_name(key: str, name: Any) -> str:
    what = next((NAMED[word] for word in key.split(".") if word in NAMED), "run name")
    what += ", nor auto or none" if key.endswith("report.control") else ""
    text = name if isinstance(name, str) and name and name.isprintable() else repr(name)
    return (
        f"{key}: {text} is not a valid {what}. It has at most 64 characters: letters, digits, '.', '_' and '-'. "
        "It starts with a letter or a digit, and does not repeat a part 20 times at its end"
        + ("" if isinstance(name, str) else ". Write it in quotes")
    )


def shown(value: Any) -> str:
    """Returns a value as a person wrote it, shortened.

    Some values have no plain `repr`, such as numbers of 5,000 digits.
    """
    try:
        text = SHORT.repr(value)
    except (ValueError, RecursionError):
        text = ""
    if not text or text.startswith("<int"):  # what Python 3.14 says of it
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 200 else text[:200] + "..."


# Like `repr`, but bounded: with aliases, ten lines of YAML can describe a value with a billion elements.
SHORT = reprlib.Repr()
SHORT.maxlevel, SHORT.maxdict, SHORT.maxlist, SHORT.maxset, SHORT.maxtuple = 4, 8, 8, 8, 8
SHORT.maxstring, SHORT.maxlong, SHORT.maxother = 300, 300, 300
