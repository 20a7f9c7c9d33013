"""The model of a run, loaded once for many traces."""

from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.run.results.run import Run


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

    @property
    def read_as(self) -> int | None:
        """The layer that the model's own head reads out, see `Head.logits`; None: the output of a later block."""
        last = self.loaded.anatomy.layers[-1]
        return None if last.readout_block else last.index

    def final_logits(self, end: Tensor) -> Tensor:
        """Logits [vocabulary] in float32 of the vector [d] that the model's own head reads."""
        return self.head.logits(end[None], self.read_as)[0]


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
