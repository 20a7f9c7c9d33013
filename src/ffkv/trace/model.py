"""The model of a run, loaded once for many traces."""

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.checkpoint.read import load_tokenizer
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.results.run import Run


@dataclass(frozen=True)
class RunModel:
    """What traces of a run need in memory.

    Attributes:
        loaded: the proven model.
        head: its head, in float32.
        tokenizer: its tokenizer.
        norms: lengths of the values of the layers that were traced [memory], by layer.
    """

    loaded: LoadedModel
    head: Head
    tokenizer: Any
    norms: dict[int, Tensor] = field(default_factory=dict)


_models: WeakKeyDictionary[Run, dict[str, RunModel]] = WeakKeyDictionary()


def model_of(run: Run, device: str) -> RunModel:
    """The model of a run on a device, loaded when it is first asked for, and kept as long as `run` lives.

    Raises:
        UserError: see `Run.model`.
    """
    kept = _models.setdefault(run, {})
    if device not in kept:
        loaded = run.model(device)
        tokenizer = load_tokenizer(run.folder / "model", trust_remote_code=run.anatomy.trust_remote_code)
        kept[device] = RunModel(loaded, load_head(run.folder / "model", loaded.device), tokenizer)
    return kept[device]
