"""Answers for which the model of a run is asked: a prompt, with memories off or scaled; its graph; a behaviour."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import ffkv
from ffkv.base.errors import UserError
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run import Run
from ffkv.run.results.run_files import unknown
from ffkv.run.trace.settings import GraphOptions, TraceOptions
from ffkv_agents.written import Answer

FACTS = ("told", "note", "answer", "wrong", "probability", "reached")  # of a graph
SPREAD = {f"{name}_{how}": (name, how) for name in ("kept", "patched") for how in ("mean", "min", "max")}
BEHAVIOURS = ("behaviours", "behaviour_memories", "behaviour_sets")


def trace(run: Run, asked: Any) -> Answer:
    """Traces a prompt, beside the same changes of random memories."""
    found = ffkv.trace(run, asked.prompt, **{name: getattr(asked, name) for name in TraceOptions.model_fields})
    rest = found.remainders.query("part == 'other memories'").set_index("layer")["logit"]
    strongest = found.strongest(asked.memories)
    tables = {"predicted": found.final, "memories": strongest.assign(others=strongest["layer"].map(rest))}
    facts = {name: getattr(found, name) for name in ("note", "token", "position", "deviation")}
    if found.effect is not None:
        controls = [_control(run, asked, found, draw) for draw in range(asked.controls)]
        facts |= {"divergence": found.divergence, "without_effect": found.without_effect}
        tables = {"effect": found.effect, "controls": pd.DataFrame(filter(None, controls)), **tables}
    if found.edges is not None:
        tables["edges"] = found.strongest_edges(asked.edges)
    return facts, {**tables, "layers": found.layers}


def _control(run: Run, asked: Any, found: "ffkv.Trace", draw: int) -> dict[str, Any]:
    """Changes as many random other memories of the same layers, which are not silent there; {} if there are too few."""
    generator, factors = np.random.default_rng([run.settings.seed, draw]), dict[str, float]()
    for layer in dict.fromkeys(run.memory(name).layer for name in found.changes):
        own = [factor for name, factor in found.changes.items() if run.memory(name).layer == layer]
        m = ffkv.coefficients(run, [asked.prompt], f"L{layer}")
        m = m[m.index.get_level_values("position") == found.position]
        others = [name for name in m if name not in found.changes and m[name].ne(0).any()]
        if len(others) < len(own):
            return {}
        factors |= dict(zip(generator.choice(others, len(own), replace=False).tolist(), own, strict=True))
    also = {"everywhere": asked.everywhere, "position": found.position, "token_id": found.token_id}
    effect: Any = ffkv.trace(run, asked.prompt, scale=factors, top=1, memories=0, **also)
    change = dict(zip(effect.effect["token_id"], effect.effect["change"], strict=True))[found.token_id]
    return {"memories": [*factors], "divergence": effect.divergence, "change": change}


def graph(run: Run, asked: Any) -> Answer:
    """Makes the graph of a prompt, beside random sets."""
    found = ffkv.graph(run, asked.prompt, **{name: getattr(asked, name) for name in GraphOptions.model_fields})
    sets = found.sets.groupby("choice", sort=False).agg(sets=("draw", "size"), memories=("memories", "mean"), **SPREAD)
    names = {**found.nodes["name"], -1: "the answer"}
    edges = found.edges.assign(source=found.edges["source"].map(names), target=found.edges["target"].map(names))
    facts = {name: getattr(found, name) for name in FACTS}
    return facts, {"sets": sets.reset_index(), "nodes": found.nodes, "edges": edges}


def behaviour(run: Run, asked: Any) -> Answer:
    """Shows a behaviour of a run, or asks for one; or lists those of the run."""
    names, tables = [*run.settings.behaviours], dict[str, pd.DataFrame]()
    facts: dict[str, Any] = {"measured": names}
    if asked.prompts and asked.name:
        raise UserError("name and prompts exclude each other. Give one of them.")
    if asked.name and asked.name not in names:
        raise unknown("behaviour", asked.name, names or ["none. Ask with prompts of your own"])
    if asked.prompts:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "prompts.jsonl")
            path.write_text("".join(json.dumps(row) + "\n" for row in asked.prompts), encoding="utf-8")
            found = ffkv.behaviour(run, path, candidates=asked.candidates, controls=asked.controls)
        facts, tables = {"told": found.told}, {name: found.tables[name] for name in BEHAVIOURS}
    elif names:
        chosen = [asked.name] if asked.name else names
        wanted = BEHAVIOURS if asked.name else BEHAVIOURS[:1]  # of all behaviours, whether the model has them
        stored = {name: run.table(name) for name in wanted}
        tables = {name: table[table["behaviour"].isin(chosen)] for name, table in stored.items()}
    if "behaviour_memories" in tables:
        rows = tables["behaviour_memories"].query("reach != 'direct'").sort_values("effect", key=abs, ascending=False)
        tables["behaviour_memories"] = rows.assign(name=[*map(memory_name, rows["layer"], rows["memory"])])
        # Where an answer is cut, the largest sets are in it, and all memories.
        tables["behaviour_sets"] = tables["behaviour_sets"].sort_values("size", ascending=False, kind="stable")
    return facts, tables
