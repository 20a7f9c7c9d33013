"""A trace as text for a terminal. `trace.txt` and `behaviour.txt` are its templates."""

from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import pandas as pd

from ffkv.base.multiple_tests import tell_floor
from ffkv.base.terminal import plain
from ffkv.run.results.indexes import pushed_tokens
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run_files import RunFiles
from ffkv.run.results.text import BLANK, NO_BREAK_SPACE, number, percent, shortened, signed
from ffkv.run.trace.result import POINTS, Trace

LONGEST = 24  # characters of a token that a table shows
SHOWN = 20  # memories of a behaviour, and edges


def as_text(trace: Trace, before: bool = False, layers: bool = False) -> str:
    """Returns the trace for a person: the prediction, what changes did, the strongest memories, and on wish each layer with its own.

    With changes, layers and memories are those after them, or `before` them.
    """
    shown = trace if before or trace.changed is None else trace.changed
    rest = shown.remainders.assign(name=shown.remainders["part"], size=shown.remainders["norm"])
    rows = pd.concat([shown.contributions, rest]).sort_values("layer", kind="stable")
    points = {f"top_{point}": "token" for point in POINTS} | {f"norm_{point}": "number" for point in POINTS}
    return fill(
        "trace/trace.txt",
        trace=trace,
        shown=shown,
        layers=layers,
        most=SHOWN,
        changes=[f"{name} x {factor:g}" for name, factor in trace.changes.items()],
        of_layers={"layer": "text", "case": "text", **points, "active": "number", "logit": "number"},
        rows=rows.assign(pushes=rows["pushes"].fillna("").astype(str)),
    )


def behaviour_as_text(found: Mapping[str, pd.DataFrame], files: RunFiles, controls: int) -> str:
    """Returns what `ffkv.behaviour` found in a run with so many controls, for a person: is there the behaviour, and which memories cause it?"""
    its = found["behaviours"].iloc[0]
    strength, q = ("effect", "effect_q") if its["explained"] else ("estimate", "q_value")
    beside = ("random_memories", "screen_estimate") if its["explained"] else ("contrast",)
    best = found["behaviour_memories"].query("reach == 'total'")
    floor = tell_floor(int(best["effect"].notna().sum()), controls)
    best = best.sort_values(strength, key=abs, ascending=False).head(SHOWN)
    best = best.assign(name=[memory_name(row.layer, row.memory) for row in best.itertuples()])
    best = best.assign(**pushed_tokens(files, best))
    numbers = dict.fromkeys((strength, q, *beside), "number")
    columns = {"name": "text", "coefficient": "number", "pushes": "token", **numbers}
    return fill("trace/behaviour.txt", its=its, floor=floor, best=best, columns=columns).replace(NO_BREAK_SPACE, " ")


def fill(template: str, **values: Any) -> str:
    """Returns a text from a template, named by its room and file."""
    return TEMPLATES.get_template(template).render(values).rstrip("\n")


def _table(frame: pd.DataFrame, columns: Mapping[str, str]) -> str:
    """Returns columns of a table, each with what writes its cells."""
    if frame.empty:
        return "  none"
    cells = pd.DataFrame({name: frame[name].map(WRITE[how]) for name, how in columns.items()}, dtype=object)
    with pd.option_context("display.max_colwidth", None, "display.unicode.east_asian_width", True):
        return "\n".join(f"  {line}" for line in cells.to_string(index=False).splitlines())


def plain_token(text: str) -> str:
    """Returns a token whose blanks and controls show, in one line, as wide as the terminal shows it."""
    return plain(text.replace(" ", BLANK)).replace("\n", "\\n").replace("\t", "\\t")


WRITE: dict[str, Callable] = {
    "text": str,
    "number": number,
    "known": lambda value: "" if pd.isna(value) else number(value),
    "percent": lambda share: percent(share).replace(NO_BREAK_SPACE, " "),
    "token": lambda text: plain_token(shortened(text, LONGEST)),
}
TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("ffkv.run", "."), trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
)
TEMPLATES.filters |= {"number": number, "signed": signed, "percent": percent, "token": WRITE["token"], "table": _table}
TEMPLATES.tests["unknown"] = pd.isna
