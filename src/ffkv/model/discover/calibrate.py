"""Learns how each feed-forward layer reaches the residual stream, by switching it off.

Each block is run again on the inputs that it had, as it is and with its second matrices returning zero. At the place
where the difference of the two is the scaled output of these matrices, and the remainder is a residual, o = r + y
holds. No knowledge of the model's wiring is needed: this finds norms before and after the layer, norms after the sum,
multipliers, gates and parallel attention.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ffkv.base.errors import UserError
from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.dictionaries import Decoder
from ffkv.model.discover import replay
from ffkv.model.discover.find import OTHER_PARTS, FoundBlock, is_matrix
from ffkv.model.experts import coefficients, layout_of
from ffkv.model.placement import HALF, in_float32
from ffkv.model.tap.hooks import map_tensors, relative_error
from ffkv.model.tap.tap import columns_of

Factor = tuple[str, str]  # a first matrix, and the columns of its output


# Relative to the residual stream: of a layer that writes less, rounding leaves more than `MOST_ROUNDING`.
QUIET = replay.ROUNDED * torch.finfo(torch.float32).eps / replay.MOST_ROUNDING


class _Block(NamedTuple):
    """One repeat of a block."""

    name: str  # in the model
    repeat: int  # from 0
    module: nn.Module
    arguments: replay.Arguments  # what the model calls it with
    intact: replay.BlockTrace  # as it is, with all its feed-forward layers

    def path(self, inside: str) -> str:
        """Returns the name in the model of a module of the block; "" for ""."""
        return f"{self.name}.{inside}" if inside else ""


def calibrate(model: nn.Module, found: list[FoundBlock], ids: Tensor) -> list[Layer]:
    """Describes the feed-forward layers of a model, from what was found in it and a text, ids [sentence, token].

    One block at a time is in float32, whatever the type of the model: rounding to half precision would let a norm whose
    inputs are about equally long pass for a constant. Raises UserError, with the block, if a second matrix's output is
    not added to a residual stream, or no matrix that feeds it reads that stream position by position.
    """
    captured = replay.capture(model, [block for block, _, _ in found], ids)
    layers: list[Layer] = []
    for name, repeat, matrices in found:
        module = model.get_submodule(name)
        try:
            with in_float32(module):
                arguments = map_tensors(lambda t: t.float() if t.dtype in HALF else t, captured[name, repeat])
                block = _Block(name, repeat, module, arguments, replay.replay(module, arguments))
                for group, path in _groups(block, [matrix[len(name) + 1 :] for matrix in matrices]):
                    layers.append(_layer(block, group, path, len(layers)))
        except UserError as error:
            raise UserError(f"{name} ({type(module).__name__}), {error}") from error
    return layers


def _groups(block: _Block, matrices: list[str]) -> list[tuple[list[str], replay.ResidualPath]]:
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


def _path(block: _Block, matrices: list[str]) -> replay.ResidualPath:
    path = replay.residual_path(block.module, block.arguments, block.intact, matrices)
    if isinstance(path, replay.ResidualPath):
        return path
    if zero := [name for name in matrices if not any(p.any() for p in block.module.get_submodule(name).parameters())]:
        raise UserError(
            f"{', '.join(zero)}: all its weights are zero, so that its memories write nothing. The layer is untrained or"
            " pruned, and nothing can be proven of it"
        )
    off = replay.replay(block.module, block.arguments, dict.fromkeys(matrices, torch.zeros_like))
    change, names = relative_error(off.output, block.intact.output), ", ".join(matrices)
    if change < QUIET:
        raise UserError(
            f"{names}: what its memories write is at most {change:.0e} of the residual stream that it is added to, and rounding"
            " hides it. The layer is untrained, pruned, switched off, or not active on the texts of the proof. So nothing can"
            " be proven of it"
        )
    where = f"{names}: what is written is not added to a residual stream"
    raise UserError(f"{where} ({'; '.join(path[:3]) or 'no residual found'})")


def _layer(block: _Block, matrices: list[str], path: replay.ResidualPath, index: int) -> Layer:
    intact = block.intact
    scaled = zip(matrices, path.scalings, strict=True)
    second_matrices = [_second_matrix(block, matrix, scaling) for matrix, scaling in scaled]
    summed = intact.outputs.get(path.sum_module, intact.output.new_empty(0))
    post_norm = summed.shape == intact.output.shape and replay.proportion(summed, intact.output) == 1.0
    replay.replay(block.module, block.arguments)  # so that the banks' last call is of the intact block
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


def _second_matrix(block: _Block, matrix: str, scaling: replay.Scaling) -> SecondMatrix:
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
    holder = name.rpartition(".")[0]
    to_sum["dictionary"] = isinstance(module, Decoder)
    if isinstance(module, Decoder) and block.module.get_submodule(matrix.rpartition(".")[0]).encoder is not None:
        return SecondMatrix(name, [f"{holder}.encoder"], "plain", len(module.weight), **to_sum)
    first, kind, gate, columns = _first_matrices(block, matrix)
    names, memories = [block.path(inside) for inside in first], block.intact.inputs[matrix].shape[-1]
    return SecondMatrix(name, names, kind, memories, gate=block.path(gate), gate_columns=columns, **to_sum)


def _first_matrices(block: _Block, matrix: str) -> tuple[list[str], str, str, str]:
    """Finds the matrices that read x and feed a second matrix, and how they make m: plain, gated, or gated and fused.

    Names of matrices are those inside the block. Returns the names of these matrices; and kind, gate and gate columns, see
    `anatomy.SecondMatrix`. Raises UserError if none reads the residual stream, or m at a token depends on other tokens.
    """
    intact, arguments = block.intact, block.arguments
    m, width = intact.inputs[matrix], intact.output.shape[-1]
    sizes = (m.shape[-1], 2 * m.shape[-1])
    order = [n for n in intact.outputs if n != f"{matrix.removesuffix('.decoder')}.native"]  # a `Decoder` stands for it
    before = order[: order.index(matrix)]
    earlier = [n for n in before if is_matrix(block.module.get_submodule(n)) and n in intact.inputs]
    feeding = [
        name
        for name in earlier
        if not OTHER_PARTS.search(name)
        and intact.inputs[name].shape[-1] == width
        and intact.outputs[name].shape[-1] in sizes
    ]
    if not feeding:
        raise UserError(f"{matrix}: no matrix that reads the residual stream and feeds it was found")
    x = intact.inputs[feeding[-1]]
    same_input = [name for name in earlier if torch.equal(intact.inputs[name], x)]
    reversed_m = replay.replay(block.module, arguments, reversed_inputs=tuple(same_input)).inputs[matrix]
    if not relative_error(reversed_m, replay.reverse(m, arguments)) < replay.TOLERANCE:
        raise UserError(f"{matrix}: its input at a token depends on other tokens, so it is not a feed-forward layer")
    names = [name for name in feeding if name in same_input]
    fused = intact.outputs[names[0]].shape[-1] == sizes[1]
    if len(names) == 1 and not fused:
        return names, "plain", "", ""
    factors = [(names[0], "first half"), (names[0], "second half")] if fused else [(name, "all") for name in names]
    gate = _find_gate(block, matrix, factors)
    return names, "gated, fused" if fused else "gated", *gate


def _find_gate(block: _Block, matrix: str, factors: list[Factor]) -> Factor:
    """Finds the factor that goes through the activation: m changes its sign if the other factor does.

    ("", "") if that holds for neither, or if the signs of both factors do not make the sign of m.
    """
    m = block.intact.inputs[matrix]
    first, second = (columns_of(block.intact.outputs[name], columns) for name, columns in factors)
    if (m * first.sign() * second.sign()).min() < 0:  # a sigmoid, which is always positive
        return "", ""
    for (other, columns), gate in zip(factors, reversed(factors), strict=True):

        def negate(output: Tensor, columns: str = columns) -> Tensor:
            columns_of(negated := output.clone(), columns).neg_()
            return negated

        negated_m = replay.replay(block.module, block.arguments, {other: negate}).inputs[matrix]
        if relative_error(negated_m, -m) < replay.TOLERANCE:
            return gate
    return "", ""
