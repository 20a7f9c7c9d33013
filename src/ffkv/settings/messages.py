"""What is wrong with a setting, in a person's words: the key, the value, what is allowed."""

import re
import reprlib
from typing import Any

from pydantic import BaseModel, ValidationError


def problems_of(model: type[BaseModel], values: dict[str, Any]) -> list[str]:
    """What is wrong, a line each: the key, the value, what is allowed."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        return [_sentence(model, detail) for detail in error.errors()]
    return []


def regular_expression(value: str) -> str:
    """The value, if it is a regular expression.

    Raises:
        ValueError: it is none; says where it goes wrong.
    """
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"must be a regular expression ({error})") from error
    return value


# What pydantic calls a problem, and what is allowed; in braces the limit. What is not here says it well enough itself.
ALLOWED = {
    "bool_type": "true or false",
    "dict_type": "a mapping of settings ({{}} for none)",
    "float_type": "a number",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "int_type": "a whole number",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "text or a list of texts",
    "literal_error": "{expected}",
    "model_type": "a mapping of settings ({{}} for none)",
    "string_pattern_mismatch": "'auto', 'cpu', 'cuda' or 'cuda:<number>'",
    "string_too_short": "text that is not empty",
    "string_type": "text",
    "string_unicode": "text",
    "too_short": "one or more",
}


def refusal(detail: dict[str, Any]) -> str:
    """The value that pydantic refused, and what is allowed: "0: must be at least 1"."""
    value, limits = shown(detail["input"]), {key: _plain(limit) for key, limit in detail.get("ctx", {}).items()}
    if detail["type"] in ALLOWED:
        return f"{value}: must be {ALLOWED[detail['type']].format(**limits)}"
    return f"{value}: {detail['msg'].removeprefix('Value error, ')}"


def _sentence(model: type[BaseModel], detail: dict[str, Any]) -> str:
    place = [part for part in detail["loc"] if part != "[key]"]
    key = ".".join(part if re.fullmatch(r"[\w-]+", part) else repr(part) for part in map(str, place))
    if "runs" in place and "[key]" in detail["loc"]:
        name = detail["input"]
        run = name if isinstance(name, str) and name and name.isprintable() else repr(name)
        return (
            f"runs: {run} is no run name: text of letters, digits, '.', '_' and '-', "
            "at most 64, that starts with a letter or a digit"
            + ("" if isinstance(name, str) else "; write it in quotes")
        )
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        return f"{key} is no setting; here one of: {', '.join(_known(model, place[:-1]))}"
    if detail["type"] == "missing":
        return f"{key} is missing"
    if place == ["runs"]:
        return f"runs is {shown(detail['input'])}: must name one run or more, each with what it overrides"
    return f"{key} is {refusal(detail)}"


def shown(value: Any) -> str:
    """A value as a person wrote it, shortened; there are values without a plain `repr` (numbers of 5,000 digits)."""
    try:
        text = SHORT.repr(value)
    except (ValueError, RecursionError):
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 200 else text[:200] + "..."


# As `repr`, but not endless: aliases make values of a billion parts out of ten lines of YAML.
SHORT = reprlib.Repr()
SHORT.maxlevel, SHORT.maxdict, SHORT.maxlist, SHORT.maxset, SHORT.maxtuple = 4, 8, 8, 8, 8
SHORT.maxstring, SHORT.maxlong, SHORT.maxother = 300, 300, 300


def _plain(limit: Any) -> Any:
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _known(model: type[BaseModel], place: list) -> list[str]:
    for part in place:
        field = model.model_fields.get(str(part))
        if field is None or not isinstance(field.annotation, type) or not issubclass(field.annotation, BaseModel):
            break
        model = field.annotation
    return sorted(model.model_fields)
