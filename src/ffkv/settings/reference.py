"""The default settings file, its JSON schema and the reference page, written from the models in `settings`."""

import json
from pathlib import Path
from typing import get_args, get_origin

import click
from pydantic import BaseModel

from ffkv.files.atomic import atomic
from ffkv.settings import LARGEST, Settings
from ffkv.settings.runs import Configuration, resolve
from ffkv.settings.yaml_file import read_settings

DEFAULT, SCHEMA, PAGE = (
    Path("config.yaml"),
    Path("src/ffkv/workflow/schemas/config.schema.json"),
    Path("docs/settings.md"),
)


def schema() -> str:
    """The JSON schema of a settings file."""
    return json.dumps(Configuration.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


def default() -> str:
    """The default settings file: every setting at its default, with a comment, and the demo's run."""
    lines = [
        f"# yaml-language-server: $schema={SCHEMA}",
        "# The default run: a small GPT-2, trained here, on the documentation of the Python library. `make report` runs it.",
        "# Every setting stands here at its default. Settings above `runs:` hold for all runs; a run may override any of them.",
    ]
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            lines += [
                "",
                f"# {field.annotation.__doc__.strip()}",
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
                "# Results go to results/<run>/, the report to reports/<run>/index.html.",
                "runs:",
                "  demo: {}",
            ]
        )
        + "\n"
    )


def _lines(fields: dict, indent: str) -> list[str]:
    return [
        line
        for name, field in fields.items()
        for line in (f"{indent}# {field.description}", f"{indent}{name}: {json.dumps(field.default)}")
    ]


def page() -> str:
    """The reference page: a table a section."""
    lines = [
        "# Settings",
        "",
        "Written by `ffkv settings` from `src/ffkv/settings.py`. A settings file holds these at its top level, and under `runs:` what each",
        f"run overrides. Whole numbers are at most {LARGEST:,} where nothing else is said.",
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
    limits = [
        f"{sign} {getattr(rule, key)}"
        for rule in field.metadata
        for key, sign in signs.items()
        if getattr(rule, key, None) not in (None, LARGEST)
    ]
    return ", ".join([kind, *limits])


@click.command()
@click.option("--check", "file", type=click.Path(), help="Only say what is wrong with this settings file, and where.")
def settings(file: str | None) -> None:
    """Write config.yaml, src/ffkv/workflow/schemas/config.schema.json and docs/settings.md."""
    if file is not None:
        click.echo(f"{file} is valid; its runs: {', '.join(resolve(read_settings(file)))}.")
        return
    for path, text in ((DEFAULT, default()), (SCHEMA, schema()), (PAGE, page())):
        with atomic(path, summed=False) as temporary:
            temporary.write_text(text, encoding="utf-8")
        click.echo(path)
