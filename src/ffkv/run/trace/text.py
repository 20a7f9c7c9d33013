"""A trace as text for a terminal."""

from collections.abc import Callable

import pandas as pd

from ffkv.base.terminal import plain
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.text import BLANK, NO_BREAK_SPACE, number, percent, shortened
from ffkv.run.trace.result import POINTS, Trace

LONGEST = 24  # characters of a token that a table shows
SHOWN = 20  # memories of a behaviour, and edges


def as_text(trace: Trace, before: bool = False) -> str:
    """Returns the trace for a person: the prediction, what changes did, and the layers with their memories.

    With changes, layers and memories are those after them, or `before` them.
    """
    shown = trace if before or trace.changed is None else trace.changed
    when = f", {shown.when}" if shown.when else ""
    read = " ".join(
        f"[{_token(row.token)}]" if row.position == trace.position else _token(row.token)
        for row in trace.tokens.itertuples()
    )
    where = "at every token" if trace.everywhere else f"at position {trace.position} only"
    lines = [
        f"Tokens 0 to {len(trace.tokens) - 1}; [position {trace.position}] is the one looked at. {trace.note}",
        f"  {read}",
        "",
    ]
    if trace.effect is None or trace.divergence is None:
        lines += [
            f"The model predicts after position {trace.position}:",
            *_table(trace.final, {"rank": str, "token": _token, "probability": _percent}),
        ]
    else:
        changes = ", ".join(f"{name} x {factor:g}" for name, factor in trace.changes.items())
        lines += [
            f"The model predicts after position {trace.position}, before and after {changes} {where} (KL divergence"
            f" {number(trace.divergence)} nats):",
            *([f"  {trace.without_effect}"] if trace.without_effect else []),
            *_table(trace.effect, {"token": _token, "before": _percent, "after": _percent, "change": number}),
        ]
    tops = {f"top_{point}": _token for point in POINTS}
    norms = {f"norm_{point}": number for point in POINTS}
    rest = shown.remainders.assign(name=shown.remainders["part"], size=shown.remainders["norm"])
    rows = pd.concat([shown.contributions, rest]).sort_values("layer", kind="stable")
    rows = rows.assign(top_token=rows["top_token"].fillna("").astype(str))
    coefficient: dict[str, Callable] = {"coefficient": lambda value: "" if pd.isna(value) else number(value)}
    of_memory: dict[str, Callable] = {"size": number, "share": _percent, "logit": number, "top_token": _token}
    told = f", {trace.told_reading}" if trace.told_reading else ""
    lines += [
        "",
        f"Layers at position {trace.position}{when}{told}; logit: what y adds to the logit of {_token(trace.token)}:",
        *_table(shown.layers, {"layer": str, "case": str, **tops, **norms, "active": number, "logit": number}),
        "",
        f"Contributions{when}: size |m| |v|, share of y, what they add to the logit, and the top token of the value"
        f" alone{told}:",
        *_table(rows, {"layer": str, "name": str, **coefficient, **of_memory}),
        "",
        f"All sums hold up to a relative deviation of {shown.deviation:.1e} (the model's own logits:"
        f" {shown.logits_deviation:.1e}){when}.",
    ]
    if trace.edges is not None and trace.parts is not None:
        measured = ("held", "direct", "total", "total_m")
        lines += [
            "",
            "Strongest edges: how much lower what a memory reads is without another one; directly, with the norm held and anew;"
            " when the model runs again; and its coefficient then:",
            *_table(
                trace.strongest_edges(SHOWN),
                {"source": str, "target": str, "factor": str, **dict.fromkeys(measured, number)},
            ),
            "",
            f"Memories, attention, embedding, biases and constants add up to what {len(trace.parts)} factors read, up to a"
            f" relative deviation of {trace.parts['deviation'].max():.1e}. {trace.edge_notes}".rstrip(),
        ]
    return "\n".join(lines)


def _table(frame: pd.DataFrame, columns: dict[str, Callable]) -> list[str]:
    cells = pd.DataFrame({name: frame[name].map(write) for name, write in columns.items()}, dtype=object)
    with pd.option_context("display.max_colwidth", None, "display.unicode.east_asian_width", True):
        return [f"  {line}" for line in cells.to_string(index=False).splitlines()]


def _percent(share: float) -> str:
    return percent(share).replace(NO_BREAK_SPACE, " ")


def _token(text: str) -> str:
    """Returns a token whose blanks and controls show, in one line, as wide as the terminal shows it."""
    return plain(shortened(text, LONGEST).replace(" ", BLANK)).replace("\n", "\\n").replace("\t", "\\t")


def behaviour_as_text(found: dict[str, pd.DataFrame]) -> str:
    """Returns what `ffkv.behaviour` found, for a person: whether the model has the behaviour, and its memories."""
    its = found["behaviours"].iloc[0]
    memories = found["behaviour_memories"].query("reach == 'total'")
    lines = [f"{number(its['prompts'])} of {number(its['lines'])} prompts ({its['kind']})."]
    if its["kind"] != "lists":
        lines.append(f"The answer has a higher logit than the wrong answer on {percent(its['accuracy'])} of them.")
    if its["explained"]:
        lines.append(f"All memories, patched at the last token, carry {percent(its['by_memories'])} of the behaviour.")
    elif its["kind"] != "lists":
        lines.append("That is below the minimum accuracy: there is nothing to explain.")
    strength, q = ("effect", "effect_q") if its["explained"] else ("estimate", "q_value")
    best = memories.sort_values(strength, key=abs, ascending=False).head(SHOWN)
    best = best.assign(name=[memory_name(row.layer, row.memory) for row in best.itertuples()])
    columns: dict[str, Callable] = {"name": str, "token": _token, strength: number, q: number}
    columns |= {"random_memories": number, "screen_estimate": number} if its["explained"] else {"contrast": number}
    return "\n".join([*lines, "", *_table(best, columns)])
