"""Trigger examples beside the value: tokens that it promotes or demotes, and the signs of gates."""

from typing import Any

import numpy as np

from ffkv.activations.trigger_file import NONE, TriggerExamples, Triggers
from ffkv.branches.roles.tables import CASES

# Of each case: whether the coefficient is positive, and the sign of the gate. The other factor has the product of the signs.
SIGNS = dict(zip(CASES, ((True, 1), (True, -1), (False, -1), (False, 1)), strict=True))


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


def sign_cases(triggers: Triggers) -> dict[str, np.ndarray]:
    """Counts the trigger examples of each sign case, and finds the first one of each: columns of `BY_MEMORY`."""
    columns: dict[str, np.ndarray] = {}
    for case in SIGNS:
        found = is_case(triggers, case)
        columns[case] = found.sum(1).astype(np.int32)
        columns[f"first_{case}"] = np.where(found.any(1), found.argmax(1), NONE).astype(np.int32)
    return columns


def is_case(triggers: Triggers, case: str) -> np.ndarray:
    """Tells whether each trigger example of the side of a sign case is of the case [memory, rank]."""
    side, gate = side_of(triggers, case), SIGNS[case][1]
    return np.zeros_like(triggers.gate, bool) if side is None else side.gate == gate


def side_of(triggers: Triggers, case: str) -> Any:
    """Returns the trigger examples with the coefficients' sign of a case; None if the run has none of them."""
    return triggers if SIGNS[case][0] else triggers.negative
