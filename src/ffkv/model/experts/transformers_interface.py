"""Experts that follow the library's own interface (`use_experts_implementation`)."""

from torch import Tensor, nn

from ffkv.model.experts.layout import Form, by_index, has_parameter


def _interface_first(module: nn.Module, expert: int, x: Tensor) -> tuple[Tensor, Tensor | None]:
    kind = "gate_up_proj" if module.has_gate else "up_proj"
    matrix, bias = getattr(module, kind)[expert], getattr(module, f"{kind}_bias", None)
    before = x @ (matrix if module.is_transposed else matrix.T)
    before = before if bias is None else before + bias[expert]
    if not module.has_gate:
        return module.act_fn(before), None
    gate = before.chunk(2, -1)[0] if module.is_concatenated else before[..., ::2]
    return module._apply_gate(before), gate > 0


def _interface_second(module: nn.Module, expert: int) -> Tensor:
    return module.down_proj[expert] if module.is_transposed else module.down_proj[expert].T


def _interface_signed(module: nn.Module) -> bool:
    down = module.down_proj
    units = down.shape[1 if module.is_transposed else 2]
    both = down.new_full((2, 2, units), 0.5)  # two tokens; gate and the other factor
    both[0, 0], both[1, 0] = 1, -1
    laid_out = both if module.is_concatenated else both.transpose(1, 2)
    first, second = module._apply_gate(laid_out.reshape(2, -1))[:, 0].tolist()
    return first * second <= 0


INTERFACE = Form(
    fits=lambda module: (
        hasattr(module, "_apply_gate") and has_parameter(module, "down_proj", 3) and not module.has_post_expert_norm
    ),
    gated=lambda module: module.has_gate,
    signed=lambda module: module.has_gate and _interface_signed(module),
    shape=lambda module: (module.num_experts, module.down_proj.shape[1 if module.is_transposed else 2]),
    routed=by_index,
    first=_interface_first,
    second=_interface_second,
    bias=lambda module, expert: module.down_proj_bias[expert] if hasattr(module, "down_proj_bias") else None,
)
