"""Answers from the files of runs, without a model: the run, its verdicts, a search, a memory, two runs."""

from typing import Any

import pandas as pd

import ffkv
import ffkv_comparison
from ffkv.base.errors import UserError
from ffkv.base.settings import Comparison
from ffkv.run.results.run import Run
from ffkv.run.results.run_files import unknown
from ffkv.run.results.search import Search
from ffkv_agents.written import Answer

FACTS = ("checkpoint", "architecture", "activation", "weights", "parameters", "vocabulary", "width", "context")
SHOWN = ["name", "top_token", "top_probability", "agrees", "firing_rate", "maximum_coefficient", "contribution"]
OF_ALL = {"low_5_percent": 0.05, "median": 0.5, "high_5_percent": 0.95}  # quantiles


def describe_run(run: Run, asked: Any) -> Answer:
    """Says what a run is, and how its layers agree beside permuted keys."""
    corpus, settings, table = run.files.corpora["train"], run.settings, run.table("figure_4_agreement")
    names = {"trigger": ["agreement", "low", "high"], "permuted": ["chance", "chance_low", "chance_high"]}
    layers = run.layers.drop(columns="agreement")
    for source, columns in names.items():
        own = table[table["source"] == source].set_index("layer")[["rate", "low", "high"]]
        layers = layers.join(own.set_axis(columns, axis=1), on="layer")
    facts = {name: getattr(run.anatomy, name) for name in FACTS}
    facts |= {"memories": run.anatomy.layer_offset[-1], "proof": run.anatomy.errors, "control": settings.report.control}
    facts |= {"corpus": settings.corpus.title or settings.corpus.dataset, "train_tokens": int(corpus["tokens"])}
    return facts | {"behaviours": [*settings.behaviours], "not_measured": run.unmeasured}, {"layers": layers}


def verdicts(run: Run, asked: Any) -> Answer:
    """Says which claims of the paper hold."""
    return {}, {"claims": ffkv.verdicts(run)}


def search_memories(run: Run, asked: Any) -> Answer:
    """Finds memories, beside the quantiles of all memories."""
    found, of_all = run.memories(**{name: getattr(asked, name) for name in Search.model_fields}), run.memories()
    columns = [*SHOWN, *filter(None, [asked.sort]), *(asked.between or {}), *found.columns.difference(of_all.columns)]
    rows = found[[*dict.fromkeys(columns)]]
    numbers = of_all[[name for name in rows if name in of_all]].select_dtypes("number")
    quantiles = numbers.quantile([*OF_ALL.values()]).T.set_axis([*OF_ALL], axis=1).reset_index(names="quantity")
    return {"found": len(found), "of_memories": len(of_all)}, {"memories": rows, "of_all": quantiles}


def memory(run: Run, asked: Any) -> Answer:
    """Shows one memory, beside the memories of its layer."""
    one = run.memory(asked.memory)
    patterns = one.patterns if one.sampled else one.seek_patterns() if asked.seek_patterns else one.sought
    of_layer = run.memories(layer=one.layer).select_dtypes("number").drop(columns=["layer", "memory"])
    own = of_layer.iloc[one.memory]
    numbers = pd.DataFrame({"value": own, "layer_median": of_layer.median(), "below": (of_layer < own).mean()})
    count = min(asked.tokens, run.settings.values.top_tokens, run.anatomy.vocabulary)
    facts = {"name": one.name, "unit": one.unit, "patterns_sought": patterns is not None}
    return facts | one.statistics[["top_token", "next_token", "agrees"]].to_dict(), {
        "trigger_examples": one.triggers,
        "promotes": one.promotes(count),
        "patterns": pd.DataFrame() if patterns is None else patterns,
        "effects": one.effects,
        "behaviours": one.behaviours.query("reach != 'direct'"),
        "numbers": numbers.dropna(subset="value").reset_index(names="quantity"),
        "demotes": one.demotes(count),
    }


def compare(run: Run, other: Run, asked: Any) -> Answer:
    """Compares two open runs: claims, or the curves of a figure."""
    if run is other:
        raise UserError(f"{run.name} is compared with itself. Name two open runs, by run and other_run.")
    settings, trusted = Comparison(runs=[run.name, other.name], memories="no"), run.trust_remote_code
    found = ffkv_comparison.compare_runs([run.folder, other.folder], settings, trust_remote_code=trusted)
    figures = [*map(str, found.differences["figure"].unique())]
    facts = {"other_run": other.name, "figures": figures}
    if not asked.figure:
        return facts, {"claims": found.claims}
    if asked.figure not in figures:
        raise unknown("figure that both runs have, called", asked.figure, figures)
    curves, rows = (table[table["figure"] == asked.figure] for table in (found.curves, found.differences))
    values = curves[curves["run"] == other.name][["curve", "x", "value"]]
    return facts, {"differences": rows.merge(values, on=["curve", "x"], how="left")}
