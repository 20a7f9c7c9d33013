"""Measures the roles of memories, a layer at a time, and sums them up.

Their weights are compared with each other and with the head (`weights`). Beside them stand their trigger examples: whether their tokens
are at an end of the value, and the signs of gates.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from ffkv.activations.trigger_file import NONE, TriggerExamples, Triggers
from ffkv.base.files.tables import frame
from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.branches.roles import tables, weights
from ffkv.branches.roles.settings import Roles
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import Anatomy
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.head.head import Head
from ffkv.model.keys_and_values import factors

SHARP = 10  # kurtosis of the logits of a value that promotes or demotes few tokens (Gurnee et al. 2024)
QUANTILES = {"low": 0.025, "q1": 0.25, "median": 0.5, "q3": 0.75, "high": 0.975}
# Of each case: whether the coefficient is positive, and the sign of the gate. The other factor has the product of the signs.
SIGNS = dict(zip(tables.CASES, ((True, 1), (True, -1), (False, -1), (False, 1)), strict=True))


def measure_roles(
    given: Given, settings: Roles = Roles(), seed: int = 0
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Measures what the weights of memories say of their roles, for a group of layers (docs/roles.md).

    The weights are read on the CPU, in float32. No text is read but that of trigger examples. `seed`: of the permutations.
    Returns the tables `BY_MEMORY`, `BY_LAYER`, `TYPES_BY_LAYER` and `SIGN_CASES`.
    """
    loaded = given.model("cpu")
    head = given.head(given.projections.attributes["projection"], "cpu")
    readout_of = _readouts(head, loaded.anatomy, given.train, settings)
    parts = [
        _measure_layer(
            given, loaded, layer, readout_of(layer), settings, random_stream(seed, Purpose.PERMUTED_ROLES, layer)
        )
        for layer in given.each_layer("roles")
    ]
    described = (tables.BY_MEMORY, tables.BY_LAYER, tables.TYPES_BY_LAYER, tables.SIGN_CASES)
    frames = zip(*parts, strict=True) if parts else ([], [], [], [])
    by_memory, *by_layer = (
        frame(table, own, given.train_identity) for table, own in zip(described, frames, strict=True)
    )
    return by_memory, *by_layer


def _measure_layer(
    given: Given,
    loaded: LoadedModel,
    layer: int,
    readout: weights.Readout | None,
    settings: Roles,
    stream: np.random.Generator,
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Returns the rows of one layer of all four tables."""
    corpus, predicted = given.train, given.projections
    examples, v = given.triggers_of(layer), torch.from_numpy(given.values_of(range(layer, layer + 1)).value)
    anatomy, part = loaded.anatomy, predicted.layer == layer
    key, gate = factors(loaded.model, anatomy.layers[layer], anatomy.width)
    pairs = zip(tables.COSINES, ((key, v), (gate, v), (gate, key)), strict=True)
    cosines = {name: weights.compare(*pair, stream) for name, pair in pairs}
    ends = predicted.top_token[part, : settings.tokens], predicted.bottom_token[part, : settings.tokens]
    seen, cases = tokens_seen(examples, np.asarray(corpus.tokens), corpus.offsets), sign_cases(examples)
    columns = {
        "layer": layer,
        "memory": np.arange(len(v)),
        **{f"{name}{end}": column for name, found in cosines.items() for end, column in found.columns.items()},
        "role": weights.name_types(settings.threshold, *(found.own for found in cosines.values())),
        **weights.measure(readout, v),
        **{each.name: getattr(predicted, each.name)[part] for each in tables.MOMENTS},
        **shares_in_ends(seen, *ends),
        **(count_cases(cases) if any(each.gated for each in anatomy.layers) else {}),
    }
    columns["output_role"] = name_outputs(columns["logit_skewness"], columns["logit_kurtosis"])
    table = tables.BY_MEMORY.frame(pd.DataFrame(columns))
    order = stream.permutation(len(v))
    permuted = shares_in_ends(seen, *(end[order] for end in ends))
    chance = {name: float(pd.Series(shares).mean()) for name, shares in permuted.items()}
    chance["ignored_share"] = np.nan if readout is None else readout.ignored.shape[1] / anatomy.width
    by_layer = summarize_columns(table, layer, cosines, chance)
    return table, by_layer, count_types(table, layer), describe_cases(cases, layer, corpus, given.token_texts)


def _readouts(head: Head, anatomy: Anatomy, corpus: Corpus, settings: Roles) -> Callable[[int], weights.Readout | None]:
    """Returns a function that gives the readout of a layer's vectors: the same one of all but the layers of post-norm blocks."""
    counts = CompetingPrefixes(corpus, False).count_next_tokens(head.vocabulary)

    @functools.cache
    def of_head(layer: int) -> weights.Readout | None:
        matrix = weights.read_matrix(head, anatomy.width, layer)
        if matrix is None:
            return None
        return weights.make_readout(matrix, counts, settings.ignored, weights.ignores_mean(head, anatomy.width, layer))

    return lambda layer: of_head(layer if anatomy.layers[layer].post_norm else len(anatomy.layers) - 1)


def name_outputs(skewness: np.ndarray, kurtosis: np.ndarray) -> np.ndarray:
    """Names what values do to the logits [memory] (Gurnee et al. 2024): a sharp top, a sharp bottom, or neither."""
    sharp = kurtosis > SHARP
    named = np.select([sharp & (skewness > 0), sharp & (skewness < 0)], ["prediction", "suppression"], "other")
    return np.where(np.isfinite(kurtosis), named, "").astype(object)


def summarize_columns(
    table: pd.DataFrame, layer: int, cosines: Mapping[str, weights.Cosines], chance: Mapping[str, float]
) -> pd.DataFrame:
    """Returns the rows of `BY_LAYER` of a layer, from its rows of `BY_MEMORY`.

    `cosines`: by the names in `COSINES`, with their null. `chance`: what is expected of other columns.
    """
    rows = []
    for name in tables.SUMMARIZED:
        known = table[name].dropna().to_numpy(float)
        row = {"layer": layer, "column": name, "memories": len(known), "mean": known.mean() if len(known) else np.nan}
        row |= {end: np.quantile(known, q) if len(known) else np.nan for end, q in QUANTILES.items()}
        row |= dict.fromkeys(("null_low", "null_high", "significant"), np.nan) | {"null_mean": chance.get(name, np.nan)}
        if found := cosines.get(name.removesuffix("_cosine")):
            row |= {end: getattr(found, end) for end in ("null_mean", "null_low", "null_high")}
            row["significant"] = np.nan if np.isnan(found.q).all() else int((found.q <= SIGNIFICANT).sum())
        rows.append(row)
    return tables.BY_LAYER.frame(rows)


def count_types(table: pd.DataFrame, layer: int) -> pd.DataFrame:
    """Returns the rows of `TYPES_BY_LAYER` of a layer, of the types that it has."""
    counts = table["role"].value_counts().reindex(tables.ALL_TYPES).dropna()
    found = {"layer": layer, "role": counts.index, "memories": counts, "share": counts / max(len(table), 1)}
    return tables.TYPES_BY_LAYER.frame(pd.DataFrame(found).reset_index(drop=True))


def share_in(tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the share of each memory's tokens that are among the tokens of its own `ends`.

    `tokens`: [memory, rank], -1 where there is none. `ends`: [memory, token]. Returns float32 [memory], NaN without tokens.
    """
    hits = np.zeros(tokens.shape, bool)
    for column in ends.T:
        hits |= tokens == column[:, None]
    there = tokens != NONE
    count = there.sum(1)
    return np.where(count, (hits & there).sum(1) / np.maximum(count, 1), np.nan).astype(np.float32)


def tokens_seen(examples: TriggerExamples, tokens: np.ndarray, offsets: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the tokens of trigger examples [memory, rank]: the `next` one, and the `last` one of the prefix; -1 if there is none.

    `tokens` and `offsets` are those of the train split (`ffkv.corpus.corpus_file.Corpus`).
    """
    there = (examples.sentence != NONE) & (examples.position > 0)
    places = np.where(there, offsets[examples.sentence] + examples.position - 1, 0)
    return {"next": examples.next_token, "last": np.where(there, tokens[places], NONE)}


def shares_in_ends(seen: dict[str, np.ndarray], top: np.ndarray, bottom: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the shares of `tokens_seen` that are among the top and the bottom tokens of values [memory, token], by column."""
    ends = {"top": top, "bottom": bottom}
    return {f"{which}_in_{end}": share_in(seen[which], ends[end]) for which in seen for end in ends}


def sign_cases(triggers: Triggers) -> dict[str, tuple[Any, np.ndarray]]:
    """Returns of each sign case the trigger examples with its sign of the coefficient, and which are of the case [memory, rank].

    These examples are None if the run has none of the sign.
    """
    found: dict[str, tuple[Any, np.ndarray]] = {}
    for case, (positive, gate) in SIGNS.items():
        side = triggers if positive else triggers.negative
        found[case] = side, np.zeros_like(triggers.gate, bool) if side is None else side.gate == gate
    return found


def count_cases(cases: Mapping[str, tuple[Any, np.ndarray]]) -> dict[str, np.ndarray]:
    """Counts the trigger examples of each of `sign_cases`, and finds the first one of each: columns of `BY_MEMORY`."""
    columns: dict[str, np.ndarray] = {}
    for case, (_, places) in cases.items():
        columns[case] = places.sum(1).astype(np.int32)
        columns[f"first_{case}"] = np.where(places.any(1), places.argmax(1), NONE).astype(np.int32)
    return columns


def describe_cases(
    cases: Mapping[str, tuple[Any, np.ndarray]], layer: int, corpus: Corpus, tokens: Sequence[str]
) -> pd.DataFrame:
    """Returns the rows of `SIGN_CASES` of a layer; none if no gate has a sign. `cases`: `sign_cases` of the layer alone."""
    total = sum(int(places.sum()) for _, places in cases.values())
    rows = []
    for case, (side, places) in cases.items() if total else ():
        row = {"layer": layer, "case": case, "examples": int(places.sum()), "share": places.sum() / total}
        row |= {"memories": int(places.any(1).sum()), "memory": -1, "coefficient": np.nan, "text": "", "next_token": ""}
        if places.any():
            at = np.unravel_index(np.where(places, np.abs(side.coefficient), -1).argmax(), places.shape)
            row |= {"memory": int(at[0]), "coefficient": float(side.coefficient[at])}
            row["text"] = corpus.prefix_text(int(side.sentence[at]), int(side.position[at]))
            row["next_token"] = tokens[side.next_token[at]]
        rows.append(row)
    return tables.SIGN_CASES.frame(rows)
