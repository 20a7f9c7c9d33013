"""Logits of the values of some memories, by the head with which the run projected them."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head
from ffkv.run.results.run import Run


def head_of(run: Run, device: str = "auto") -> Head:
    """Returns the head with which the run projected its values onto the vocabulary. The blocks of the model are not
    loaded.

    Raises:
        UserError: the file of the head is damaged, or there is no such device.
    """
    return load_head(run.folder / "model", device, run.settings.values.projection)


def value_logits(run: Run, head: Head, layer: int, memories: np.ndarray) -> Iterator[tuple[slice, np.ndarray, Tensor]]:
    """Reads the values of some memories of a layer, and their logits, a bounded number at a time.

    Args:
        memories: numbers of the memories in their layer, ascending [memory].
    Yields:
        Which of the memories; their values, float32 [memory, d]; and their logits, float32 [memory, vocabulary].
    """
    rows = run.anatomy.layer_offset[layer] + np.asarray(memories, np.int64)
    with run.files.open_values() as file:
        values = file["value"][rows]
    for chunk, logits in head.chunks(torch.from_numpy(values), layer):
        yield chunk, values[chunk], logits
