"""Measures the roles of memories, a layer at a time, and sums them up.

Their weights are compared with each other: cosines of what a memory reads and writes, beside those of permuted memories. The types of
memories follow from them. Of the head, two questions are asked: which directions of the residual stream it ignores, and which one is that
of frequent tokens. Beside them stand their trigger examples: whether their tokens are at an end of the value, and the signs of gates.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.activations.trigger_file import NONE, Triggers, tokens_seen
from ffkv.base.files.tables import frame
from ffkv.base.multiple_tests import SIGNIFICANT, q_values
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.given import Given
from ffkv.branches.roles import tables
from ffkv.branches.roles.settings import Roles
from ffkv.branches.roles.tables import ATYPICAL, READOUT, TYPES
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus
from ffkv.model.anatomy import Anatomy
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.head.head import Head
from ffkv.model.keys_and_values import factors

PERMUTATIONS = 20  # so that the smallest p-value is below 0.05 of a layer's memories
BAND = (0.025, 0.975)  # of permuted memories
PROBES = 64  # vectors that the head reads at a time
TOKENS = 4096  # that are multiplied at a time: their products are added in float64
TRIED = 4  # random vectors that tell whether the head is a matrix on directions
PROPORTIONAL = 0.9999  # least cosine between what the head and the matrix give to them
NOTHING = 1e-5  # of the mean eigenvalue of WᵀW: a direction below it writes nothing but rounding


class Cosines(NamedTuple):
    """Cosines of two vectors of each memory of a layer."""

    own: np.ndarray  # float32 [memory]; NaN where a vector is not known or has no length
    p: np.ndarray  # two-sided p-value among permuted memories [memory]; NaN where there is none
    q: np.ndarray  # adjusted for the memories of the layer (Benjamini-Hochberg)
    null_mean: float  # of permuted memories
    null_low: float  # lower end of their middle 95 %
    null_high: float


def compare(a: Tensor, b: Tensor, generator: np.random.Generator) -> Cosines:
    """Compares two vectors of each memory, a_i and b_i [memory, d], with pairs of different memories, a_i and b_j.

    The memories are put into a random order. Each a_i meets the b_j of the next 20 memories of this order, or of all others
    if there are fewer. These cosines of all memories together are the null: the p-value is twice the smaller share of
    them at or beyond the own cosine, with the own one among them.
    """
    a, b = (vectors / vectors.norm(dim=1, keepdim=True) for vectors in (a, b))
    own = (a * b).sum(1).numpy()
    p, q = (np.full(len(own), np.nan) for _ in range(2))
    known = np.flatnonzero(np.isfinite(own))
    if len(known) < 2:
        return Cosines(own, p, q, *[np.nan] * 3)
    order = torch.from_numpy(generator.permutation(known))
    a, b = a[order], torch.cat([b[order]] * 2)
    shifts = range(1, min(PERMUTATIONS, len(known) - 1) + 1)
    null = torch.cat([torch.linalg.vecdot(a, b[shift : shift + len(a)]) for shift in shifts]).sort().values.numpy()
    below = np.searchsorted(null, own[known], side="right")
    above = len(null) - np.searchsorted(null, own[known])
    p[known] = np.minimum(1, 2 * (1 + np.minimum(below, above)) / (1 + len(null)))
    q[known] = q_values(p[known], len(known))
    return Cosines(own, p, q, float(null.mean()), *np.quantile(null, BAND).tolist())


def name_types(threshold: float, key_value: np.ndarray, gate_value: np.ndarray, gate_up: np.ndarray) -> np.ndarray:
    """Names the type of each memory [memory] by its three cosines [memory] (Gerstner and Schütze 2025, section 3).

    A cosine counts as 1 above the threshold, as -1 below its negative, else as 0. Without a gate, the cosine of key and value
    alone decides. "" where the cosines that decide are not known.
    """
    cosines = (key_value, gate_value, gate_up)
    kv, gv, gu = (np.where(np.abs(cosine) > threshold, np.sign(cosine), 0) for cosine in cosines)
    gated = np.isfinite(gate_value)
    enriching, conditional, proportional, orthogonal, conditionally_depleting, depleting = TYPES
    along = [kv > 0, kv < 0]
    typed = np.select(
        [*(side & ((gv != 0) | ~gated) for side in along), *along, gated & (gv != 0)],
        [enriching, depleting, conditional, conditionally_depleting, proportional],
        orthogonal,
    ).astype(object)
    atypical = gated & (gu != kv * gv) & ((kv != 0) | (gv != 0))
    typed[atypical] = ATYPICAL + typed[atypical]
    typed[~np.isfinite(key_value)] = ""
    return typed


class Readout(NamedTuple):
    """The head as a matrix on directions, centred over the vocabulary: W [vocabulary, d], up to a factor."""

    ignored: Tensor  # an orthonormal basis of the directions that W writes the least for [d, direction]
    gram: Tensor  # WᵀW [d, d]
    unigram: Tensor  # Wᵀf [d], of the centred log-frequencies f of the tokens
    length: float  # of f
    centres: bool  # whether the head takes the mean off a vector first, as LayerNorm does


def read_matrix(head: Head, width: int, layer: int) -> Tensor | None:
    """Returns what each token's logit reads of a direction, up to a factor that all directions share [d, vocabulary].

    The head reads the unit vectors. None if it is no matrix on directions: what it gives to some random vectors is then not
    in proportion to their products with the matrix.
    """
    zero = head.uncapped(torch.zeros(1, width), layer)
    units = width**0.5 * torch.eye(width)
    matrix = torch.cat([head.uncapped(some, layer) - zero for some in units.split(PROBES)])
    vectors = torch.randn(TRIED, width, generator=torch.Generator().manual_seed(0))
    read = head.uncapped(vectors, layer) - zero
    cosines = torch.cosine_similarity(read.double(), (vectors @ matrix).double())
    return matrix if bool((cosines > PROPORTIONAL).all()) else None


def ignores_mean(head: Head, width: int, layer: int) -> bool:
    """Tells whether the head gives the same logits to a vector and to one with another mean, as after a LayerNorm."""
    vectors = torch.randn(TRIED, width, generator=torch.Generator().manual_seed(0))
    return torch.allclose(head.logits(vectors, layer), head.logits(vectors + 1, layer), rtol=1e-3, atol=1e-3)


def make_readout(matrix: Tensor, counts: np.ndarray, share: float, centres: bool) -> Readout:
    """Makes the readout of the matrix of `read_matrix`, which is centred in place.

    `matrix`: what each token's logit reads [d, vocabulary]. `counts`: how often each token occurs [vocabulary]. `share`: of the
    d directions, what counts as ignored; at least one does, and all that W writes nothing for. `centres`: see `Readout`; the
    mean is then no direction.
    """
    matrix -= matrix.mean(1, keepdim=True)
    width = len(matrix)
    gram = torch.zeros(width, width, dtype=torch.float64)
    for some in matrix.split(TOKENS, 1):
        gram += some @ some.T
    mean = gram.trace() / width if centres else 0  # puts the mean behind all other directions
    eigenvalues, directions = torch.linalg.eigh(gram + mean)
    nothing = int((eigenvalues < NOTHING * gram.trace() / width).sum())
    ignored = directions[:, : max(1, round(share * width), nothing)]
    frequency = np.log(counts + 1.0)
    f = torch.from_numpy(frequency - frequency.mean())
    unigram = matrix @ f.float()
    return Readout(ignored.float(), gram.float(), unigram, float(f.norm()), centres)


def measure(readout: Readout | None, values: Tensor) -> dict[str, np.ndarray]:
    """Measures values [memory, d] against a readout, if there is one.

    Returns, each [memory] in float32, NaN where a value or what it writes is zero: `ignored_share`, the share of the squared
    length in ignored directions; `unigram_cosine`, the cosine with Wᵀf; `unigram_correlation`, the correlation over the
    vocabulary of Wv with f.
    """
    if readout is None:
        return {column.name: np.full(len(values), np.nan, np.float32) for column in READOUT}
    v = values - values.mean(1, keepdim=True) if readout.centres else values
    squared, along = v.square().sum(1), v @ readout.unigram
    written = ((v @ readout.gram) * v).sum(1).clamp(min=0).sqrt()
    found = (
        (v @ readout.ignored).square().sum(1) / squared,
        along / (squared.sqrt() * readout.unigram.norm()),
        along / (written * readout.length),
    )
    return {column.name: numbers.numpy() for column, numbers in zip(READOUT, found, strict=True)}


SHARP = 10  # kurtosis of the logits of a value that promotes or demotes few tokens (Gurnee et al. 2024)
QUANTILES = {"low": 0.025, "q1": 0.25, "median": 0.5, "q3": 0.75, "high": 0.975}
# Of each case: whether the coefficient is positive, and the sign of the gate. The other factor has the product of the signs.
SIGNS = dict(zip(tables.CASES, ((True, 1), (True, -1), (False, -1), (False, 1)), strict=True))


def measure_roles(given: Given, settings: Roles = Roles(), seed: int = 0) -> tuple[pd.DataFrame, ...]:
    """Measures what the weights of memories say of their roles, for a group of layers (docs/roles.md).

    The weights are read on the CPU, in float32. No text is read but that of trigger examples. `seed`: of the permutations.
    Returns the tables `BY_MEMORY`, `BY_LAYER`, `TYPES_BY_LAYER` and `SIGN_CASES`.
    """
    loaded = given.model(device="cpu")
    head = given.head(given.projections.attributes["projection"], "cpu")
    readout_of = _readouts(head, loaded.anatomy, given.train, settings)
    stream = functools.partial(random_stream, seed, Purpose.PERMUTED_ROLES)
    parts = [
        _measure_layer(given, loaded, layer, readout_of(layer), settings, stream(layer))
        for layer in given.each_layer("roles")
    ]
    described = (tables.BY_MEMORY, tables.BY_LAYER, tables.TYPES_BY_LAYER, tables.SIGN_CASES)
    of_tables = zip(*parts, strict=True) if parts else ([], [], [], [])
    return tuple(frame(table, own, given.train_identity) for table, own in zip(described, of_tables, strict=True))


def _measure_layer(
    given: Given, loaded: LoadedModel, layer: int, readout: Readout | None, settings: Roles, stream: np.random.Generator
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Returns the rows of one layer of all four tables."""
    corpus, predicted = given.train, given.projections
    examples, v = given.triggers_of(layer), torch.from_numpy(given.values_of(range(layer, layer + 1)).value)
    anatomy, part = loaded.anatomy, predicted.layer == layer
    key, gate = factors(loaded.model, anatomy.layers[layer], anatomy.width)
    pairs = zip(tables.COSINES, ((key, v), (gate, v), (gate, key)), strict=True)
    cosines = {name: compare(*pair, stream) for name, pair in pairs}
    ends = predicted.top_token[part, : settings.tokens], predicted.bottom_token[part, : settings.tokens]
    seen, cases = tokens_seen(examples, np.asarray(corpus.tokens), corpus.offsets), sign_cases(examples)
    columns = {
        "layer": layer,
        "memory": np.arange(len(v)),
        **{f"{name}_{end}": each for name, found in cosines.items() for end, each in zip(("cosine", "p", "q"), found)},
        "role": name_types(settings.threshold, *(found.own for found in cosines.values())),
        **measure(readout, v),
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


def _readouts(head: Head, anatomy: Anatomy, corpus: Corpus, settings: Roles) -> Callable[[int], Readout | None]:
    """Returns a function that gives the readout of a layer's vectors: the same one of all but the layers of post-norm blocks."""
    counts = CompetingPrefixes(corpus, False).count_next_tokens(head.vocabulary)

    @functools.cache
    def of_head(layer: int) -> Readout | None:
        matrix = read_matrix(head, anatomy.width, layer)
        if matrix is None:
            return None
        return make_readout(matrix, counts, settings.ignored, ignores_mean(head, anatomy.width, layer))

    return lambda layer: of_head(layer if anatomy.layers[layer].post_norm else len(anatomy.layers) - 1)


def name_outputs(skewness: np.ndarray, kurtosis: np.ndarray) -> np.ndarray:
    """Names what values do to the logits [memory] (Gurnee et al. 2024): a sharp top, a sharp bottom, or neither."""
    sharp = kurtosis > SHARP
    named = np.select([sharp & (skewness > 0), sharp & (skewness < 0)], ["prediction", "suppression"], "other")
    return np.where(np.isfinite(kurtosis), named, "").astype(object)


def summarize_columns(
    table: pd.DataFrame, layer: int, cosines: Mapping[str, Cosines], chance: Mapping[str, float]
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
