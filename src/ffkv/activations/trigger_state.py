"""What a trigger pass has found so far, and how it becomes `Triggers`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ffkv.activations import top_t
from ffkv.activations.contest import Contest
from ffkv.activations.statistics import Statistics
from ffkv.activations.trigger_file import NONE, Negative, Triggers
from ffkv.corpus.corpus_file import Corpus
from ffkv.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.settings import Triggers as TriggerSettings


@dataclass
class State:
    """The state of a trigger pass.

    highest, lowest: the contest of each layer, of positive and of negative coefficients; `lowest` is empty where these are
    not kept. statistics: of each layer. batches, tokens, prefixes: how many of the shard have been seen.
    """

    highest: list[Contest]
    lowest: list[Contest]
    statistics: list[Statistics]
    batches: int = 0
    tokens: int = 0
    prefixes: int = 0


def begin(layers: Sequence[Layer], settings: TriggerSettings, device: str) -> State:
    """The state before anything is seen."""

    def contests(sign: int) -> list[Contest]:
        each = settings.one_prefix_per_sentence
        return [Contest(layer.memories, settings.per_key, sign, each, device) for layer in layers]

    negative = settings.negative and any(layer.signed for layer in layers)
    return State(
        contests(1), contests(-1) if negative else [], [Statistics(layer.memories, device) for layer in layers]
    )


def settle(state: State) -> None:
    """Brings all that has been seen into the contests' best."""
    for contest in [*state.highest, *state.lowest]:
        contest.settle()


def triggers_of(state: State, corpus: Corpus, loaded: LoadedModel) -> Triggers:
    """What a finished pass has found.

    Raises:
        UserError: coefficients overflowed.
    """
    settle(state)
    counted = {
        name: torch.cat([getattr(layer, name) for layer in state.statistics]).cpu().numpy()
        for name in ("fires", "fires_negative", "total", "maximum", "minimum", "histogram")
    }
    if not all(bool(layer.finite.all()) for layer in state.statistics):
        raise UserError(
            f"Memory coefficients of {loaded.anatomy.checkpoint} are not finite: the model overflows in {loaded.anatomy.dtype}. Use model.dtype float32."
        )
    fires, minimum = counted.pop("fires_negative"), counted.pop("minimum")
    gated = _gated(loaded.anatomy.layers)
    negative = None
    if state.lowest:
        negative = Negative(**_examples(corpus, state.lowest, -1, gated), fires=fires, minimum=minimum)
    return Triggers(
        layer_offset=np.asarray(loaded.anatomy.layer_offset),
        prefixes=state.prefixes,
        attributes={},
        negative=negative,
        **_examples(corpus, state.highest, 1, gated),
        **counted,
    )


def _gated(layers: Sequence[Layer]) -> np.ndarray:
    """Whether each memory has a gate [memory]."""
    matrices = [matrix for layer in layers for matrix in layer.second_matrices]
    return np.repeat([bool(matrix.gate) for matrix in matrices], [matrix.memories for matrix in matrices])


def _examples(corpus: Corpus, contests: list[Contest], sign: int, gated: np.ndarray) -> dict[str, np.ndarray]:
    """The winners as fields of `TriggerExamples`, all but `fires`."""
    starts = corpus.offsets[:-1] + np.arange(len(corpus))  # place of each sentence's empty prefix
    ends = np.cumsum([len(contest.best) for contest in contests])[:-1]
    # A layer at a time: what is unpacked is several times as large as the state.
    layers = [
        _winners(corpus, starts, contest, sign, own)
        for contest, own in zip(contests, np.split(gated, ends), strict=True)
    ]
    return {name: np.concatenate([layer[name] for layer in layers]) for name in layers[0]}


def _winners(
    corpus: Corpus, starts: np.ndarray, contest: Contest, sign: int, gated: np.ndarray
) -> dict[str, np.ndarray]:
    size, place, gate = (part.cpu().numpy() for part in top_t.unpack(contest.best))
    found = place >= 0
    sentence = np.searchsorted(starts, np.where(found, place, 0), side="right") - 1
    position = np.where(found, place - starts[sentence], 0)
    return {
        "coefficient": np.where(found, sign * size, size),
        "sentence": np.where(found, sentence, NONE).astype(np.int32),
        "position": position.astype(np.int32),
        "next_token": np.where(found, corpus.next_token(sentence, position), NONE).astype(np.int32),
        "gate": np.where(found & gated[:, None], np.where(gate, 1, -1), 0).astype(np.int8),
        "count": found.sum(1).astype(np.int32),
    }
