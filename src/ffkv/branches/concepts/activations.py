"""What memories do on texts, and the residual stream that their layers read. States are kept for one task alone."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ffkv.base.batching import batches, pad, to_device, to_host
from ffkv.base.errors import UserError
from ffkv.branches.concepts.draw import Task
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.tap import tap


def read_task(loaded: LoadedModel, task: Task, batch_tokens: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Reads coefficients m and residuals r = o - y of every layer at what counts of each text, as the trigger pass reads them.

    Of several tokens, each memory and each coordinate has its largest number. Returns m [layer][text, memory] and r [layer][text, d], in
    float32.

    Raises UserError if states are not finite.
    """
    layers, count = loaded.anatomy.layers, len(task.row)
    m = [np.empty((count, layer.memories), np.float32) for layer in layers]
    r = [np.empty((count, loaded.anatomy.width), np.float32) for _ in layers]
    lengths = np.array([len(row) for row in task.rows])
    with tap(loaded.model, layers, "myo") as run:
        for batch in batches(lengths, batch_tokens):
            texts = np.flatnonzero(np.isin(task.row, batch))
            line = np.argsort(batch)[np.searchsorted(np.sort(batch), task.row[texts])]
            found: list[tuple[np.ndarray, Tensor]] = []
            run(
                pad([task.rows[row] for row in batch], loaded.device),
                partial(_receive, found, m, r, line, task.span[texts], {}),
            )
            for (place, _), values in zip(found, to_host([values for _, values in found]), strict=True):
                if not np.isfinite(values).all():
                    raise UserError(
                        f"States of {loaded.anatomy.checkpoint} are not finite: the model overflows in {loaded.anatomy.dtype}."
                        " Use model.dtype float32."
                    )
                place[texts] = values
    return m, r


def _receive(
    found: list[tuple[np.ndarray, Tensor]],
    m: Sequence[np.ndarray],
    r: Sequence[np.ndarray],
    line: np.ndarray,
    span: np.ndarray,
    written: dict[int, Tensor],
    layer: Layer,
    quantity: str,
    tensor: Tensor,
) -> None:
    """Takes a quantity from `tap`, and notes what counts of it, with the array that it is for.

    `line`, `span`: the sentence of the batch, and the tokens, of each text. `written`: y of layers whose o has not come.
    """
    if quantity == "y":
        written[layer.index] = tensor.clone()  # the model may add to it in place
        return
    states = tensor if quantity == "m" else tensor - written.pop(layer.index)
    place = (m if quantity == "m" else r)[layer.index]
    device = str(states.device)
    lines, ends = to_device(line, device), to_device(span, device)
    if (span[:, 1] - span[:, 0] == 1).all():
        found.append((place, states[lines, ends[:, 0]].float()))
        return
    token = torch.arange(states.shape[1], device=device)
    outside = (token < ends[:, :1]) | (token >= ends[:, 1:])
    found.append((place, states[lines].float().masked_fill_(outside[..., None], -torch.inf).amax(1)))
