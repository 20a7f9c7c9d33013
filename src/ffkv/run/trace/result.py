"""What a trace found, as tables, and as text for a terminal. `trace.txt` and `behaviour.txt` are its templates."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from ffkv.base.errors import UserError
from ffkv.base.multiple_tests import tell_floor
from ffkv.base.terminal import plain
from ffkv.run.results.indexes import pushed_tokens
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run_files import RunFiles
from ffkv.run.results.text import (
    BLANK,
    NO_BREAK_SPACE,
    number,
    percent,
    shortened,
    signed,
    summary,
    table,
    token,
    tokens_table,
    visible,
)

POINTS = ("residual", "ffn", "output")  # r, y and o of a layer


@dataclass(frozen=True, repr=False, eq=False)
class Trace:
    """One prompt through the model of a run. `docs/trace.md` defines every number.

    Layers, memories, positions and ranks count from 0. The tables are about the unchanged model; `changed` has the same
    tables about the model with the changes.

    Attributes:
        run: name of the run.
        reading: how `predictions`, the tokens of `layers` and those of values are read, one of `Run.readings`
            (docs/translation.md). All else is about the model itself.
        text: the prompt, with U+FFFD in place of lone surrogates.
        note: what stands in front of the prompt, in one sentence; for an empty prompt it says what the model reads.
        position: the chosen token, as a position in `tokens`.
        token_id: id of the chosen next token.
        token: its text.
        changes: the memories that were changed, by name, with the factor of their coefficient: {"L3.17": 0.0}.
        everywhere: whether they were changed at every token; else at the chosen token only.
        tokens: what the model read, one row per token. Columns: position, token_id, token (its text in the vocabulary),
            text (what it covers of the prompt), beginning (whether it stands in front of every text, and is no token of the prompt).
        predictions: the top tokens of head(r), head(y) and head(o), for every position and layer, the highest logit
            first. Columns: position, layer, point ("residual", "ffn", "output"), rank, token_id, token, probability.
        final: the model's prediction at the chosen position: its top tokens, and the chosen token. Columns: rank
            (number of tokens with a higher logit), token_id, token, probability.
        layers: the chosen position, one row per layer. Columns: layer, case (of figure 11), top_residual, top_ffn,
            top_output (texts of the tokens with the highest logit), norm_residual, norm_ffn, norm_output (lengths of r,
            y and o), factor (of a norm after the layer; else 1), logit (of the whole FF output, see `contributions`),
            active (number of memories with a positive coefficient), nonzero (number with a coefficient that is not 0),
            listed (number of memories in `contributions`), listed_share (their sizes, as a share of the sizes of all
            memories of the layer).
        contributions: the chosen position, the memories that contribute most to each layer: those with the largest
            size, those that change the chosen token's logit most, and those in `changes`. The largest size comes first.
            Columns: layer, memory, name ("L3.17"), coefficient, size (|m_i| ‖v_i‖ times the factor), share (of the FF
            output, along its own direction: contributions and remainders of a layer add up to 1), logit (how much
            lower the chosen token's logit is if the contribution is taken out of the vector that the head reads),
            pushes (the token that the contribution raises most: the top token of the value if coefficient is positive,
            its bottom token if negative, "" if 0), top_probability (of the top token, by the value alone; NaN if
            coefficient is not positive).
        remainders: the chosen position, what else the FF output of each layer is the sum of. Columns: layer, part
            ("other memories": all that are not listed, together; "bias": b; "error": what a dictionary leaves of y), memories
            (how many), norm (length of their sum), share, logit (both as in `contributions`).
        sums: the largest relative deviations of the sums, one row per layer. Columns: layer, memories (of Σ m_i v_i +
            b, times the factor, from y, at the chosen position), residual (of r + y from o, at all positions; r is the
            block output of a second run of the block without the FF layer).
        logits_deviation: the largest relative deviation of head(last vector) from the model's own logits on this prompt.
        deviation: the largest of all these deviations.
        effect: the model's prediction at the chosen position before and after the changes: the top tokens of both, and
            the chosen token, the most probable one before the changes first. None without changes. Columns: token_id,
            token, before, after (probabilities), change (of the log-probability, nats).
        divergence: KL(p‖p_c) of these two predictions, nats: p before, p_c after. None without changes.
        edges: what memories read of each other at the chosen position, a row per pair of the strongest memories, the earlier
            layer first, and factor that the later one reads; None if no edges were asked for. Columns: source, target (names),
            factor ("key"; "gate" of a gated memory; "router" of an expert), held, direct, total (how much lower the
            pre-activation is without the source: directly, with the norm held and computed anew; and when the model runs again),
            total_m (the same of the coefficient), attention (what of `total` passes through attention, see docs/graphs.md). NaN where
            it cannot be told.
        parts: what the pre-activations of these memories are the sum of, norm held, a row per target and factor; None as
            above. Columns: target, factor, pre_activation, memories, attention, embedding, bias, error, constant, listed_sources (what
            these memories add to `memories`), deviation (of the sum, relative to its largest part).
        edge_notes: says what cannot be told of these edges; "" if everything can.
        changed: the trace of the same prompt, position and next token after the changes. All its sums are of the changed
            coefficients. Its `effect`, `divergence`, `edges`, `parts` and `changed` are None. None without changes.
    Examples:
        >>> trace = ffkv.trace(ffkv.open("results/tiny"), "The function returns")
        >>> trace.layers.columns.tolist()[:3]
        ['layer', 'case', 'top_residual']
        >>> trace.deviation < 1e-4  # how far the parts are from adding up
        True
    """

    run: str
    reading: str
    text: str
    note: str
    position: int
    token_id: int
    token: str
    changes: dict[str, float]
    everywhere: bool
    tokens: pd.DataFrame
    predictions: pd.DataFrame
    final: pd.DataFrame
    layers: pd.DataFrame
    contributions: pd.DataFrame
    remainders: pd.DataFrame
    sums: pd.DataFrame
    logits_deviation: float
    deviation: float
    effect: pd.DataFrame | None = None
    divergence: float | None = None
    edges: pd.DataFrame | None = None
    parts: pd.DataFrame | None = None
    edge_notes: str = ""
    changed: "Trace | None" = None

    def __repr__(self) -> str:
        facts = [f"position {self.position}", self.when, self.told_reading, f"deviation {self.deviation:.0e}"]
        return f"<Trace of {self.text!r} in {self.run}: {', '.join(filter(None, facts))}>"

    @property
    def when(self) -> str:
        """Which model the tables are about: "before the changes" or "after the changes"; "" without changes."""
        return "" if not self.changes else "after the changes" if self.changed is None else "before the changes"

    @property
    def told_reading(self) -> str:
        """How tokens of values and layers are read; "" for the head's own reading."""
        return "" if self.reading == "head" else self.reading

    def strongest(self, count: int = 10) -> pd.DataFrame:
        """Returns the memories of all layers that change the chosen token's logit most, as rows of `contributions`."""
        return largest(self.contributions, self.contributions["logit"], count)

    def strongest_edges(self, count: int = 10) -> pd.DataFrame:
        """Returns the edges with the largest total, as rows of `edges`, or with the largest direct change where the former is NaN.

        Raises:
            UserError: the trace has no edges.
        """
        if self.edges is None:
            raise UserError("This trace has no edges. Ask for those between the 20 strongest memories with edges=20.")
        return largest(self.edges, self.edges["total"].fillna(self.edges["direct"]), count)

    @property
    def without_effect(self) -> str:
        """Says which changed memories have the coefficient 0 at the chosen position: a factor changes nothing there.

        After the changes it says nothing: those that are switched off have the coefficient 0.
        """
        if self.changed is None:
            return ""
        silent = self.contributions["name"].isin(self.changes) & (self.contributions["coefficient"] == 0)
        names = ", ".join(self.contributions.loc[silent, "name"])
        return names and f"The coefficient of {names} is 0 at position {self.position}: a factor changes nothing there."

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, by attribute.

        A table is a list of rows, a row a dictionary. A number that is not finite is None. `changed` is such a dictionary.
        """
        return {item.name: as_plain(getattr(self, item.name)) for item in fields(self)}

    def to_json(self) -> str:
        """Everything as JSON, see `to_dict`."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def _repr_html_(self) -> Markup:
        read = Markup(" ").join(
            Markup("<b>{}</b>" if row.position == self.position else "{}").format(token(row.token))
            for row in self.tokens.itertuples()
        )
        facts = [read, visible(self.note), f"largest deviation of a sum {self.deviation:.1e}"]
        effect = []
        if self.effect is not None and self.divergence is not None:
            changes = ", ".join(f"{name} × {factor:g}" for name, factor in self.changes.items())
            where = "at every token" if self.everywhere else "at the chosen token"
            heading = f"{changes} {where}: KL {number(self.divergence)} nats. {self.without_effect}"
            rows = [
                [token(row.token), percent(row.before), percent(row.after), number(row.change)]
                for row in self.effect.itertuples()
            ]
            effect = [table(heading, ["token", "before", "after", "change of log p"], rows)]
        layers = [
            [str(row.layer), row.case, *map(token, (row.top_residual, row.top_ffn, row.top_output)), number(row.logit)]
            for row in self.layers.itertuples()
        ]
        strongest = [
            [row.name, number(row.coefficient), number(row.size), number(row.logit), token(row.pushes)]
            for row in self.strongest().itertuples()
        ]
        when = f", {self.when}" if self.when else ""
        read_as = f", {self.told_reading}" if self.told_reading else ""
        return summary(
            f"Trace in {self.run}",
            facts,
            *effect,
            tokens_table(f"The model predicts{when}", self.final),
            table(
                f"Strongest memories{when}{read_as}",
                ["memory", "coefficient", "size", "logit", "pushes towards"],
                strongest,
            ),
            table(f"Layers{when}{read_as}", ["layer", "case", "residual", "FF output", "output", "logit"], layers),
        )


def largest(table: pd.DataFrame, values: pd.Series, count: int) -> pd.DataFrame:
    """Returns the rows of a table with the largest sizes of a value [row], the largest first."""
    order = values.abs().sort_values(ascending=False, kind="stable").index[:count]
    return table.loc[order].reset_index(drop=True)


def as_plain(value: Any) -> Any:
    """Returns a table as a list of rows, a trace as a dictionary, and other values as they are; None for numbers that are not finite."""
    if isinstance(value, Trace):
        return value.to_dict()
    if isinstance(value, pd.DataFrame):
        finite = value.astype(object).where(value.replace([math.inf, -math.inf], math.nan).notna(), None)
        return finite.to_dict("records")
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
