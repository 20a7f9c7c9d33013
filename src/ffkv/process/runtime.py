"""What a process is allowed to use: threads, memory behaviour, device, seeds. Call `configure` before torch works."""

import ctypes
import os
import platform
import sys

from ffkv.errors import UserError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def configure(threads: int) -> None:
    """Limits every thread pool to `threads`, so that jobs side by side do not spin against each other.

    Large temporaries are kept by the process instead of being returned to the kernel at each operation: the page
    faults that this saves cost more than any other choice in the forward pass.
    """
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[variable] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads > 1 else "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def torch_with(threads: int):
    """torch, with its pools limited to `threads`. Imported late: a command that does no tensor work stays quick."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return torch


def choose_device(device: str) -> str:
    """The torch device behind a setting: `auto` takes a GPU where there is one.

    Raises:
        UserError: the named device is not here.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"model.device is {device!r}, but torch sees {count} GPUs here: use 'auto' or 'cpu'.")
    return device
