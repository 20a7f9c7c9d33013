"""A model that is changed while it runs."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ffkv.base.steps import Work
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.model.effects.rerun import Rerun, keeps, rerunning
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.model.placement.precision import running_in_float32


class Running(NamedTuple):
    """A model that computes in float32, and how it runs again."""

    loaded: LoadedModel
    head: Head
    keeps: bool  # see `rerun.keeps`
    reruns: Sequence[Rerun]  # see `rerunning` [layer]
    batch_tokens: int  # maximum number of tokens per pass, padding included


@contextlib.contextmanager
def running(model: Path | str, work: Work, whole: bool = False) -> Iterator[Running]:
    """Loads the model of a model folder. Inside the `with` statement, it computes in float32.

    A contribution is small beside the residual, so that 16 bits would round it away.

    Args:
        model: folder of the model step.
        work: the device, and the number of tokens per pass.
        whole: prefixes are read whole, because more than their last tokens change: no keys and values are kept.
    Raises:
        UserError: as `load`.
    """
    loaded = load(model, work.device, work.max_memory)
    head = load_head(Path(model), work.device)
    with running_in_float32(loaded.model):
        keeping = not whole and keeps(loaded)
        reruns = [rerunning(loaded, layer, work.batch_tokens, keeping) for layer in loaded.anatomy.layers]
        yield Running(loaded, head, keeping, reruns, work.batch_tokens)
