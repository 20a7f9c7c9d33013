"""The model of a finished run, with its head and its tokenizer."""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head


@dataclass(frozen=True)
class RunModel(LoadedModel):
    """The proven model of a run, with its head and its tokenizer, which are read when they are asked for.

    `load` has refused a model whose own code nobody allowed.
    """

    folder: Path  # the run's folder `model`
    # lengths of the values of the layers that were traced [memory], by layer
    norms: dict[int, Tensor] = field(default_factory=dict)

    @functools.cached_property
    def head(self) -> Head:
        """The model's head, in float32, on the device that reads the ids."""
        return load_head(self.folder, self.device, trust_remote_code=self.anatomy.trust_remote_code)

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return load_tokenizer(self.folder, trust_remote_code=self.anatomy.trust_remote_code)

    def final_logits(self, end: Tensor) -> Tensor:
        """Returns logits [vocabulary] in float32 of the vector [d] that the model's own head reads."""
        return self.head.logits(end[None], self.anatomy.read_as)[0]
