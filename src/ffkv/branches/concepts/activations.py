"""What memories do on texts, and the residual stream that their layers read. States are kept for one task alone."""

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
    layers, count, span = loaded.anatomy.layers, len(task.row), task.span
    m = [np.empty((count, layer.memories), np.float32) for layer in layers]
    r = [np.empty((count, loaded.anatomy.width), np.float32) for _ in layers]
    lengths, last_alone = np.array([len(row) for row in task.rows]), bool((span[:, 1] - span[:, 0] == 1).all())
    found: list[tuple[np.ndarray, Tensor]] = []
    written: dict[int, Tensor] = {}  # y of layers whose o has not come

    def receive(line: np.ndarray, span: np.ndarray, layer: Layer, quantity: str, states: Tensor) -> None:
        if quantity == "y":
            written[layer.index] = states.clone()  # the model may add to it in place
            return
        place, states = (m, states) if quantity == "m" else (r, states - written.pop(layer.index))
        lines, ends = (to_device(each, str(states.device)) for each in (line, span))
        if last_alone:
            own = states[lines, ends[:, 0]].float()
        else:
            token = torch.arange(states.shape[1], device=states.device)
            outside = (token < ends[:, :1]) | (token >= ends[:, 1:])
            own = states[lines].float().masked_fill_(outside[..., None], -torch.inf).amax(1)
        found.append((place[layer.index], own))

    with tap(loaded.model, layers, "myo") as run:
        for batch in batches(lengths, batch_tokens):
            texts = np.flatnonzero(np.isin(task.row, batch))
            line = np.argsort(batch)[np.searchsorted(np.sort(batch), task.row[texts])]
            run(pad([task.rows[row] for row in batch], loaded.device), partial(receive, line, span[texts]))
            for (place, _), values in zip(found, to_host([values for _, values in found]), strict=True):
                place[texts] = values
            found.clear()
    if not all(np.isfinite(each).all() for each in (*m, *r)):
        about = f"States of {loaded.anatomy.checkpoint} are not finite: the model overflows in {loaded.anatomy.dtype}."
        raise UserError(f"{about} Use model.dtype float32.")
    return m, r
