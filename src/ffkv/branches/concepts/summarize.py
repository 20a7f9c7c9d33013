"""Sums up the tasks of all concepts: what separates their labels, and curves over tasks."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ffkv.base.intervals import Z_95
from ffkv.base.multiple_tests import q_values
from ffkv.branches.concepts.tables import CURVES, FEATURES, LAYERS, MIXTURE, NULLS, OF_MEMORIES, SHOWN, TASKS
from ffkv.branches.given import Given


def summarize_concepts(given: Given) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all concepts for the report's section of concepts."""
    names = ("by_task", "by_layer", "best", "memories")
    by_task, by_layer, best, memories = (given.table(name, given.identity) for name in names)
    nulls = correct(best)
    made = {
        TASKS: summarize_tasks(by_task, by_layer, nulls),
        CURVES: summarize_curves(by_layer),
        LAYERS: by_layer,
        NULLS: nulls,
        OF_MEMORIES: memories[memories["rank"] < SHOWN].reset_index(drop=True),
        MIXTURE: summarize_mixture(memories, [layer.memories for layer in given.anatomy.layers]),
    }
    return {table.name: table.frame(frame) for table, frame in made.items()}


def summarize_mixture(memories: pd.DataFrame, counts: Sequence[int]) -> pd.DataFrame:
    """Counts how many tasks each memory separates alone, by layer. `counts`: memories per layer."""
    alone = memories[memories["alone"]].sort_values("auc", ascending=False, kind="stable")
    # `first` takes the first one that is known.
    alone = alone.assign(examples=alone["examples"].where(alone["auc"] > 0.5))
    of_memory = alone.groupby(["layer", "memory"]).agg(tasks=("task", "size"), examples=("examples", "first"))
    rows = []
    for layer, count in enumerate(counts):
        own = of_memory[of_memory.index.get_level_values("layer") == layer]
        shares = {"any": len(own) / count, "several": (own["tasks"] > 1).sum() / count}
        rows.append({"layer": layer, "memories": count, **shares, **own[["tasks", "examples"]].mean().to_dict()})
    return pd.DataFrame(rows)


def correct(best: pd.DataFrame) -> pd.DataFrame:
    """Adds q-values over the rows of a kind of features and of a choice: over tasks and layers; of the best of all layers, over tasks."""
    families = [best["features"], best["choice"], best["layer"] < 0]
    q = best.groupby(families, sort=False)["p"].transform(lambda p: q_values(p.to_numpy(), len(p)))
    return best.assign(q=q.astype(float))[NULLS.names]


def summarize_curves(by_layer: pd.DataFrame) -> pd.DataFrame:
    """Takes means over the tasks that have a kind and a number of features, each in its chosen layer.

    Documents of different tasks are drawn independently, so that squares of standard errors add up.
    """
    rows = []
    for (features, size), own in by_layer[by_layer["chosen"]].groupby(["features", "size"], sort=False):
        auc, error = own["auc"].mean(), float(np.sqrt((own["error"] ** 2).sum()) / len(own))
        low, high = np.clip((auc - Z_95 * error, auc + Z_95 * error), 0, 1)
        if len(own) == 1:  # of one task, that of its draws
            low, high = own["low"].iloc[0], own["high"].iloc[0]
        means = {"f1": own["f1"].mean(), "accuracy": own["accuracy"].mean(), "tasks": len(own)}
        rows.append({"features": features, "size": size, "auc": auc, "low": low, "high": high, "error": error, **means})
    rows.sort(key=lambda row: (FEATURES.choices.index(row["features"]), row["size"]))
    return pd.DataFrame(rows, columns=CURVES.names)


def summarize_tasks(by_task: pd.DataFrame, by_layer: pd.DataFrame, nulls: pd.DataFrame) -> pd.DataFrame:
    """Adds to each task what one memory, the most memories and the whole residual separate, and the best memory of all layers."""
    chosen = by_layer[by_layer["chosen"]].sort_values("size", kind="stable")
    memories = chosen[chosen["features"] == "memories"].groupby("task")["auc"]
    found = pd.DataFrame({"one": memories.first(), "many": memories.last()})
    found["whole"] = chosen[chosen["features"] == "whole"].set_index("task")["auc"]
    top = nulls.query("features == 'memories' and choice == 'ranked' and layer < 0").set_index("task")
    top = top.rename(columns={"in_layer": "best_layer", "feature": "best_memory"}).drop(columns=["features", "choice"])
    return by_task.join(found, "task").join(top, "task")[TASKS.names]
