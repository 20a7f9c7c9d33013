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
from ffkv.run.results import indexes
from ffkv.run.results.run import Run
from ffkv.run.results.text import number, percent, rounded
from ffkv.run.results.text import points as in_points

DIFFERENCES, READING = "translation_differences", "keys/read_by_layer"
LABELS = {
    "translated": "translated",
    "jacobian": "Jacobian lens",
    "head": "as the head reads it",
    "shuffled": "map of shuffled pairs",
    "rotated": "Jacobian, rotated",
}
NULLS = {"translated": "shuffled", "jacobian": "rotated"}  # of each reading that is no null
HOW = {"translated": "translated", "jacobian": "through the Jacobian lens"}  # values are read
COUNTED = {"keys": "sum", "prefixes": "max"}  # the columns that tell of how many things a figure is
# How captions write the numbers of a column, if not as percentages.
WRITE = {("translated_rank", "median"): rounded, ("translation_fit", "divergence"): rounded}


def _panel(
    line: Mapping[str, Any], axis: str, of_head: str = "", limits: Sequence[float | None] = (0, None), **look: Any
) -> Panel:
    """Returns a panel with a line per reading, and one of permuted keys where the table has them.

    line: the line of a reading, with the rows that all readings have; its curve, without the reading.
    of_head: the head's own table, of the run's other sections; "" if the table of `line` has its rows.
    """
    own = Line(**{"label": "", "of": {}, **line})
    curves = {reading: f"{own.curve}, {how}" for reading, how in HOW.items()}
    lines = {
        reading: replace(own, label=label, of={"reading": reading, **own.of}, curve=curves.get(reading, ""))
        for reading, label in LABELS.items()
    }
    if of_head:
        of = {"reading" if name == "counted" else name: its for name, its in own.of.items()}
        lines["head"] = replace(lines["head"], table=of_head, of=of)
    if "source" in own.of:
        for reading in NULLS:
            permuted = {**lines[reading].of, "source": "permuted"}
            label = f"{LABELS[reading]}, keys permuted"
            lines[label] = replace(lines[reading], label=label, of=permuted, curve="")
    return Panel([*lines.values()], axis, limits=(limits[0], limits[1]), **look)


def _figure(name: str, panels: Sequence[Mapping[str, Any]], told: int = 0) -> Figure:
    """Returns a figure of `figures.toml`. told: the panel of which the first sentence of the caption tells."""
    made = [_panel(**each) for each in panels]

    read = {**HOW, "head": LABELS["head"]}

    def told_by(say: Callable[..., str], run: Run, panel: Panel) -> dict[str, str]:
        return {
            reading: say(found, line.value, WRITE.get((panel.lines[0].table, line.value), percent))
            for reading, line in zip(LABELS, panel.lines)
            if len(found := line.rows(run))
        }

    def values(run: Run) -> dict[str, Any]:
        first = next(found for line in made[0].lines if len(found := line.rows(run)))
        courses = [
            "; ".join(f"{LABELS[reading]}: {said}" for reading, said in told_by(course, run, panel).items())
            for panel in made
        ]
        return {
            "map": note(__package__, "map", maps=maps_of(run)),
            "lower": {HOW[reading]: percent(_mean(run, reading).value) for reading in maps_of(run)},
            "of_head": percent(_mean(run, "head").value) if maps_of(run) else "",
            "courses": courses,
            **{column: number(first[column].agg(how)) for column, how in COUNTED.items() if column in first},
            "ways": {
                read[reading]: said for reading, said in told_by(goes, run, made[told]).items() if reading in read
            },
            "settled": _settled(run) if name == "translation_fit" else None,
        }

    figure = figure_of_lines(made, caption(__package__, name, values))
    some = replace(figure, applies=lambda run: len(run.anatomy.of_stream) < len(run.anatomy.layers))
    return some if name == "translated_composition" else figure  # it has no rows of dictionaries of the residual stream


def _settled(run: Run) -> dict[str, str] | None:
    """Returns what is known of the Jacobian itself; None without one."""
    fit = run.table("translation_fit")
    own = rows(fit, reading="jacobian")
    if own.empty:
        return None
    published = rows(fit, reading="jacobian without offset")["divergence"].to_numpy() < own["divergence"].to_numpy()
    return {
        "texts": number(own["texts"].max()),
        "positions": number(own["positions"].max()),
        "change": percent(own["change"].median()),
        "identity": percent(own["identity_share"].iloc[0]),
        "last": percent(own["identity_share"].iloc[max(0, len(own) - 2)]),
        "published": number(published.sum()),
        "layers": number(len(own)),
    }


def maps_of(run: Run) -> list[str]:
    """Returns the readings of a run that are no nulls, beside the head's."""
    compared = {*run.table(DIFFERENCES)["compared"]} if DIFFERENCES in run.tables else set()
    return [reading for reading in NULLS if reading in compared]


def answer(run: Run, control: Run | None = None, reading: str = "translated") -> str:
    """Says whether the lower half's values agree once they are read through a map, and why (docs/translation.md)."""
    gain, null = _mean(run, f"{reading} - head"), _mean(run, f"{reading} - {NULLS[reading]}")
    missing = _mean(run, "head", "upper").value - _mean(run, "head").value
    rule = Rule(limit=max(0.0, FLAT * missing))
    of_control = _mean(control, f"{reading} - head") if control and reading in maps_of(control) else None
    verdict = judge(rule, gain, of_control)[0]
    known = {"gain": gain.value, "missing": missing, "null": null.low, "limit": rule.limit, "verdict": verdict}
    within = rule.margins(gain.low, gain.high)[0] <= 0
    untrained = run.anatomy.weights == "random"
    return note(__package__, "answer", within=within, untrained=untrained, of_null=LABELS[NULLS[reading]], **known)


def _mean(run: Run, compared: str, half: str = "lower") -> Estimate:
    """Returns a mean over the memories of a half, and its interval."""
    row = rows(run.table(DIFFERENCES), half=half, compared=compared).iloc[0]
    return Estimate(row["mean"], row["low"], row["high"])


def _numbers(run: Run) -> dict[str, str]:
    """Returns what the answers are about, by what it is; nothing of a run whose control was made without it."""
    found = {}
    for reading in maps_of(run):
        gain, read = _mean(run, f"{reading} - head"), HOW[reading]
        agreeing = f"values of the lower half of the layers that agree, above permuted keys, {read}"
        found[agreeing] = percent(_mean(run, reading).value)
        found["the same, as the head reads them"] = percent(_mean(run, "head").value)
        points = "{} ({} to {})".format(*map(in_points, (gain.value, gain.low, gain.high)))
        found[f"the difference from the head's reading, {read} (95 % interval)"] = points
    return found


def summarize(run: Run, control: Run | None = None) -> list[str]:
    """Returns whether lower layers' values agree once they are read through maps, a sentence for each kind of map."""
    other = control if control is not None and DIFFERENCES in control.tables else None
    untrained = other if other and other.anatomy.weights == "random" else None
    question = "Do values of the lower half of the layers agree, read {}? {}"
    return [question.format(HOW[reading], answer(run, untrained, reading)) for reading in maps_of(run)]


def _of_keys(run: Run) -> dict[str, Any]:
    """Returns what the caption has: of each factor in how many layers its AUC is above chance, and how it goes."""
    table = run.table(READING)
    told = {}
    for factor, own in table.groupby("factor"):
        by_reading = own.pivot(index="layer", columns="reading", values="median")
        above = number((by_reading["derivative"] > by_reading["permuted"]).sum())
        told[factor] = {"above": above, "layers": number(len(by_reading))}
        told[factor] |= {name: course(rows(own, reading=name), "median", rounded) for name in {*own["reading"]}}
    return {"factors": told, "keys": number(rows(table, reading="derivative").groupby("factor")["keys"].sum().max())}


def _tables(run: Run) -> list[TableBlock]:
    folded = [("Agreement above permuted keys, by half of the layers", data_table(run, DIFFERENCES))]
    if indexes.has_read_tokens(run.files):
        folded.append(("What keys read, by layer", replace(data_table(run, READING), file=READING)))
    return [
        TableBlock("translation-tables", "Differences of readings", "Defined in docs/translation.md.", None, folded)
    ]


FIGURES = tomllib.loads(files(__package__).joinpath("figures.toml").read_text(encoding="utf-8"))
KEYS_READ = {"derivative": "through the layers below", "identity": "as it is", "permuted": "keys permuted"}
OF_KEYS = [
    Line(
        f"{factor}, {label}",
        READING,
        "median",
        {"factor": factor, "reading": reading},
        bars=("q1", "q3"),
        curve=f"{factor}, median AUC" if reading == "derivative" else "",
        share=False,
    )
    for factor in ("key", "gate")
    for reading, label in KEYS_READ.items()
]
KEYS = figure_of_lines([Panel(OF_KEYS, "AUC of the last token")], caption(__package__, "key_reading", _of_keys))
SECTION = Section(
    {name: _figure(name, **its) for name, its in FIGURES.items()}
    | {"key_reading": replace(KEYS, tables=(), applies=lambda run: indexes.has_read_tokens(run.files))},
    _numbers,
    after=_tables,
    summary=summarize,
)
