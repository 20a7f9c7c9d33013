"""Sums up the roles of the memories of a layer."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import Triggers
from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.branches.roles.cosines import Cosines
from ffkv.branches.roles.examples import SIGNS, is_case, side_of
from ffkv.branches.roles.tables import ALL_TYPES, BY_LAYER, SIGN_CASES, SUMMARIZED, TYPES_BY_LAYER
from ffkv.corpus.corpus_file import Corpus

QUANTILES = {"low": 0.025, "q1": 0.25, "median": 0.5, "q3": 0.75, "high": 0.975}


def summarize_columns(
    table: pd.DataFrame, layer: int, cosines: Mapping[str, Cosines], chance: Mapping[str, float]
) -> pd.DataFrame:
    """Returns the rows of `BY_LAYER` of a layer, from its rows of `BY_MEMORY`.

    `cosines`: by the names in `COSINES`, with their null. `chance`: what is expected of other columns.
    """
    rows = []
    for name in SUMMARIZED:
        known = table[name].dropna().to_numpy(float)
        row = {"layer": layer, "column": name, "memories": len(known), "mean": known.mean() if len(known) else np.nan}
        row |= {end: np.quantile(known, q) if len(known) else np.nan for end, q in QUANTILES.items()}
        row |= dict.fromkeys(("null_low", "null_high", "significant"), np.nan) | {"null_mean": chance.get(name, np.nan)}
        if found := cosines.get(name.removesuffix("_cosine")):
            row |= {end: getattr(found, end) for end in ("null_mean", "null_low", "null_high")}
            row["significant"] = np.nan if np.isnan(found.q).all() else int((found.q <= SIGNIFICANT).sum())
        rows.append(row)
    return BY_LAYER.frame(rows)


def count_types(table: pd.DataFrame, layer: int) -> pd.DataFrame:
    """Returns the rows of `TYPES_BY_LAYER` of a layer, of the types that it has."""
    counts = table["role"].value_counts().reindex(ALL_TYPES).dropna()
    found = {"layer": layer, "role": counts.index, "memories": counts, "share": counts / max(len(table), 1)}
    return TYPES_BY_LAYER.frame(pd.DataFrame(found).reset_index(drop=True))


def describe_cases(triggers: Triggers, layer: int, corpus: Corpus, tokens: Sequence[str]) -> pd.DataFrame:
    """Returns the rows of `SIGN_CASES` of a layer; none if no gate has a sign. `triggers`: those of the layer alone."""
    found = {case: is_case(triggers, case) for case in SIGNS}
    total = sum(int(each.sum()) for each in found.values())
    rows = []
    for case, places in found.items() if total else ():
        row = {"layer": layer, "case": case, "examples": int(places.sum()), "share": places.sum() / total}
        row |= {"memories": int(places.any(1).sum()), "memory": -1, "coefficient": np.nan, "text": "", "next_token": ""}
        if places.any():
            side = side_of(triggers, case)
            at = np.unravel_index(np.where(places, np.abs(side.coefficient), -1).argmax(), places.shape)
            row |= {"memory": int(at[0]), "coefficient": float(side.coefficient[at])}
            row["text"] = corpus.prefix_text(int(side.sentence[at]), int(side.position[at]))
            row["next_token"] = tokens[side.next_token[at]]
        rows.append(row)
    return SIGN_CASES.frame(rows)
