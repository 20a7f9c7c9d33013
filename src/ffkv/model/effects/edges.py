"""Edges between memories: how much of what a memory reads comes from a memory of an earlier layer (docs/graphs.md)."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer
from ffkv.model.checkpoint.load import LoadedModel
from ffkv.model.effects.gradient import Frozen
from ffkv.model.effects.reads import TOLERANCE, Pass, Read, observe
from ffkv.model.keys_and_values import error_of, factor_places, factors, in_residual, values_in_place
from ffkv.model.placement import in_float32, running_in_float32
from ffkv.model.tap.change import with_output
from ffkv.model.tap.hooks import known_state, relative_error
from ffkv.model.tap.tap import tap

RERUN = ("total", "total_m", "attention")  # what tells them runs the model again without the source
MEASURED = ("held", "direct", *RERUN)
PARTS = ("memories", "attention", "embedding", "bias", "error", "constant")


class EdgeTables(NamedTuple):
    """Edges from sources to targets. NaN stands for what cannot be told; `notes` say why.

    Attributes:
        edges: a row per source, target of a later layer at the same token or a later one, and factor of the target. Columns:
            source, target (rows of the given tables), factor ("key"; "gate" of a gated memory; "router" of an expert), held
            (direct, while the norm holds what it divides by), direct, total (how much lower the pre-activation is when the model
            runs again with the source off), total_m (the same of the coefficient m), attention (what of `total` passes through
            attention: `total` while the memories in between write what they did, minus `direct`).
        parts: what a pre-activation is the sum of, norm held: a row per target and factor. Columns: target, factor,
            pre_activation (of an expert: without a bias of its first matrix), memories (of all layers before), attention (what
            blocks add beside their layers), embedding, bias (of the layers before), error (what dictionaries leave of these layers), constant (of
            the norm and of the first matrix), listed_sources (of `memories`, what the given sources add), deviation (of the sum of the six parts from
            the pre-activation, relative to the largest of them).
        notes: a sentence for each layer of which something cannot be told.
    """

    edges: pd.DataFrame
    parts: pd.DataFrame
    notes: list[str]


def edges(
    loaded: LoadedModel, ids: Tensor, sources: pd.DataFrame, targets: pd.DataFrame, *, rerun: bool = True
) -> EdgeTables:
    """Measures the edges from some memories of a prompt to memories of later layers, at the same token or later ones.

    A model in half precision computes in float32 meanwhile: 16 bits would round small contributions away.

    Args:
        loaded: a proven model.
        ids: the tokens of the prompt [1, token].
        sources, targets: memories at tokens. Columns: layer, memory, position, from 0.
        rerun: whether the model runs again without each source. Else the columns `total`, `total_m` and `attention` are NaN.
    Raises:
        UserError: there is no such memory or token; or the model cannot be changed while it runs.
    """
    sources, targets = (_places(loaded, ids, given) for given in (sources, targets))
    layers = [loaded.anatomy.layers[number] for number in sorted({*targets["layer"]})]
    if not layers:
        raise UserError("There is no target. Name one memory at a token or more.")
    positions = np.unique([*sources["position"], *targets["position"]])
    with running_in_float32(loaded.model):
        seen = observe(loaded, ids, layers, positions)
        written = _written(loaded, seen, sources, positions)
        rows, u = _rows(loaded, seen, targets)
        found = {name: np.full((len(sources), len(rows)), np.nan) for name in MEASURED}
        parts = np.full((len(rows), len(PARTS) + 1), np.nan)
        for read in seen.reads.values():
            if read.plain:
                own = np.flatnonzero(rows["layer"] == read.layer.index)
                early = np.flatnonzero(sources["layer"] < read.layer.index)
                held, direct, parts[own] = _direct(
                    read, rows.iloc[own], u[own], sources.iloc[early], written, positions
                )
                found["held"][np.ix_(early, own)], found["direct"][np.ix_(early, own)] = held, direct
        if rerun:
            able = np.flatnonzero(sources["layer"] < rows["layer"].max())
            room = max(1, (loaded.batch_tokens // ids.shape[1] - 1) // 2)  # a pass has one source at least
            for own in (able[start : start + room] for start in range(0, len(able), room)):
                without = run_without(loaded, ids, seen, sources.iloc[own], written.contributions[own], rows, u)
                for name, values in zip(RERUN, without, strict=True):
                    found[name][own] = values
    told = pd.DataFrame(parts, columns=[*PARTS, "listed_sources"])
    # How far the parts are from adding up, relative to the largest of them.
    largest = pd.concat([told[[*PARTS]], rows["pre_activation"]], axis=1).abs().max(axis=1)
    told["deviation"] = (told[[*PARTS]].sum(axis=1, skipna=False) - rows["pre_activation"]).abs() / largest
    source, row = np.nonzero(
        (sources["layer"].to_numpy()[:, None] < rows["layer"].to_numpy())
        & (sources["position"].to_numpy()[:, None] <= rows["position"].to_numpy())
    )
    named = {"source": source, **{name: rows[name].to_numpy()[row] for name in ("target", "factor")}}
    found["attention"] -= found["direct"]
    return EdgeTables(
        pd.DataFrame({**named, **{name: values[source, row] for name, values in found.items()}}),
        pd.concat([rows[["target", "factor", "pre_activation"]], told], axis=1),
        [note for read in seen.reads.values() if (note := _note(loaded, read, rows, u))],
    )


def _places(loaded: LoadedModel, ids: Tensor, given: pd.DataFrame) -> pd.DataFrame:
    """Returns layer, memory and position of given memories, numbered from 0. Raises UserError if one is not there."""
    places = given[["layer", "memory", "position"]].astype(int).reset_index(drop=True)
    sizes = np.array([layer.memories for layer in loaded.anatomy.layers])
    for place in places.itertuples():
        if not (0 <= place.layer < len(sizes) and 0 <= place.memory < sizes[place.layer]):
            raise UserError(f"There is no memory {place.memory} in layer {place.layer} of {loaded.anatomy.checkpoint}.")
        if not 0 <= place.position < ids.shape[1]:
            raise UserError(f"There is no position {place.position}: the prompt has positions 0 to {ids.shape[1] - 1}.")
    return places


class _Written(NamedTuple):
    """What is written into the residual stream, float64, on the CPU."""

    contributions: Tensor  # by each source [source, d]
    embedding: Tensor  # [position, d]
    # by each layer before the last target: by its memories, by its biases, by no unit of its dictionary, and in all
    # [layer, position, d]
    memories: Tensor
    biases: Tensor
    errors: Tensor
    outputs: Tensor


def _written(loaded: LoadedModel, seen: Pass, sources: pd.DataFrame, positions: np.ndarray) -> _Written:
    at, width = np.searchsorted(positions, sources["position"]), loaded.anatomy.width
    contributions = torch.zeros(len(sources), width, dtype=torch.float64)
    last = max(seen.reads)
    memories, biases, errors, outputs = torch.zeros(4, last, len(positions), width, dtype=torch.float64)
    for layer in loaded.anatomy.layers[:last]:
        v, _ = values_in_place(loaded.model, layer)
        m, b, y = (seen.states[layer.index, quantity].to(v.device) for quantity in "mby")
        s = seen.states.get((layer.index, "s"), m.new_ones(len(m), 1)).to(v.device)
        own = np.flatnonzero(sources["layer"] == layer.index)
        chosen = at[own], sources["memory"].iloc[own].to_list()
        contributions[own] = ((s[chosen[0], 0] * m[chosen])[:, None].double() * v[chosen[1]].double()).cpu()
        memories[layer.index] = (s * (m @ v.to(m.dtype))).double().cpu()
        biases[layer.index] = (s * in_residual(loaded.model, layer, b)).double().cpu()
        if layer.is_dictionary:
            error = error_of(loaded.model, layer, seen.states[layer.index, "u"].to(v.device), s)
            errors[layer.index] = error.double().cpu()
        outputs[layer.index] = y.double().cpu()
    return _Written(contributions, seen.embedding[positions].double().cpu(), memories, biases, errors, outputs)


def _rows(loaded: LoadedModel, seen: Pass, targets: pd.DataFrame) -> tuple[pd.DataFrame, Tensor]:
    """Returns the factors of the targets, and what they read [row, d]: NaN where it cannot be told.

    Columns: those of `targets`, target, factor, constant (what the first matrix adds), pre_activation.
    """
    found = [
        ({"target": row, "factor": factor, **targets.loc[row], "constant": constant, "pre_activation": a}, u)
        for read in seen.reads.values()
        for row, factor, u, constant, a in _factors_of(loaded, read, targets[targets["layer"] == read.layer.index])
    ]
    rows, read_by = zip(*sorted(found, key=lambda each: each[0]["target"]), strict=True)
    return pd.DataFrame([*rows]), torch.stack(read_by)


def _factors_of(
    loaded: LoadedModel, read: Read, targets: pd.DataFrame
) -> Iterator[tuple[int, str, Tensor, float, float]]:
    """Yields row, factor, what the factor reads, what its matrix adds, and its pre-activation, of each target of a layer."""
    model, layer = loaded.model, read.layer
    rows = dict(zip(("key", "gate"), factors(model, layer, loaded.anatomy.width), strict=True))
    ends = np.cumsum([matrix.memories for matrix in layer.second_matrices])
    biases = {name: _adds(model, name, loaded.anatomy.width) for name in read.outputs}
    for row, memory, position in targets[["memory", "position"]].itertuples():
        x = read.x[position].double().cpu()
        number = int(np.searchsorted(ends, memory, "right"))
        matrix = layer.second_matrices[number]
        memory_in_matrix = memory - int(ends[number]) + matrix.memories
        places = factor_places(matrix)
        for factor, u in ((name, of_all[memory].double()) for name, of_all in rows.items()):
            if factor in places:
                name, column = places[factor][0], places[factor][1] + memory_in_matrix
                yield row, factor, u, float(biases[name][column]), float(read.outputs[name][position, column])
            elif factor == "key" or bool(u.isfinite().all()):
                yield row, factor, u, 0.0, float(u @ x)
        if (router := read.routers.get(number)) is not None:
            module = router.module
            expert = memory_in_matrix // (matrix.memories // matrix.experts)
            with in_float32(module):
                u = module.weight[expert].double().cpu()
                constant = float(module.bias[expert]) if getattr(module, "bias", None) is not None else 0.0
            yield row, "router", u, constant, float(u @ x) + constant


def _adds(model: nn.Module, name: str, width: int) -> Tensor:
    """What a first matrix returns for zero [memory]."""
    module = model.get_submodule(name)
    with torch.no_grad(), in_float32(module):
        return known_state(module(next(module.parameters()).new_zeros(1, width)))[0].double().cpu()


def _direct(
    read: Read, rows: pd.DataFrame, u: Tensor, sources: pd.DataFrame, written: _Written, positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns edges with the norm held, direct edges [source, row], and the parts [row, part] of a layer's pre-activations."""
    at, source_at = rows["position"].to_list(), sources["position"].to_list()
    h = read.h[at].detach().requires_grad_()
    with torch.enable_grad(), Frozen():
        g = torch.autograd.grad(read.normed(h), h, u.to(h))[0].double().cpu()  # what each row reads of h
    paths = read.paths[[1 + layer for layer in sources["layer"]]]
    arriving, of = paths * written.contributions[sources.index], read.h[source_at]
    with torch.no_grad():
        lost = (read.normed(of) - read.normed(of - arriving.to(of))).double().cpu()
        at_zero = read.normed(read.h.new_zeros(1, len(u[0])))[0].double().cpu()
    same = torch.tensor(source_at)[:, None] == torch.tensor(at)
    held, direct = (torch.where(same, product, 0.0 * product) for product in (arriving @ g.T, lost @ u.T))
    of_layers, place = read.paths[1:], np.searchsorted(positions, at)
    memories, biases, errors, outputs = (
        torch.einsum("ld,lpd->pd", of_layers, each[: len(of_layers), place])
        for each in (written.memories, written.biases, written.errors, written.outputs)
    )
    embedding = read.paths[0] * written.embedding[place]
    attention = h.detach().double().cpu() - embedding - outputs
    parts = [(g * each).sum(1) for each in (memories, attention, embedding, biases, errors)]
    parts += [u @ at_zero + torch.tensor(rows["constant"].to_list(), dtype=torch.float64), held.sum(0)]
    return held.numpy(), direct.numpy(), torch.stack(parts, 1).numpy()


def _note(loaded: LoadedModel, read: Read, rows: pd.DataFrame, u: Tensor) -> str:
    """Says what cannot be told of a layer; "" if everything can."""
    own, number = rows["layer"].to_numpy() == read.layer.index, read.layer.index
    notes = []
    if not read.plain:
        why = (
            "what is written before it comes there through something else than sums and multiplications, such as a norm on the"
            " residual stream"
            if not read.paths.isfinite().all()
            else "it is not made of the residual stream by a norm that works token by token"
        )
        notes.append(f"Layer {number} of {loaded.anatomy.checkpoint} has no direct edges: {why}.")
    if not u[own].isfinite().all():
        notes.append(f"What some memories of layer {number} read cannot be told: it is no plain matrix.")
    banks = [place for place, matrix in enumerate(read.layer.second_matrices) if matrix.experts]
    if {*banks} - {*read.routers}:
        notes.append(f"The router of layer {number} cannot be told: no matrix of its size reads what the experts read.")
    return " ".join(notes)


def run_without(
    loaded: LoadedModel,
    ids: Tensor,
    seen: Pass,
    sources: pd.DataFrame,
    contributions: Tensor,
    rows: pd.DataFrame,
    u: Tensor,
) -> np.ndarray:
    """Runs copies of the prompt without each source. Returns how much lower pre-activations and m of the rows are then, and
    pre-activations in second copies, in which layers on the way write what they did [3, source, row].

    The last copy is whole, and proves the pass: there the layers read what they read in the unchanged pass that was `seen`.

    Raises:
        UserError: the model cannot be changed while it runs.
    """
    count, layers = len(sources), loaded.anatomy.layers[sources["layer"].min() : rows["layer"].max() + 1]
    found, written = np.full((3, count, len(rows)), np.nan), dict[int, Tensor]()

    def remove(number: int, o: Tensor) -> Tensor:
        states, y = o.reshape(2 * count + 1, -1, o.shape[-1]).clone(), written.pop(number)
        states[count:-1] += (y[-1:] - y[count:-1]).to(o)
        its = np.flatnonzero(sources["layer"] == number)
        for copies in (its, count + its):
            states[copies, sources["position"].iloc[its].to_list()] -= contributions[its].to(o)
        return states.reshape(o.shape)

    def receive(layer: Layer, quantity: str, tensor: Tensor) -> None:
        if quantity == "y":
            written[layer.index] = tensor.clone()
        if quantity == "y" or layer.index not in seen.reads:
            return
        read = np.flatnonzero(rows["layer"] == layer.index)
        positions = rows["position"].iloc[read].to_list()
        at = tensor[:, positions].double().cpu()  # [copy, row, .]
        lost = at[-1:] - at[:-1]
        if quantity == "m":
            found[1][:, read] = lost[:count, range(len(read)), rows["memory"].iloc[read].to_list()].numpy()
            return
        if not relative_error(at[-1], seen.reads[layer.index].x[positions].to(at)) < TOLERANCE:
            raise UserError(
                f"{loaded.anatomy.checkpoint} cannot be changed while it runs: a change of nothing changes what layer"
                f" {layer.index} reads. Ask for no edges of this model."
            )
        found[::2, :, read] = torch.einsum("srd,rd->sr", lost, u[read]).unflatten(0, (2, count)).numpy()

    with contextlib.ExitStack() as stack:
        for layer in layers[:-1]:
            stack.enter_context(with_output(loaded.model, layer, partial(remove, layer.index)))
        run = stack.enter_context(tap(loaded.model, layers, "xmy"))
        run(ids.expand(2 * count + 1, -1), receive)
    return found
