"""What memories do on texts, and the residual stream that their layers read. Tasks that share texts are read together."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from ffkv.activations.last_token import passes, rows_to_run
from ffkv.base.batching import to_device, to_host
from ffkv.branches.concepts.draw import Task
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.tap import tap

States = list[np.ndarray]  # [layer][text, memory or d]


def group_tasks(tasks: Sequence[Task], most: int) -> Iterator[list[Task]]:
    """Puts tasks that follow each other into one group if the model then reads fewer rows; of several, with at most `most` texts."""
    group, rows, count = list[Task](), list[np.ndarray](), 0
    for task in tasks:
        own, both = len(rows_to_run(task.rows)[0]), [*rows, *task.rows]
        together = len(rows_to_run(both)[0])
        if group and (len(both) > most or together == count + own):
            yield group
            group, both, together = [], task.rows, own
        group, rows, count = [*group, task], both, together
    yield from [group] if group else []


def read_tasks(loaded: LoadedModel, tasks: Sequence[Task]) -> Iterator[tuple[States, States]]:
    """Reads coefficients m and residuals r = o - y of every layer at what counts of each text, as the trigger pass reads them.

    Of several tokens, each memory and each coordinate has its largest number. A text of several tasks is read once, and so is one with
    which another one begins. Yields m [layer][text, memory] and r [layer][text, d] of each task, in float32; all are kept until the last.

    Raises UserError if states are not finite.
    """
    layers, rows = loaded.anatomy.layers, [row for task in tasks for row in task.rows]
    counted = np.concatenate([task.counted for task in tasks])
    m = [np.empty((len(rows), layer.memories), np.float32) for layer in layers]
    r = [np.empty((len(rows), loaded.anatomy.width), np.float32) for _ in layers]
    last_alone = bool((counted == 1).all())
    found: list[tuple[np.ndarray, Tensor]] = []
    written: dict[int, Tensor] = {}  # y of layers whose o has not come

    def receive(ends: np.ndarray, count: np.ndarray, layer: Layer, quantity: str, states: Tensor) -> None:
        line, end, size = (to_device(each, str(states.device)) for each in (*ends, count))
        states = states[line, end] if last_alone else states
        if quantity == "y":
            written[layer.index] = states.clone()  # the model may add to it in place
            return
        place, own = (m, states.float()) if quantity == "m" else (r, (states - written.pop(layer.index)).float())
        if not last_alone:
            back = end[:, None] - torch.arange(own.shape[1], device=own.device)
            own = own[line].masked_fill_(((back < 0) | (back >= size[:, None]))[..., None], -torch.inf).amax(1)
        found.append((place[layer.index], own))

    with tap(loaded.model, layers, "myo") as run:
        for each in passes(loaded, rows, loaded.batch_tokens):
            run(each.ids, partial(receive, each.ends, counted[each.numbers]))
            for (place, _), values in zip(found, to_host([values for _, values in found]), strict=True):
                place[each.numbers] = values
            found.clear()
    if not all(np.isfinite(each).all() for each in (*m, *r)):
        raise loaded.anatomy.overflow()
    for start, stop in pairwise(accumulate((len(task.rows) for task in tasks), initial=0)):
        yield [each[start:stop] for each in m], [each[start:stop] for each in r]
