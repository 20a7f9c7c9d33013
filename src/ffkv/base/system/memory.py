"""The memory of the machine, as far as this process may use it."""

import sys
from pathlib import Path

import psutil

from ffkv.base.errors import UserError

# What libraries say in errors of other classes: torch, the system, Triton, HDF5 and tokenizers, C++.
WORDS = (
    "can't allocate memory",
    "Cannot allocate memory",
    "out of memory",
    "not enough memory",
    "memory allocation",
    "bad_alloc",
)


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Free bytes of memory. A limit of the process's control group (version 2) counts as memory."""
    free = float(psutil.virtual_memory().available)
    try:
        limit, used = (float((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, ValueError):  # no such group, or "max": no limit
        return free
    return max(min(free, limit - used + float(cached)), 0.0)


def is_out_of_memory(error: BaseException) -> bool:
    """Tells whether an error says that the memory of a GPU, or of the machine, does not suffice."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or any(word in str(error) for word in WORDS)


def out_of_memory(error: BaseException, weights: float = 0.0) -> UserError:
    """Makes the message about an error of `is_out_of_memory`: what is needed, what there is, and which settings help.

    `weights`: bytes of the model's weights; 0 if no model is loaded.
    """
    reason = " ".join(str(error).split())[:300]
    reason = f" ({reason})" if reason else ""
    needed = f" The weights alone take {_gib(weights)}." if weights else ""
    torch = sys.modules.get("torch")
    if type(error).__name__ == "OutOfMemoryError" and torch is not None and torch.cuda.is_available():
        states = [torch.cuda.mem_get_info(gpu) for gpu in range(torch.cuda.device_count())]
        there = ", ".join(f"GPU {gpu} has {_gib(total)}, {_gib(free)} free" for gpu, (free, total) in enumerate(states))
    else:
        there = f"{_gib(free_memory())} of the machine's memory is free"
    return UserError(
        f"The memory does not suffice{reason}.{needed} Now {there}. What helps: model.dtype bfloat16 (half the weights);"
        " fewer batches.tokens; model.max_memory (keeps weights on other GPUs, in the CPU's memory and on the"
        " disk); model.gpus (more GPUs for a job); model.device cpu; fewer jobs at the same time; more shards or layer_groups."
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
