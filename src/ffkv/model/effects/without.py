"""Runs copies of a prompt, each without the contribution of one memory at one token."""

import contextlib
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.tap.resume import with_output
from ffkv.model.tap.tap import tap


def run_without(
    loaded: LoadedModel,
    ids: Tensor,
    sources: pd.DataFrame,
    contributions: Tensor,
    rows: pd.DataFrame,
    u: Tensor,
    batch_tokens: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Runs the model without each source. Returns how much lower pre-activations and m of the rows are then [source, row].

    A pass has several copies of the prompt, each without one source. The last copy is whole.
    """
    total, total_m = np.full((2, len(sources), len(rows)), np.nan)
    first = sources["layer"].min()
    layers = [loaded.anatomy.layers[number] for number in sorted({*rows["layer"]}) if number > first]
    able = np.flatnonzero(sources["layer"] < rows["layer"].max())
    room = max(1, batch_tokens // ids.shape[1] - 1)
    for own in (able[start : start + room] for start in range(0, len(able), room)):

        def remove(number: int, o: Tensor, own: np.ndarray = own) -> Tensor:
            states = o.reshape(len(own) + 1, -1, o.shape[-1]).clone()
            its = np.flatnonzero(sources["layer"].to_numpy()[own] == number)
            states[its, sources["position"].iloc[own[its]].to_list()] -= contributions[own[its]].to(o)
            return states.reshape(o.shape)

        def receive(layer: Layer, quantity: str, tensor: Tensor, own: np.ndarray = own) -> None:
            read = np.flatnonzero(rows["layer"] == layer.index)
            at = tensor[:, rows["position"].iloc[read].to_list()].double().cpu()  # [copy, row, .]
            lost = at[-1:] - at[:-1]
            if quantity == "x":
                total[np.ix_(own, read)] = torch.einsum("srd,rd->sr", lost, u[read]).numpy()
            else:
                total_m[np.ix_(own, read)] = lost[:, range(len(read)), rows["memory"].iloc[read].to_list()].numpy()

        with contextlib.ExitStack() as stack:
            for number in sorted({*sources["layer"].iloc[own]}):
                stack.enter_context(with_output(loaded.model, loaded.anatomy.layers[number], partial(remove, number)))
            run = stack.enter_context(tap(loaded.model, layers, "xm"))
            run(ids.expand(len(own) + 1, -1), receive)
    return total, total_m
