"""The settings' JSON schema and reference page, written from the models in `settings`."""

import json
from pathlib import Path
from typing import get_args, get_origin

import click
from pydantic import BaseModel

from ffkv.files import atomic
from ffkv.settings import Configuration, Settings

SCHEMA, PAGE = Path("workflow/schemas/config.schema.json"), Path("docs/settings.md")


def schema() -> str:
    """The JSON schema of a settings file."""
    return json.dumps(Configuration.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """The reference page: a table a section."""
    lines = [
        "# Settings",
        "",
        "Written by `ffkv settings` from `src/ffkv/settings.py`. A settings file holds these at its top level, and under `runs:` what each",
        "run overrides.",
    ]
    plain = {}
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            lines += ["", f"## `{name}`", "", field.annotation.__doc__.strip(), "", *_table(field.annotation.model_fields)]
        else:
            plain[name] = field
    return "\n".join([*lines, "", "## At the top level", "", *_table(plain)]) + "\n"


def _table(fields: dict) -> list[str]:
    rows = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        default = json.dumps(field.default)
        rows.append(f"| `{name}` | `{default}` | {_allowed(field)} | {field.description} |")
    return rows


def _allowed(field) -> str:
    if choices := get_args(field.annotation):
        if get_origin(field.annotation) is not list:
            return ", ".join(f"`{choice}`" for choice in choices)
        return "text, or a list of texts"
    kind = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text"}[field.annotation]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [f"{sign} {getattr(rule, key)}" for rule in field.metadata for key, sign in signs.items() if getattr(rule, key, None) is not None]
    return ", ".join([kind, *limits])


@click.command()
def settings() -> None:
    """Write workflow/schemas/config.schema.json and docs/settings.md."""
    for path, text in ((SCHEMA, schema()), (PAGE, page())):
        with atomic(path) as temporary:
            temporary.write_text(text)
        click.echo(path)
