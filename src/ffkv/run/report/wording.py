"""The words of pages: templates, paragraphs in files, and the sentences and numbers that they share."""

import base64
import hashlib
import tomllib
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from ffkv.base.terminal import plain
from ffkv.run.report.page_tables import OPEN_ROWS
from ffkv.run.results import text as said
from ffkv.run.results.run import Run
from ffkv.run.results.text import change, number, percent, rounded, signed

PAPER_LAYERS = 16  # of the paper's model
INTERVALS = "Bars are 95 % intervals."
# What every page writes texts and numbers with.
FILTERS = (
    *(said.visible, said.token, said.ending, said.prefix, said.shortened, plain),
    *(percent, said.percents, number, said.column, signed),
)


def make_environment(*folders: tuple[str, str]) -> jinja2.Environment:
    """Templates of pages with `FILTERS`. What they write is escaped unless it is `Markup`: strangers wrote some of it.

    Args:
        folders: where templates are, each as a package and a folder inside it; the first one that has a name counts.
    """
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(*folder) for folder in folders]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters |= {each.__name__: each for each in FILTERS}
    style, script = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("style.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # the page runs this script, and no other
    made.globals |= {"style": Markup(style), "script": Markup(script), "script_hash": digest, "open_rows": OPEN_ROWS}
    made.globals |= {"signs": {1: "+", -1: said.MINUS, 0: ""}}
    return made


@cache
def _texts(package: str) -> dict[str, Any]:
    return tomllib.loads(files(package).joinpath("texts.toml").read_text(encoding="utf-8"))


@cache
def _environment() -> jinja2.Environment:
    """Templates with what the texts of all sections use."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    numbers = (change, number, percent, rounded, rows, share_with_pattern, signed, weighted_mean)
    used = (*numbers, course, goes, paper_line, projection, ties)
    environment.globals |= {each.__name__: each for each in used}
    environment.globals |= {"BOX": BOX, "INTERVALS": INTERVALS, "OF_PREFIXES": OF_PREFIXES}
    return environment


@cache
def _templates(package: str, name: str) -> dict[str, jinja2.Template]:
    found = _texts(package)[name]
    parts = dict(found) if isinstance(found, dict) else {"": found}
    given = parts.pop("given", "")
    return {part: _environment().from_string(given + text) for part, text in parts.items()}


def note(package: str, name: str, /, **values: Any) -> str:
    """Returns a paragraph of the `texts.toml` of a package, filled in with the values that it names."""
    return _templates(package, name)[""].render(values)


def written(package: str, name: str, run: Run, /, **values: Any) -> dict[str, str]:
    """Returns the parts of a table of the `texts.toml` of a package, filled in with a run and with other values that they name."""
    values |= {"run": run, "table": lambda name, **values: rows(run.table(name), **values)}
    return {part: text.render(values) for part, text in _templates(package, name).items()}


OF_PREFIXES, BOX = (_texts(__package__)[name] for name in ("of_prefixes", "box"))


def projection(run: Run) -> str:
    """Says how a vector becomes a prediction, as the run's settings and its model have it."""
    if run.settings.values.projection == "unembedding":
        return "The prediction of a vector is the top token of its product with the output embedding alone."
    norm = ", with its final norm" if run.anatomy.final_norm else ", which has no final norm"
    return f"The prediction of a vector is the top token of the model's own head{norm}."


def short_name(control: Run) -> str:
    """Returns what a control is called beside its numbers."""
    return "untrained" if control.anatomy.weights == "random" else control.name


def ties(table: pd.DataFrame, total: str, what: str) -> str:
    """Says how often several tokens share the highest logit. `total`: the column with the number of cases per layer."""
    tied, cases = table["tied"].sum(), table[total].sum()
    if not tied:
        return "No two tokens share the highest logit."
    return f"In {number(tied)} of {number(cases)} {what} several tokens share the highest logit: the lowest id counts."


def rows(table: pd.DataFrame, **values: str | int) -> pd.DataFrame:
    """Returns the rows of a table whose columns have the values that are passed."""
    for column, value in values.items():
        table = table[table[column] == value]
    return table


def share_with_pattern(counts: pd.DataFrame) -> float:
    """Returns the share of keys with a pattern, from rows of `figure_2_pattern_counts`; NaN without keys."""
    keys = counts["keys"].sum()
    return counts["keys_with_pattern"].sum() / keys if keys else float("nan")


def weighted_mean(table: pd.DataFrame, value: str, weight: str) -> float:
    """Returns the mean of the column `value`, each row weighted by the column `weight`; NaN where all weights are 0."""
    total = table[weight].sum()
    return float((table[value] * table[weight]).sum() / total) if total else float("nan")


def course(table: pd.DataFrame, value: str, write: Callable[[float], str] = percent) -> str:
    """Says how a column changes over the layers: first, last, lowest and highest value, as `write` writes them."""
    known = table.dropna(subset=[value])
    if known.empty:
        return "nothing to show"
    first, last = known.iloc[0], known.iloc[-1]

    def at(row: pd.Series) -> str:
        return f"{write(row[value])} in layer {int(row['layer'])}"

    if len(known) == 1:
        return at(first)
    if known[value].map(write).nunique() == 1:
        return f"{write(first[value])} in every layer"
    extremes = {"lowest": known.loc[known[value].idxmin()], "highest": known.loc[known[value].idxmax()]}
    between = [f"{name} {at(row)}" for name, row in extremes.items() if row[value] not in (first[value], last[value])]
    return f"from {at(first)} to {at(last)}" + (f" ({', '.join(between)})" if between else "")


def goes(table: pd.DataFrame, value: str, write: Callable[[float], str] = percent) -> str:
    """Says how a column goes over the layers: "goes from 5 % in layer 0 to 9 % in layer 5". Other words: see `course`."""
    if table[value].isna().all():
        return "is not known"
    said = course(table, value, write).partition(" (")[0]
    return f"goes {said}" if said.startswith("from ") else f"is {said}"


def paper_line(run: Run, text: str) -> str:
    """Returns a sentence about the paper's curve, with a space in front; empty where the curve is not drawn."""
    layers = len(run.anatomy.layers)
    if not run.settings.report.paper_curves or layers == 1:
        return ""
    return f" {text}" + (" The paper's layers are drawn at the same relative depth." if layers != PAPER_LAYERS else "")
