"""Sets what a process uses: threads, memory allocation, device. Call `configure` before torch is imported."""

import ctypes
import os
import platform
import sys

from ffkv.errors import UserError

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def configure(threads: int) -> None:
    """Limits every thread pool to `threads`, so that parallel jobs do not slow each other down.

    It also lets the process keep the memory of large temporary arrays instead of returning it to the kernel after each
    operation. This avoids page faults, which cost more than any other choice in the forward pass.
    """
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[variable] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads > 1 else "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def torch_with(threads: int) -> None:
    """Imports torch and limits its thread pools to `threads`. The import is late, so that other commands start quickly."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)


def choose_device(device: str) -> str:
    """Returns the torch device of a setting: `auto` means a GPU if there is one.

    Raises:
        UserError: this machine does not have the device.
    """
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(
            f"model.device is {device!r}, but torch finds {count} GPUs on this machine. Use 'auto' or 'cpu'."
        )
    return device
