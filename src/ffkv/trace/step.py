"""Traces one prompt, and computes the coefficients of one memory on sentences of the corpus."""

from collections.abc import Mapping, Sequence

import numpy as np

from ffkv.results.run import Run
from ffkv.trace.result import Trace


def trace(
    run: Run,
    text: str,
    *,
    position: int | None = None,
    off: Sequence[str] = (),
    scale: Mapping[str, float] | Sequence[str] = (),
    everywhere: bool = False,
    token: str | int | None = None,
    top: int = 10,
    memories: int = 20,
    device: str = "auto",
) -> Trace:
    """Runs one prompt through the model of a run, and says which memories made its prediction.

    The model is loaded at the first trace of a run, which verifies that it is the one that was proven, and is kept as long
    as `run` lives.

    Args:
        run: a finished run.
        text: the prompt, to the letter. What precedes every sentence of the corpus precedes it, too.
        position: the token to look at, as a position in `Trace.tokens`; negative: from the end; None: the last token.
        off: memories to switch off: names such as "L3.17". Their coefficient becomes 0.
        scale: memories to scale, with the factor of their coefficient: {"L3.17": 2}, or ["L3.17:2"].
        everywhere: change them at every token; else at `position` only.
        token: the next token that contributions are measured on: its text to the letter, or its id. None: the token that
            the unchanged model predicts.
        top: number of tokens per prediction.
        memories: number of memories with the largest size per layer, and of memories with the largest effect on the token's logit.
            Both are listed.
        device: "auto", "cpu", "cuda" or "cuda:<n>", as the setting `model.device`.
    Raises:
        UserError: the prompt is empty, and the model reads nothing in front of a text; it is longer than the context; a
            position, a memory, a token or a factor does not exist or is malformed; a memory is changed twice; the
            checkpoint is gone or its weights have changed.
    """
    raise NotImplementedError


def coefficients(run: Run, layer: int, memory: int, sentences: Sequence[int], device: str = "auto") -> list[np.ndarray]:
    """The coefficient of one memory on every token of some train sentences.

    It is the coefficient of the prefix that ends at the token: later tokens do not change it. Each forward pass ends after
    the layer. The model is kept as in `trace`.

    Args:
        run: a finished run.
        layer: the layer, from 0.
        memory: the memory in its layer, from 0.
        sentences: numbers of sentences of the train split.
        device: as in `trace`.
    Returns:
        Per sentence the coefficients of its tokens, without those in front of it, float32 [sentence][token]. A stored
        trigger example of (sentence, position) has the coefficient at token `position` - 1, up to rounding: a batch of
        another shape adds in another order.
    Raises:
        UserError: there is no such memory or sentence; or the checkpoint is gone or its weights have changed.
    """
    raise NotImplementedError
