"""What is specific to a memory: its effect beside those of its controls."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ffkv.base.files.columns import REACHES
from ffkv.base.multiple_tests import q_values
from ffkv.branches.intervention.tables import DIRECTIONS, MEMORIES, OWN, PLACEBO, SIMILAR
from ffkv.model.effects.controls import permutation_p

if TYPE_CHECKING:
    from ffkv.branches.intervention.measure import UnitResults


def compare_with_controls(unit: "UnitResults") -> list[dict]:
    """Returns the effects of the removal (c = 0) of one unit over its prefixes: rows of `BY_MEMORY` without q-values.

    What was not measured is NaN.
    """
    rows = []
    for reach in REACHES:
        of_reach = [row for row in unit.rows if row["reach"] == reach and row["scale"] == 0]
        removed = pd.DataFrame([row for row in of_reach if row["source"] == OWN])
        placebo = [row["top"] for row in of_reach if row["source"] == PLACEBO]
        first = removed.iloc[0]
        own = float(removed["top"].mean())
        # Each control on the same prefixes. A layer whose other values are all 0 has none.
        by_control = np.mean(unit.controls.get((reach, MEMORIES), [[]]), axis=0)
        others = float(by_control.mean()) if len(by_control) else np.nan
        similar = [each.mean() for each in unit.controls.get((reach, SIMILAR), [])]
        directions = unit.controls.get((reach, DIRECTIONS))
        rows.append(
            {name: first[name] for name in ("layer", "memory", "side", "reach")}
            | {"prefixes": len(removed), "silent_prefixes": len(placebo), "similar_prefixes": len(similar)}
            | {name: float(removed[name].mean()) for name in ("coefficient", "size")}
            | {
                "own": own,
                "random_memories": others,
                "random_directions": float(np.mean(directions)) if directions else np.nan,
                "similar_size": float(np.mean(similar)) if similar else np.nan,
                "placebo": float(np.mean(placebo)) if placebo else np.nan,
                "other_tokens": float(np.mean(unit.other[reach])),
                "specific": own - others,
                "p_value": permutation_p(own, by_control),
            }
            | {name: float(removed[name].mean()) for name in ("next", "divergence", "changed")}
        )
    return rows


def add_q_values(by_memory: pd.DataFrame) -> pd.DataFrame:
    """Adds q_value: p-values adjusted for all memories of the layer and the reach (Benjamini-Hochberg)."""
    adjusted = by_memory.groupby(["layer", "reach"])["p_value"].transform(lambda p: q_values(p.to_numpy(), len(p)))
    return by_memory.assign(q_value=adjusted)
