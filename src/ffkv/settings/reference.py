"""The default settings file, its JSON schema and the reference page, as text from the models of the settings."""

import json
import textwrap
from pathlib import Path
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ffkv.settings import LARGEST, Settings
from ffkv.settings.runs import Configuration

COLUMNS = 110  # of a comment in the settings file
DEFAULT, SCHEMA, PAGE = (
    Path("config.yaml"),
    Path("src/ffkv/workflow/schemas/config.schema.json"),
    Path("docs/settings.md"),
)


def schema() -> str:
    """Returns the JSON schema of a settings file."""
    return json.dumps(Configuration.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


def default() -> str:
    """Returns the default settings file: every setting at its default with a comment, and the run `demo`."""
    lines = [
        f"# yaml-language-server: $schema={SCHEMA}",
        "# The default run `demo` trains a small GPT-2 on the documentation of the Python library. `make report` starts it.",
        "# This file holds every setting at its default. Settings above `runs:` apply to all runs. Each run can override them.",
    ]
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            lines += [
                "",
                *_comment(field.annotation.__doc__.strip(), ""),
                f"{name}:",
                *_lines(field.annotation.model_fields, "  "),
            ]
        else:
            lines += ["", *_lines({name: field}, "")]
    return (
        "\n".join(
            [
                *lines,
                "",
                "# Run name: the settings that this run overrides. Results are written to results/<run>/, the report to",
                "# reports/<run>/index.html.",
                "runs:",
                "  demo: {}",
            ]
        )
        + "\n"
    )


def _lines(fields: dict[str, FieldInfo], indent: str) -> list[str]:
    return [
        line
        for name, field in fields.items()
        for line in (*_comment(field.description, indent), f"{indent}{name}: {json.dumps(field.default)}")
    ]


def _comment(text: str, indent: str) -> list[str]:
    """A comment in lines of at most `COLUMNS` characters."""
    return textwrap.wrap(
        text, COLUMNS, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_on_hyphens=False
    )


def page() -> str:
    """Returns the reference page, with one table per section."""
    lines = [
        "# Settings",
        "",
        "`ffkv settings` writes this page from `src/ffkv/settings/models.py`. A settings file has these settings at its top level. Under `runs:`",
        f"it has one entry per run, with the settings that the run overrides. A whole number is at most {LARGEST:,} unless the table says otherwise.",
    ]
    plain = {}
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            lines += [
                "",
                f"## `{name}`",
                "",
                field.annotation.__doc__.strip(),
                "",
                *_table(field.annotation.model_fields),
            ]
        else:
            plain[name] = field
    return "\n".join([*lines, "", "## At the top level", "", *_table(plain)]) + "\n"


def _table(fields: dict[str, FieldInfo]) -> list[str]:
    rows = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        default = json.dumps(field.default)
        rows.append(f"| `{name}` | `{default}` | {_allowed(field)} | {field.description} |")
    return rows


def _allowed(field: FieldInfo) -> str:
    if choices := get_args(field.annotation):
        if get_origin(field.annotation) is not list:
            return ", ".join(f"`{choice}`" for choice in choices)
        return "text, or a list of texts"
    kind = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text"}[field.annotation]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {getattr(rule, key)}"
        for rule in field.metadata
        for key, sign in signs.items()
        if getattr(rule, key, None) not in (None, LARGEST)
    ]
    return ", ".join([kind, *limits])
