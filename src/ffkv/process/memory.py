"""The memory of the machine, as far as this process may use it."""

from pathlib import Path

import psutil


def free_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Free bytes of memory. A limit of the process's control group (version 2) counts as memory."""
    free = float(psutil.virtual_memory().available)
    try:
        limit, used = (float((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["inactive_file"]
    except (OSError, ValueError):  # no such group, or "max": no limit
        return free
    return max(min(free, limit - used + float(cached)), 0.0)
