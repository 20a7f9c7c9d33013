"""A card that is none: torch's operations run on the processor, and ffkv takes the ways that it takes on a GPU.

Tensors of the device "card" hold a tensor of the processor. What a program asks of them is counted:

- *launches*: operations that a GPU would have to start;
- *waits*: results that the program reads, and so waits for all that was started before;
- *copies*: tensors that are brought to the card, or back without waiting at once.

It says nothing of the time that a GPU takes. Operations that only describe a tensor anew, such as `view`, are not counted.
Attention counts as what it is made of, because there is no kernel that does it in one.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

DEVICE = "card"
# Operations that start nothing on a GPU: they describe a tensor anew, or take memory.
DESCRIBE = frozenset(
    [
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "detach",
        "diagonal",
        "empty",
        "empty_like",
        "empty_strided",
        "expand",
        "is_pinned",
        "lift_fresh",
        "new_empty",
        "new_empty_strided",
        "permute",
        "pin_memory",
        "resize_",
        "select",
        "set_",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
        "view_as_real",
    ]
)
# Operations whose result decides what the processor does next.
DECIDE = frozenset({"_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select"})

_there: list["PretendedCard"] = []  # the cards within which the program is


class _Device(_DummyBackendModule):
    """What torch asks about the card. Outside of `PretendedCard` there is none, so others do not wait for it."""

    def is_available(self) -> bool:
        return bool(_there)

    def synchronize(self, device: Any = None) -> None:
        _there[-1].waits["synchronize"] += 1


_setup_privateuseone_for_python_backend(DEVICE, backend_module=_Device())


class OnCard(torch.Tensor):
    """A tensor of the pretended card. `held`: the tensor of the processor that it stands for."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "OnCard":
        """Makes a tensor with the form of the held one."""
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=torch.device(DEVICE, 0),
        )
        made.held = held
        return made

    def tolist(self) -> Any:
        """The numbers. As on a GPU, they are copied first."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuses what is asked outside of `PretendedCard`, where nothing would count it."""
        raise RuntimeError(f"{func} of a tensor of the pretended card is outside of `with PretendedCard()`")


class PretendedCard(TorchDispatchMode):
    """Within it the device "card" is there. `launches`, `waits`, `copies`: how often, by the name of the operation."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.waits, self.copies = Counter[str](), Counter[str](), Counter[str]()

    def __enter__(self) -> "PretendedCard":
        """`torch.tensor(..., device="card")` makes a tensor of the processor first, which is then copied."""
        self._lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        _there.append(self)
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        """Ends it."""
        _there.remove(self)
        torch._C._set_only_lift_cpu_tensors(self._lifted)
        super().__exit__(*raised)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation on the processor, and counts it if it has to do with the card."""
        name, kwargs = func._schema.name.partition("::")[2], dict(kwargs or {})
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, OnCard)]
        onto = bool(given)
        if kwargs.get("device") is not None:
            onto = torch.device(kwargs["device"]).type == DEVICE
            kwargs |= {"device": torch.device("cpu")}
        if onto:
            kwargs.pop("pin_memory", None)
        result = func(*tree_map(_held, args), **tree_map(_held, kwargs))
        self._count(name, args, given, onto, kwargs.get("non_blocking", False))
        if not onto:
            # A copy of the whole tensor: what the card does later must not change what was read.
            return result.clone() if given and isinstance(result, torch.Tensor) and result is given[0].held else result
        same = {id(each.held): each for each in given}  # what an operation in place returns
        return tree_map(
            lambda each: same.get(id(each), OnCard(each)) if isinstance(each, torch.Tensor) else each, result
        )

    def _count(self, name: str, args: Any, given: list[OnCard], onto: bool, non_blocking: bool) -> None:
        if name == "_to_copy" and onto != bool(given):
            (self.copies if onto or non_blocking else self.waits)[name] += 1
        elif name == "copy_" and len({isinstance(each, OnCard) for each in args[:2]}) == 2:
            (self.copies if isinstance(args[0], OnCard) else self.waits)[name] += 1
        elif given and name in DECIDE:
            self.waits[name] += 1
            self.launches[name] += name != "_local_scalar_dense"
        elif (onto or given) and name not in DESCRIBE:
            self.launches[name] += 1


def _count_block(ran: Counter[str], name: str, *_: Any) -> None:
    ran[name] += 1


def _held(value: Any) -> Any:
    return value.held if isinstance(value, OnCard) else value


@contextlib.contextmanager
def as_device() -> Iterator[Counter[str]]:
    """Within it all models and heads that ffkv loads are on the pretended card. Ask for the device "card" of its functions.

    Yields how often each block of a loaded model ran, by its name.
    """
    from ffkv.model.checkpoint import load
    from ffkv.model.head import head_file

    ran, own = Counter[str](), load.LoadedModel

    def loaded(model: torch.nn.Module, anatomy: Any, device: str) -> Any:
        for name in {layer.block for layer in anatomy.layers}:
            model.get_submodule(name).register_forward_pre_hook(functools.partial(_count_block, ran, name))
        return own(model.to(DEVICE), anatomy, DEVICE)

    with (
        patch.object(load, "choose_device", lambda device: "cpu"),
        patch.object(load, "LoadedModel", loaded),
        patch.object(head_file, "choose_device", lambda device: DEVICE),
    ):
        yield ran
