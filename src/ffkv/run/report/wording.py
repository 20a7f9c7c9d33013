"""What the captions share: sentences, and the numbers in them."""

from collections.abc import Callable

import pandas as pd

from ffkv.run.report.drawing import PAPER_LAYERS
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent

INTERVALS = "Bars are 95 % intervals."
OF_PREFIXES = (
    "95 % intervals. They are too short if many prefixes are of one sentence, because prefixes count as independent."
)
BOX = (
    "A box reaches from the first to the third quartile, and its line is the median. The whiskers reach the most distant "
    "points within 1.5 box heights."
)


def projection(run: Run) -> str:
    """Says how a vector becomes a prediction, as the run's settings and its model have it."""
    if run.settings.values.projection == "unembedding":
        return "The prediction of a vector is the top token of its product with the output embedding alone."
    norm = ", with its final norm" if run.anatomy.final_norm else ", which has no final norm"
    return f"The prediction of a vector is the top token of the model's own head{norm}."


def both(tell: Callable[[Run], str], run: Run, control: Run | None) -> str:
    """Returns what `tell` says of a run, with a number in it, and in brackets what it says of the run's control, if any."""
    return f"{tell(run)} ({short_name(control)}: {tell(control)})" if control else tell(run)


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
    """Returns the share of keys with a pattern, from rows of `figure_2_pattern_counts`."""
    return counts["keys_with_pattern"].sum() / max(counts["keys"].sum(), 1)


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
    if known[value].nunique() == 1:
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
