"""What the page shows about routing: how evenly tokens are sent to experts by layer, and the experts of each pattern."""

from collections.abc import Iterable
from dataclasses import replace

from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.run.report.curve import Line, Panel
from ffkv.run.report.page_tables import Cell, PageTable, data_table, of_columns
from ffkv.run.report.section import Section, TableBlock, caption, figure_of_lines
from ffkv.run.report.wording import note
from ffkv.run.results.run import Run
from ffkv.run.results.text import column, number, percents, visible

LOAD, EXPERTS, PATTERNS = "routing_load", "routing_experts", "routing_patterns"
LINES = [Line("effective share of experts", LOAD, "even", curve="effective share of experts")]
EACH = 5  # experts of each pattern that the page shows


def _has_experts(run: Run) -> bool:
    return len(run.table(LOAD)) > 0


def _patterns(run: Run) -> PageTable:
    """Returns, of each pattern, the experts that get its tokens more often than others, those with the largest ratio first."""
    table = run.table(PATTERNS)
    found = table[(table["q"] <= SIGNIFICANT) & (table["log_ratio"] > 0)]
    found = found.sort_values("log_ratio", ascending=False, kind="stable").groupby("pattern", sort=False).head(EACH)
    found = found.sort_values("pattern", kind="stable")
    columns: dict[str, Iterable[Cell]] = {
        "pattern": map(visible, found["pattern"]),
        "expert": [f"L{row.layer}.e{row.expert}" for row in found.itertuples()],
        "its tokens": map(number, found["tokens"]),
        "sent to it": percents(found["share"]),
        "of other tokens": percents(found["elsewhere"]),
        "log2 ratio": column(found["log_ratio"]),
    }
    return of_columns("experts of patterns", columns, {"pattern", "expert"})


def _tables(run: Run) -> list[TableBlock]:
    if not _has_experts(run):
        return [TableBlock(text="The model has no experts.")]
    folded = [("All experts", data_table(run, EXPERTS))]
    return [
        TableBlock("experts-of-patterns", "Experts of patterns", note(__package__, "patterns"), _patterns(run), folded)
    ]


def _numbers(run: Run) -> dict[str, str]:
    table = run.table(LOAD)
    if not len(table):
        return {}
    never = f"{number(table['never'].sum())} of {number(table['experts'].sum())}"
    return {f"experts that none of {number(table['tokens'].iloc[0])} tokens is sent to": never}


PANEL = Panel(LINES, "effective share of experts", percentages=True)
FIGURE = replace(figure_of_lines([PANEL], caption(__package__, "load"), (PATTERNS,)), applies=_has_experts)
SECTION = Section({LOAD: FIGURE}, _numbers, after=_tables)
