"""Learns how each feed-forward layer reaches the residual stream, by switching it off.

Each block is run again on the inputs that it had, as it is and with its second matrices returning zero. At the place
where the difference of the two is the scaled output of these matrices, and the remainder is a residual, o = r + y
holds. No knowledge of the model's wiring is needed: this finds norms before and after the layer, norms after the sum,
multipliers, gates and parallel attention.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.discover.find import FoundBlock
from ffkv.model.discover.first_matrices import find_first_matrices
from ffkv.model.discover.replay import Arguments, BlockTrace, capture, map_tensors, replay
from ffkv.model.discover.residual_path import ResidualPath, residual_path
from ffkv.model.discover.scaling import Scaling, proportion
from ffkv.model.experts.layouts import layout_of
from ffkv.model.experts.record import coefficients
from ffkv.model.placement.resident import HALF, in_float32


class _Block(NamedTuple):
    """One repeat of a block."""

    name: str  # in the model
    repeat: int  # from 0
    module: nn.Module
    arguments: Arguments  # what the model calls it with
    intact: BlockTrace  # as it is, with all its feed-forward layers

    def path(self, inside: str) -> str:
        """Returns the name in the model of a module of the block; "" for ""."""
        return f"{self.name}.{inside}" if inside else ""


def calibrate(model: nn.Module, found: list[FoundBlock], ids: Tensor) -> list[Layer]:
    """Describes the feed-forward layers of a model, from what was found in it and a text, ids [sentence, token].

    One block at a time is in float32, whatever the type of the model: rounding to half precision would let a norm whose
    inputs are about equally long pass for a constant. Raises UserError, with the block, if a second matrix's output is
    not added to a residual stream, or no matrix that feeds it reads that stream position by position.
    """
    captured = capture(model, [block for block, _, _ in found], ids)
    layers: list[Layer] = []
    for name, repeat, matrices in found:
        module = model.get_submodule(name)
        try:
            with in_float32(module):
                arguments = map_tensors(lambda t: t.float() if t.dtype in HALF else t, captured[name, repeat])
                block = _Block(name, repeat, module, arguments, replay(module, arguments))
                for group, path in _groups(block, [matrix[len(name) + 1 :] for matrix in matrices]):
                    layers.append(_layer(block, group, path, len(layers)))
        except UserError as error:
            raise UserError(f"{name} ({type(module).__name__}), {error}") from error
    return layers


def _groups(block: _Block, matrices: list[str]) -> list[tuple[list[str], ResidualPath]]:
    """Groups the second matrices that are added to the residual stream at the same place, with their path to it."""
    try:
        return [(matrices, _path(block, matrices))]
    except UserError:
        if len(matrices) == 1:
            raise
        together: dict[str, list[str]] = {}
        for matrix in matrices:
            together.setdefault(_path(block, [matrix]).sum_module, []).append(matrix)
        if len(together) == 1:
            raise
    order = list(block.intact.outputs)
    groups = sorted(together.values(), key=lambda group: order.index(group[-1]))
    return [(group, _path(block, group)) for group in groups]


def _path(block: _Block, matrices: list[str]) -> ResidualPath:
    path = residual_path(block.module, block.arguments, block.intact, matrices)
    if isinstance(path, ResidualPath):
        return path
    if zero := [name for name in matrices if not any(p.any() for p in block.module.get_submodule(name).parameters())]:
        raise UserError(
            f"{', '.join(zero)}: all its weights are zero, so that its memories write nothing. The layer is untrained or"
            " pruned, and nothing can be proven of it"
        )
    where = f"{', '.join(matrices)}: what is written is not added to a residual stream"
    raise UserError(f"{where} ({'; '.join(path[:3]) or 'no residual found'})")


def _layer(block: _Block, matrices: list[str], path: ResidualPath, index: int) -> Layer:
    intact = block.intact
    second_matrices = [
        _second_matrix(block, matrix, scaling) for matrix, scaling in zip(matrices, path.scalings, strict=True)
    ]
    summed = intact.outputs.get(path.sum_module, intact.output.new_empty(0))
    post_norm = summed.shape == intact.output.shape and proportion(summed, intact.output) == 1.0
    replay(block.module, block.arguments)  # so that the banks' last call is of the intact block
    negative = (coefficients(block.module.get_submodule(matrix), intact.inputs[matrix]) < 0 for matrix in matrices)
    return Layer(
        index,
        block.name,
        second_matrices,
        signed=any(bool(entries.any()) for entries in negative),
        repeat=block.repeat,
        sum_module=block.path(path.sum_module),
        post_norm=post_norm,
        output_module=block.path(path.output_module),
        output_scale=path.output_scale,
        output_kind=path.output_kind,
    )


def _second_matrix(block: _Block, matrix: str, scaling: Scaling) -> SecondMatrix:
    name, module = block.path(matrix), block.module.get_submodule(matrix)
    scale = scaling.scale.flatten().tolist() if isinstance(scaling.scale, Tensor) else scaling.scale
    to_sum: Any = {"scale": scale, "per_token_weight": scaling.per_token_weight}
    if (layout := layout_of(module)) is not None:
        return SecondMatrix(
            name,
            [name if layout.reads_x else name.rpartition(".")[0]],
            "gated" if layout.gated else "plain",
            layout.experts * layout.units,
            gate=name if layout.gate_has_sign else "",
            experts=layout.experts,
            **to_sum,
        )
    first, kind, gate, columns = find_first_matrices(block.module, matrix, block.intact, block.arguments)
    names, memories = [block.path(inside) for inside in first], block.intact.inputs[matrix].shape[-1]
    return SecondMatrix(name, names, kind, memories, gate=block.path(gate), gate_columns=columns, **to_sum)
