"""The tables of the page: the run's tables as they are, and those for reading."""

import base64
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pandas as pd
from markupsafe import Markup

from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.run.results.indexes import pushed_tokens
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.text import column, decimals, ending, number, percents, shortened, token, visible

MAX_TEXT_CHARACTERS = 160  # of a longer prefix a table shows the end
MAX_CELL_CHARACTERS = 1000  # of a longer text a cell shows the beginning
OPEN_ROWS = 8  # of a table for reading; the reader opens the others
MOST_SPECIFIC = 50  # memories with the largest specific effects
P_DECIMALS = 2  # of p-values and q-values
MAX_FILE_BYTES = 2**20  # a larger file is not put into the page
FACTS = "comparison.json"  # among its tables
MARKED = '<span class="memory">{}</span>'
NAMED = re.compile(MARKED.format(r"(L\d+\.\d+)"))


class Named(NamedTuple):
    """A cell that names a memory."""

    memory: str  # the memory's name, such as "L3.17"
    text: str = ""  # what the cell shows; "" for the name


Cell = Markup | str | Named


@dataclass(frozen=True)
class PageTable:
    """A table as the page shows it."""

    name: str  # the table's name, such as "figure_4_agreement"
    headers: list[str]  # heading of each column [column]
    numeric: list[bool]  # whether a column holds numbers [column]
    rows: list[list[Cell]]  # text of each cell, or the memory that it names [row, column]
    file: str = ""  # name under which the reader saves the table; "" where the page offers no file
    # the file's content as a data link; "" where the page offers no file, or the file is too large for the page
    href: str = ""
    same: tuple[tuple[str, Cell], ...] = ()  # columns whose cells were all the same: their headings and the cell
    muted_from: int | None = None  # the row from which on rows are not significant; None if nothing is tested

    @property
    def named(self) -> list[str]:
        """The memories that the open rows name."""
        return [cell.memory for row in self.rows[:OPEN_ROWS] for cell in row if isinstance(cell, Named)]


def data_table(run: Run, name: str) -> PageTable:
    """Returns a table of the run, with all its columns, and its file if it has one."""
    return whole_table(name, run.table(name), run.files.table_files.get(name))


def whole_table(name: str, frame: pd.DataFrame, file: Path | None = None) -> PageTable:
    """Returns a table with all its columns, and its file, if it has one. The page offers the content of a small file."""
    content = base64.b64encode(file.read_bytes()).decode() if file and file.stat().st_size <= MAX_FILE_BYTES else None
    cells = {name: _cells(name, column) for name, column in frame.items()}
    if {"layer", "memory"} <= {*frame}:
        places = zip(frame["layer"].astype(int), frame["memory"].astype(int), map(str, cells["memory"]), strict=True)
        cells["memory"] = [Named(memory_name(*at), text) if min(at) >= 0 else text for *at, text in places]  # -1: none
    table = PageTable(
        name=name,
        headers=[column.replace("_", " ") for column in frame],
        numeric=[pd.api.types.is_numeric_dtype(frame[column]) for column in frame],
        rows=[list(row) for row in zip(*cells.values(), strict=True)],
        file=file.name if file else "",
        href="" if content is None else f"data:text/csv;charset=utf-8;base64,{content}",
    )
    return without_same(table)


def without_same(table: PageTable) -> PageTable:
    """Returns the table without the columns whose cells are all the same. It says what these cells are."""
    columns = [*zip(*table.rows, strict=True)] if len(table.rows) > 1 else []
    same = [place for place, cells in enumerate(columns) if len({*cells}) == 1 and table.headers[place] != "layer"]
    kept = [place for place in range(len(table.headers)) if place not in same]
    return replace(
        table,
        headers=[table.headers[place] for place in kept],
        numeric=[table.numeric[place] for place in kept],
        rows=[[row[place] for place in kept] for row in table.rows],
        same=tuple((table.headers[place], columns[place][0] or "–") for place in same),
    )


def agreement_of_annotators(run: Run) -> PageTable:
    """Returns the agreement about prefixes, patterns and changes of any two annotators, one row per pair."""
    headers = {
        ("prefix", "raw"): "prefixes, raw",
        ("prefix", "kappa"): "kappa",
        ("prefix", "alpha"): "alpha",
        ("pattern", "jaccard"): "patterns",
        ("change", "alpha"): "changes, alpha",
    }
    rows: list[list[Cell]] = []
    for (first, second), pair in run.table("agreement").groupby(["first", "second"], sort=False):
        found = {(row.unit, row.statistic): row for row in pair.itertuples()}
        keys = max((row.keys for row in found.values() if row.unit != "change"), default=0)
        cells = [_of_row(found.get(header)) for header in headers]
        rows.append([visible(first), visible(second), number(keys), *cells])
    names = ["annotator", "annotator", "keys", *headers.values()]
    return PageTable("agreement_of_annotators", names, [False, False, *[True] * (1 + len(headers))], rows)


def scores_of_machines(run: Run) -> PageTable:
    """Returns how good the labels of each machine are, over all layers, one row per machine and score."""
    table = run.table("machine_scores_by_layer").query("layer == -1")
    rows: list[list[Cell]] = []
    for (annotator, score), own in table.groupby(["annotator", "score"], sort=False):
        found = {row.label: row for row in own.itertuples()}
        about = found.get("own", found.get("none"))
        if about is None:
            continue
        means = [_of_row(row, "mean") for row in (about, found.get("other"), found.get("own - other"))]
        refused = f"{number(about.refused)} of {number(about.asked)}"
        rows.append([visible(annotator), score, number(about.memories), *means, f"{about.chance:.2g}", refused])
    headers = ["machine", "score", "memories", "mean", "label of another memory", "difference", "chance"]
    return PageTable("scores_of_machines", [*headers, "refused questions"], [False, False, *[True] * 6], rows)


def _of_row(row: Any, statistic: str = "value") -> str:
    return "–" if row is None else with_interval(getattr(row, statistic), row.low, row.high)


def with_interval(value: float, low: float, high: float, write: Callable[[float], str] = decimals) -> str:
    """Returns a number with its interval, where it is known: 0.61 (0.52 to 0.70)."""
    return write(value) if pd.isna(low) else f"{write(value)} ({write(low)} to {write(high)})"


def of_columns(
    name: str, columns: Mapping[str, Iterable[Cell]], texts: Collection[str], muted_from: int | None = None
) -> PageTable:
    """Returns a table of columns. Those that `texts` names hold texts, the others numbers."""
    lines = [list(row) for row in zip(*columns.values(), strict=True)]
    return PageTable(name, [*columns], [header not in texts for header in columns], lines, muted_from=muted_from)


def memories_of(table: pd.DataFrame) -> list[Cell]:
    """Returns the names of the memories of a table's rows."""
    return [Named(memory_name(*each)) for each in zip(table["layer"], table["memory"], strict=True)]


def predictive_values(run: Run) -> PageTable:
    """Returns the values with the highest top probabilities, each with a trigger example (table 2 of the paper)."""
    table, example = run.table("table_2_predictive_values"), "trigger example and its next token"
    columns: dict[str, Iterable[Cell]] = {
        "memory": memories_of(table),
        "prediction": map(chip, table["token"]),
        "probability": percents(table["top_probability"]),
        "contribution": column(table["contribution"]),
        "followed by it": [f"{row.matching} of {row.triggers}" for row in table.itertuples()],
        example: [_prefix(row.prefix, row.next_token) if row.next_token else "" for row in table.itertuples()],
    }
    return of_columns("predictive values", columns, {"memory", "prediction", example})


def prediction_changes(run: Run) -> PageTable:
    """Returns the sampled changes of prediction in the last layer."""
    table, prefix, change = run.table("prediction_changes"), "prefix and its next token", "residual → block output"
    tokens = zip(table["residual_token"], table["output_token"], strict=True)
    columns: dict[str, Iterable[Cell]] = {
        prefix: map(_prefix, table["text"], table["next_token"]),
        change: [Markup("{} → {}").format(chip(before), chip(after)) for before, after in tokens],
        "cosine": map(decimals, table["cosine"]),
        "closer than": percents(table["cosine_percentile"]),
    }
    return of_columns("prediction changes", columns, {prefix, change})


def specific_effects(run: Run) -> PageTable:
    """Returns the memories with the largest specific total effects. Those that are significant come first."""
    table = run.table("intervention_memories")
    table = table[table["reach"] == "total"].assign(significant=table["q_value"] <= SIGNIFICANT)
    table = table.sort_values("significant", ascending=False, kind="stable").head(MOST_SPECIFIC)
    effects = {"own": "own", "others": "random_memories", "specific": "specific"}
    every = table[[*effects.values()]].to_numpy().ravel()
    columns: dict[str, Iterable[Cell]] = {
        "memory": memories_of(table),
        "coefficients": table["side"],
        "pushes towards": map(pushed, pushed_tokens(run.files, table)["pushes"], table["coefficient"]),
        "mean m": column(table["coefficient"]),
        **{header: column(table[name], like=every) for header, name in effects.items()},
        "q": column(table["q_value"], places=P_DECIMALS),
        "changed": percents(table["changed"]),
        "significant": ["yes" if significant else "no" for significant in table["significant"]],
    }
    texts = {"memory", "coefficients", "pushes towards", "significant"}
    return without_same(of_columns("specific effects", columns, texts, int(table["significant"].sum())))


def _prefix(text: str, next_token: str) -> Markup:
    return Markup("{} {}").format(ending(text, MAX_TEXT_CHARACTERS), chip(next_token))


def chip(text: str) -> Markup:
    """Returns a token, set off from the text around it."""
    return Markup('<span class="token">{}</span>').format(token(text))


def pushed(text: str, coefficient: float) -> Markup | str:
    """Returns the token that a memory pushes towards, and whether it is the bottom token of the value; a dash for none."""
    where = Markup(' <span class="note">bottom of the value</span>') if coefficient < 0 else ""
    return chip(text) + where if text else "–"


def _cells(name: str, values: pd.Series) -> list[Cell]:
    if not pd.api.types.is_numeric_dtype(values):
        write = token if "token" in name else lambda text: visible(shortened(text, MAX_CELL_CHARACTERS))
        return [write(value) if isinstance(value, str) else number(value) for value in values]
    if name == "layer":
        return [f"{value:.0f}" if value >= 0 else "all" for value in values]
    return [*column(values.astype(float), places=P_DECIMALS if name in ("p_value", "q_value") else None)]


def mark(memory: str) -> Markup:
    """Returns the name of a memory, such as "L3.17", as the report writes it."""
    return Markup(MARKED).format(memory)


def with_links(page: str, first: str, last: str) -> str:
    """Returns the page as the explorer shows it: a memory leads to its page in the first run beside that in the last."""

    def link(cell: re.Match[str]) -> str:
        address = urlencode({"a": first, "b": last, "memory": cell[1]})
        return str(Markup('<a href="../compare?{}">{}</a>').format(address, cell[1]))

    return NAMED.sub(link, page)
