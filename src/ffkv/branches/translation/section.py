"""What the page shows and says about translation: figures 4, 5 and 8 to 10 read through the maps, beside the head's reading."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

from ffkv.run.report.curve import Line, Panel
from ffkv.run.report.page_tables import data_table
from ffkv.run.report.section import Figure, Section, TableBlock, caption, figure_of_lines
from ffkv.run.report.verdicts import FLAT, Estimate, Rule, judge
from ffkv.run.report.wording import course, goes, note, rows
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent, rounded
from ffkv.run.results.text import points as in_points

DIFFERENCES, GAIN = "translation_differences", "translated - head"
LABELS = {"translated": "translated", "head": "as the head reads it", "shuffled": "map of shuffled pairs"}
COUNTED = {"keys": "sum", "prefixes": "max"}  # the columns that tell of how many things a figure is
# How captions write the numbers of a column, if not as percentages.
WRITE = {("translated_rank", "median"): rounded, ("translation_fit", "divergence"): rounded}


def _panel(
    line: Mapping[str, Any], axis: str, of_head: str = "", limits: Sequence[float | None] = (0, None), **look: Any
) -> Panel:
    """Returns a panel with a line per reading, and one of permuted keys where the table has them.

    line: the line of the translated reading, with the rows that all readings have.
    of_head: the head's own table, of the run's other sections; "" if the table of `line` has its rows.
    """
    own = Line(**{"label": LABELS["translated"], "of": {}, **line})
    others = replace(own, curve="")
    lines = [
        replace(other, label=label, of={"reading": reading, **own.of})
        for (reading, label), other in zip(LABELS.items(), [own, others, others])
    ]
    if of_head:
        of = {"reading" if name == "counted" else name: its for name, its in own.of.items()}
        lines[1] = replace(lines[1], table=of_head, of=of)
    if "source" in own.of:
        permuted = {**lines[0].of, "source": "permuted"}
        lines.append(replace(others, label="translated, keys permuted", of=permuted))
    return Panel(lines, axis, limits=(limits[0], limits[1]), **look)


def _figure(name: str, panels: Sequence[Mapping[str, Any]], told: int = 0) -> Figure:
    """Returns a figure of `figures.toml`. told: the panel of which the first sentence of the caption tells."""
    made = [_panel(**each) for each in panels]

    def told_by(say: Callable[..., str], run: Run, panel: Panel) -> dict[str, str]:
        return {
            reading: say(line.rows(run), line.value, WRITE.get((panel.lines[0].table, line.value), percent))
            for reading, line in zip(LABELS, panel.lines)
        }

    def values(run: Run) -> dict[str, Any]:
        first = made[0].lines[0].rows(run)
        courses = [
            "; ".join(f"{LABELS[reading]}: {said}" for reading, said in told_by(course, run, panel).items())
            for panel in made
        ]
        return {
            "map": note(__package__, "map"),
            "numbers": _numbers(run),
            "courses": courses,
            **{column: number(first[column].agg(how)) for column, how in COUNTED.items() if column in first},
            **told_by(goes, run, made[told]),
        }

    return figure_of_lines(made, caption(__package__, name, values))


def answer(run: Run, control: Run | None = None) -> str:
    """Says whether the lower half's values agree once they are translated, and why (docs/translation.md)."""
    gain, null = _mean(run, GAIN), _mean(run, "translated - shuffled")
    missing = _mean(run, "head", "upper").value - _mean(run, "head").value
    rule = Rule(limit=max(0.0, FLAT * missing))
    verdict = judge(rule, gain, _mean(control, GAIN) if control else None)[0]
    known = {"gain": gain.value, "missing": missing, "null": null.low, "limit": rule.limit, "verdict": verdict}
    within = rule.margins(gain.low, gain.high)[0] <= 0
    return note(__package__, "answer", within=within, untrained=run.anatomy.weights == "random", **known)


def _mean(run: Run, compared: str, half: str = "lower") -> Estimate:
    """Returns a mean over the memories of a half, and its interval."""
    row = rows(run.table(DIFFERENCES), half=half, compared=compared).iloc[0]
    return Estimate(row["mean"], row["low"], row["high"])


def _numbers(run: Run) -> dict[str, str]:
    """Returns what the answer is about, by what it is; nothing of a run whose control was made without it."""
    if DIFFERENCES not in run.tables:
        return {}
    translated, head, gain = (_mean(run, name) for name in ("translated", "head", GAIN))
    return {
        "values of the lower half of the layers that agree, above permuted keys, translated": percent(translated.value),
        "the same, as the head reads them": percent(head.value),
        "the difference (95 % interval)": f"{in_points(gain.value)} ({in_points(gain.low)} to {in_points(gain.high)})",
    }


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns whether lower layers' values agree once they are translated."""
    other = control if control is not None and DIFFERENCES in control.tables else None
    untrained = other if other and other.anatomy.weights == "random" else None
    return [f"Do values of the lower half of the layers agree once they are translated? {answer(run, untrained)}"]


def _tables(run: Run) -> list[TableBlock]:
    folded = [("Agreement above permuted keys, by half of the layers", data_table(run, DIFFERENCES))]
    return [
        TableBlock("translation-tables", "Differences of readings", "Defined in docs/translation.md.", None, folded)
    ]


FIGURES = tomllib.loads(files(__package__).joinpath("figures.toml").read_text(encoding="utf-8"))
SECTION = Section(
    {name: _figure(name, **its) for name, its in FIGURES.items()}, _numbers, after=_tables, summary=summarize
)
