"""The same memory in several runs: by its number, or by the correlation of its coefficients over the same text.

By number at other training steps, or on other corpora: how much its trigger examples, its key and its value have in common.
Models of other sizes or seeds share no numbering. There, a high correlation alone does not show that a memory has a partner. The
highest of many correlations is high by chance, and all memories of both models read the same text. So a partner must
stand out: its correlation must be higher than those of all other memories of the other model let expect.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.multiple_tests import q_values
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours.choose import PERSISTENCE
from ffkv.run.results import indexes
from ffkv.run.results.memory import ROUNDING
from ffkv.run.results.run import Run
from ffkv_comparison.comparison_file import Compared, same_prefixes, same_text
from ffkv_comparison.tables import BY_LAYER, BY_MEMORY, KINDS, MATCHES, MEASURES

BY_CHANCE = 256  # memories per layer and permutation that are compared with a permuted one
TINY = np.finfo(np.float32).tiny
BLOCK_BYTES = 2**26  # of the pairs of examples that are compared at a time, a byte each
NONE = -1
FEWEST = 10  # effective number of prefixes: two memories that vary on a few ones easily share some of them
TIED = 1e-6  # correlations that differ by less are equal in float32
OTHERS = 20  # gaps between the next highest correlations, with which the gap below the highest one is compared


class Memories(NamedTuple):
    """What is compared of the memories of a run, in the order of flat arrays."""

    triggers: np.ndarray  # numbers of the prefixes that are trigger examples, then -1 [memory, rank]
    top_token: np.ndarray  # top(v_i) [memory]
    top_probability: np.ndarray  # its probability [memory]
    agrees: np.ndarray  # whether it follows the first trigger example [memory]
    key: np.ndarray | None  # keys of length 1 [memory, d]; None if the model has no plain first matrices
    value: np.ndarray  # values of length 1 [memory, d]


def read_memories(run: Run) -> Memories:
    """Reads the memories of a run. The keys are read from the checkpoint.

    Raises UserError if a file is missing or damaged, or the checkpoint is gone or another one.
    """
    places, table = indexes.trigger_places(run.files), indexes.values_by_memory(run.files)
    with run.files.open_values() as file:
        value = file["value"][...]
    top_token, top_probability, agrees = (table[name].to_numpy() for name in ("top_token", "top_probability", "agrees"))
    return Memories(places.prefix, top_token, top_probability, agrees, read_keys(run), unit(value))


def read_keys(run: Run) -> np.ndarray | None:
    """Returns the keys of all layers, of length 1 [memory, d]; None if a layer has no plain first matrices."""
    from ffkv.model.checkpoint.load import load  # needs torch, which readers of a comparison do not
    from ffkv.model.keys_and_values import keys

    model = load(run.folder / "model", "cpu", trust_remote_code=run.trust_remote_code)
    found = [keys(model.model, layer) for layer in model.anatomy.layers]
    widths = {None if each is None else each.shape[1] for each in found}
    if None in widths or len(widths) > 1:
        return None
    return unit(np.concatenate([each.numpy() for each in found if each is not None]))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors with a length of 1 [memory, d]."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), TINY)


def compare_memories(a: Memories, b: Memories, comparable: bool) -> pd.DataFrame:
    """Compares each memory of a run with the memory of the same row in another run: the columns `MEASURES` [memory].

    `comparable`: whether both runs read the same text, so that their trigger examples can be compared.
    """
    nothing = np.full(len(a.triggers), np.nan)
    return pd.DataFrame(
        {
            "jaccard": jaccard(a.triggers, b.triggers) if comparable else nothing,
            "rank_biased_overlap": rank_biased_overlap(a.triggers, b.triggers) if comparable else nothing,
            "same_top_token": (a.top_token == b.top_token).astype(float),
            "key_cosine": nothing if a.key is None or b.key is None else np.einsum("ij,ij->i", a.key, b.key),
            "value_cosine": np.einsum("ij,ij->i", a.value, b.value),
        }
    )


def take(memories: Memories, rows: np.ndarray) -> Memories:
    """Returns the memories of some rows."""
    taken: Any = [None if each is None else each[rows] for each in memories]
    return Memories(*taken)


def permute(offset: np.ndarray, stream: np.random.Generator, most: int | None = None) -> np.ndarray:
    """Returns a permutation of the memories within each layer, or its first `most`: rows of flat arrays."""
    layers = itertools.pairwise(offset)
    return np.concatenate([start + stream.permutation(stop - start)[:most] for start, stop in layers])


def classify(before: Memories, after: Memories) -> np.ndarray:
    """Classifies what became of each memory between two runs [memory]: one of `KINDS`, or "" if it agrees in none."""
    same = before.top_token == after.top_token
    both = before.agrees & after.agrees
    kinds = [~before.agrees & after.agrees, before.agrees & ~after.agrees, both & same, both & ~same]
    return np.select(kinds, [*KINDS], "")


def follow_memories(compared: Compared, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compares the memories of each run with those of the first run and of the last one, by their numbers.

    All models have the same shape. Returns the tables `BY_MEMORY` and `BY_LAYER`. Raises UserError: see `read_memories`.
    """
    runs, permutations = compared.runs, compared.settings.permutations
    offset = np.asarray(runs[0].anatomy.layer_offset)
    place = pd.DataFrame(runs[0].anatomy.places_of(np.arange(offset[-1]))._asdict())
    references = {0: read_memories(runs[0]), len(runs) - 1: read_memories(runs[-1])}
    by_memory, by_layer = [], []
    for number, run in enumerate(runs):
        own = references[number] if number in references else read_memories(run)
        for other, reference in references.items():
            comparable = same_text(run, runs[other], "train")
            of = {"run": run.name, "reference": runs[other].name}
            rows = place.assign(**of, top_token=np.asarray(run.vocabulary, object)[own.top_token])
            rows["reference_token"] = np.asarray(runs[other].vocabulary, object)[reference.top_token]
            rows["top_probability"] = own.top_probability
            rows = rows.join(compare_memories(own, reference, comparable))
            rows["kind"] = classify(own, reference) if number < other else classify(reference, own)
            means = rows.groupby("layer")[[each.name for each in MEASURES]].mean()
            stream = random_stream(seed, Purpose.COMPARISON_PERMUTATIONS, number, other)
            drawn = [_by_chance(own, reference, offset, comparable, stream) for _ in range(permutations)]
            chance = sum(drawn) / permutations
            counts = pd.crosstab(rows["layer"], rows["kind"]).reindex(columns=[*KINDS], fill_value=0)
            by_memory.append(rows)
            summary = means.join(chance.add_prefix("permuted_")).join(counts)
            by_layer.append(summary.assign(**of, memories=np.diff(offset)).reset_index())
    return (
        pd.concat(by_memory, ignore_index=True)[BY_MEMORY.names],
        pd.concat(by_layer, ignore_index=True)[BY_LAYER.names],
    )


def _by_chance(
    own: Memories, reference: Memories, offset: np.ndarray, comparable: bool, stream: np.random.Generator
) -> pd.DataFrame:
    """Computes the measures between permuted memories: means per layer, over up to `BY_CHANCE` random memories."""
    permuted, sizes = permute(offset, stream), np.diff(offset)
    rows = permute(offset, stream, BY_CHANCE)
    compared = compare_memories(take(own, rows), take(reference, permuted[rows]), comparable)
    layer = np.repeat(np.arange(len(sizes)), np.minimum(sizes, BY_CHANCE))
    return compared.groupby(pd.Series(layer, name="layer")).mean()


def jaccard(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the Jaccard index of two lists: the number of examples in both, over the number in any of them [memory].

    It is NaN where both lists are empty. `a`, `b`: numbers of examples, each once, and then -1 [memory, rank]. Both lists
    may have other lengths.
    """
    found = [np.zeros(0)]
    for same, length_a, length_b in _blocks(a, b):
        shared = same.any(2).sum(1)
        union = length_a + length_b - shared
        found.append(np.divide(shared, union, out=np.full(len(shared), np.nan), where=union > 0))
    return np.concatenate(found)


def rank_biased_overlap(a: np.ndarray, b: np.ndarray, p: float = PERSISTENCE) -> np.ndarray:
    """Rank-biased overlap of two lists, extrapolated (Webber, Moffat and Zobel 2010, equation 32).

    The first places count most: a person who looks at one place goes on to the next one with the probability p, the persistence.
    Returns 1 for equal lists, 0 for lists without a common example [memory]; NaN where a list is empty. `a`, `b`: see `jaccard`.
    """
    return np.concatenate([np.zeros(0), *(_overlap_of(*block, p) for block in _blocks(a, b))])


def block_size(length_a: int, length_b: int) -> int:
    """Returns the number of memories that are compared at a time, of lists of these lengths."""
    return max(1, BLOCK_BYTES // max(1, length_a * length_b))


def _overlap_of(same: np.ndarray, length_a: np.ndarray, length_b: np.ndarray, p: float) -> np.ndarray:
    deepest = max(same.shape[1:])
    rank_a, rank_b = np.arange(1, same.shape[1] + 1)[:, None], np.arange(1, same.shape[2] + 1)
    seen_at = np.broadcast_to(np.maximum(rank_a, rank_b), same.shape[1:])  # depth from which on a shared example counts
    common = np.zeros((len(same), deepest + 1))
    np.add.at(common, (np.nonzero(same)[0], np.broadcast_to(seen_at, same.shape)[same]), 1)
    common = np.cumsum(common, 1)[:, 1:]  # number of shared examples up to each depth
    d = np.arange(1, deepest + 1)
    short, long = np.minimum(length_a, length_b), np.maximum(length_a, length_b)
    rows, exists = np.arange(len(same)), short > 0
    at_short, at_long = common[rows, np.maximum(short, 1) - 1], common[rows, np.maximum(long, 1) - 1]
    inside, beyond = d <= long[:, None], (d > short[:, None]) & (d <= long[:, None])
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.where(inside, common / d * p**d, 0).sum(1)
        missing = at_short[:, None] * (d - short[:, None]) / (short[:, None] * d) * p**d
        total += np.where(beyond, missing, 0).sum(1)
        found = (1 - p) / p * total + ((at_long - at_short) / long + at_short / short) * p**long
    return np.where(exists, found, np.nan)


def _blocks(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields, of some memories each: whether examples are the same [memory, rank, rank]; both lengths [memory]."""
    size = block_size(a.shape[1], b.shape[1])
    for start in range(0, len(a), size):
        x, y = a[start : start + size], b[start : start + size]
        same = (x[:, :, None] == y[:, None, :]) & (x != NONE)[:, :, None]
        yield same, (x != NONE).sum(1), (y != NONE).sum(1)


def match_memories(compared: Compared, seed: int = 0) -> pd.DataFrame:
    """Finds, for random memories of the first run, the memory of each other run whose coefficients correlate most.

    Returns the table `MATCHES`. Runs that did not sample the same validation prefixes as the first one are left out, and
    so are memories whose coefficient varies on too few prefixes, see `standardise`.
    """
    first, found = compared.runs[0], []
    offset = np.asarray(first.anatomy.layer_offset)
    count = min(compared.settings.sampled_memories, int(offset[-1]))
    rows = np.sort(random_stream(seed, Purpose.COMPARISON_SAMPLE).choice(offset[-1], count, replace=False))
    layers = zip(_layers(first), itertools.pairwise(offset))
    own = standardise(np.concatenate([m[:, rows[(rows >= low) & (rows < end)] - low] for m, (low, end) in layers], 1))
    changes = np.isfinite(own).all(0)
    rows, own = rows[changes], own[:, changes]
    place = pd.DataFrame(first.anatomy.places_of(rows)._asdict())
    for run in compared.runs[1:]:
        if same_prefixes(first, run):
            matches = pd.concat([place, find_partners(own, _layers(run))], axis=1)
            q = q_values(matches["p_value"].to_numpy(), len(matches))
            found.append(matches.assign(run=run.name, q_value=q))
    return pd.concat(found, ignore_index=True)[MATCHES.names] if found else MATCHES.frame([])


def _layers(run: Run) -> Iterator[np.ndarray]:
    with run.files.open_sampled_prefixes() as file:
        for start, stop in itertools.pairwise(run.anatomy.layer_offset):
            yield file["m"][:, start:stop]


def standardise(m: np.ndarray) -> np.ndarray:
    """Returns columns with a mean of 0 and a length of 1, float32 [prefix, memory].

    A column that varies on too few prefixes is NaN. The effective number of prefixes is (sum d²)² / sum d⁴ of the
    deviations d: k if d is 0 but on k prefixes, on which it is equal; it must be `FEWEST`.
    """
    m = m.astype(np.float32)
    deviations = m - m.mean(0)
    squares = np.einsum("ij,ij->j", deviations, deviations, dtype=np.float64)
    changes = squares > ROUNDING * np.einsum("ij,ij->j", m, m, dtype=np.float64)
    unit = deviations / np.where(changes, np.sqrt(squares), np.nan).astype(np.float32)
    return np.where(np.einsum("ij,ij,ij,ij->j", unit, unit, unit, unit) * FEWEST <= 1, unit, np.nan).astype(np.float32)


def find_partners(own: np.ndarray, layers: Iterable[np.ndarray]) -> pd.DataFrame:
    """Finds, for each memory, the memory of another model that correlates most. Of tied ones the first one counts.

    Returns one row per memory, see `MATCHES`. A correlation is minus infinity if no memory, or no second one, varies.
    `own`: standardised coefficients [prefix, memory]; `layers`: those of each layer of the other model as they are.
    """
    count = own.shape[1]
    highest = np.full((count, OTHERS + 2), -np.inf, np.float32)
    layer_of, memory_of = np.zeros((2, count), np.int64)
    for layer, m in enumerate(layers):
        correlation = np.nan_to_num(own.T @ standardise(m), nan=-np.inf)
        best = correlation.argmax(1)
        better = correlation[np.arange(count), best] > highest[:, 0]
        layer_of[better], memory_of[better] = layer, best[better]
        together = -np.concatenate([highest, correlation], 1)
        highest = -np.sort(np.partition(together, OTHERS + 1, 1)[:, : OTHERS + 2], 1)
    return pd.DataFrame(
        {
            "correlation": highest[:, 0],
            "matched_layer": layer_of,
            "matched_memory": memory_of,
            "next_correlation": highest[:, 1],
            "p_value": p_values(highest),
        }
    )


def p_values(highest: np.ndarray) -> np.ndarray:
    """Probability that the highest correlation stands out as much, if the other model has no partner [memory].

    The memories of a model without a partner are a sample of what a model can have. The gaps between the highest numbers of a
    sample, each times its rank, are like independent draws of one exponential distribution (Rényi 1953), whatever the tail of the
    sample is, as long as it is about exponential over these ranks. So the first gap over the mean of k others has the
    distribution F(2, 2k), with the tail (1 + ratio / k)^-k. Correlations are transformed by artanh, so that they have no upper
    bound. It is 1 where the highest correlation is tied, and where there are no three to compare.

    `highest`: the highest correlations, descending; minus infinity where there are no more [memory, rank].
    """
    known = np.where(np.isfinite(highest), np.clip(highest.astype(float), TIED - 1, 1 - TIED), np.nan)
    gaps = np.arange(1, highest.shape[1]) * -np.diff(np.arctanh(known), axis=1)
    k = np.isfinite(gaps[:, 1:]).sum(1)
    others = np.nansum(gaps[:, 1:], 1) / np.maximum(k, 1)
    tells = (others > 0) & (known[:, 0] - known[:, 1] > TIED)
    ratio = np.divide(gaps[:, 0], others, out=np.zeros(len(gaps)), where=tells)
    return (1 + ratio / np.maximum(k, 1)) ** -k.astype(float)
