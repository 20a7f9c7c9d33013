"""Sets what a process uses: threads, memory allocation, device. Call `configure` before torch is imported."""

import ctypes
import fcntl
import os
import platform
import sys
import tempfile
from io import TextIOWrapper
from pathlib import Path

from ffkv.base.errors import UserError

_own_gpu: list[tuple[int, TextIOWrapper]] = []  # its number, and its lock, which lasts as long as the open file
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc's malloc.h


def configure(threads: int | None = None) -> None:
    """Lets threads sleep while they wait for each other, and limits every thread pool to `threads`.

    Beside other work on the same cores, threads that wait in a loop take the core from those that they wait for: a pass then took
    ten times as long. On a free machine sleeping threads cost a small model about a tenth of its time. With a limit, parallel jobs
    do not slow each other down.

    With a limit, the process is a command of ffkv. It then keeps the memory of large temporary arrays, too, instead of returning it
    to the kernel after each operation: page faults cost more than any other choice in the forward pass.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threads is None:
        return
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[variable] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if threads > 1 else "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def torch_with(threads: int) -> None:
    """Imports torch and limits its thread pools to `threads`. Other commands start quickly without it."""
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)


def allowed_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_threads() -> int:
    """Returns how many threads a command takes if nobody says it: those that its job of Snakemake or SLURM has, else a thread per core."""
    told = (os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"))
    asked = (int(number) for number in told if number.isdecimal() and int(number))
    return min(next(asked, allowed_cores()), allowed_cores())


def count_gpus() -> int:
    """Counts the NVIDIA GPUs that this process may use, without an import of torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()])


def own_gpu(count: int) -> str:
    """Returns the torch device of a GPU that this process alone has among the jobs of ffkv, until it ends.

    A locked file in the folder of temporary files says which GPU is taken. If all are, it is the first one: the jobs
    then share it, as their number is limited by the resource `gpu` of Snakemake alone.
    """
    if count == 1:
        return "cuda"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    for gpu in range(count) if not _own_gpu else ():
        path = Path(tempfile.gettempdir()) / f"ffkv-gpu-{os.getuid()}-{visible[gpu].strip()}.lock"
        file = path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            continue
        _own_gpu.append((gpu, file))
        break
    return f"cuda:{_own_gpu[0][0]}" if _own_gpu else "cuda"


def choose_device(device: str) -> str:
    """Returns the torch device of a setting: `auto` means a GPU if there is one, of several one that no other job has.

    Raises UserError if there is no such setting, or this machine does not have the device.
    """
    import torch

    from ffkv.base.settings import Model

    Model(device=device)  # refuses what a settings file may not say: torch knows other devices
    if device == "auto":
        return own_gpu(torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= (count := torch.cuda.device_count()):
        raise UserError(
            f"model.device is {device!r}, but torch finds {count} GPUs on this machine. Use 'auto' or 'cpu'."
        )
    return device
