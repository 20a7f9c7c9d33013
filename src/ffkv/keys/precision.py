"""What a low precision of the weights' type does to trigger examples: their coefficients, worked out again in float32."""

import numpy as np

from ffkv.activations.last_token import last_coefficients
from ffkv.activations.trigger_file import Triggers
from ffkv.corpus.corpus_file import Corpus
from ffkv.keys.key_sample import trigger_prefixes
from ffkv.model.checkpoint.load import LoadedModel

COLUMNS = {
    "layer": "int64",
    "keys": "int64",
    "triggers": "int64",
    "error_median": "float64",
    "error_largest": "float64",
    "first_stays": "float64",
    "upper_half_stays": "float64",
}


def rescored(
    model: LoadedModel, triggers: Triggers, corpus: Corpus, layer: int, keys: np.ndarray, batch_tokens: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The trigger examples of some keys of a layer, with the coefficients that the model gives them as it is loaded here.

    Args:
        keys: numbers in the layer, ascending [key].
    Returns:
        Whose trigger each one is, its coefficient in `triggers`, and in `model` [trigger]; by key, then by rank.
    """
    memories, found, prefixes = trigger_prefixes(triggers, corpus, layer, keys, triggers.sentence.shape[1])
    rows = [np.concatenate([corpus.bos, prefix]) for prefix in prefixes]
    return memories, found, last_coefficients(model, layer, rows, memories, batch_tokens)


def precision_row(layer: int, memories: np.ndarray, coefficients: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """How far trigger examples of a layer stand from where float32 puts them.

    Args:
        memories: whose trigger each one is, those of a key side by side, the highest first [trigger].
        coefficients: as the run found them, positive; exact: in float32 [trigger].
    Returns:
        A row of `COLUMNS`. error_median, error_largest: of |m - exact| / m. first_stays: share of the keys whose
        highest trigger example is the highest in float32, too. upper_half_stays: of the upper half of each key's
        trigger examples, the share that is the upper half in float32, too; the lower half is what could have come in
        its place. NaN where there is nothing to take a share of.
    """
    starts = np.flatnonzero(np.diff(memories, prepend=-1))
    errors, first, stays, halves = np.abs(coefficients - exact) / coefficients, [], 0, 0
    for found in np.split(exact, starts)[1:]:
        order, half = np.argsort(-found, kind="stable"), len(found) // 2
        first.append(order[0] == 0)
        stays += np.count_nonzero(order[:half] < half)
        halves += half
    return {
        "layer": layer,
        "keys": len(starts),
        "triggers": len(memories),
        "error_median": np.median(errors) if len(errors) else np.nan,
        "error_largest": errors.max() if len(errors) else np.nan,
        "first_stays": np.mean(first) if first else np.nan,
        "upper_half_stays": stays / halves if halves else np.nan,
    }
