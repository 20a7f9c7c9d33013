"""Opens every file of a run as it appears under its name."""

import json
import threading
import time
from pathlib import Path

import h5py
import pandas as pd
from safetensors import safe_open

LIVE = ("logs", "benchmarks")  # written line by line, by the shell and by Snakemake


def read_whole(path: Path) -> None:
    """Reads a file to its end, by means of its own format alone. Raises whatever that raises."""
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            file.visititems(lambda name, item: item[...] if isinstance(item, h5py.Dataset) else None)
    elif path.suffix == ".parquet":
        pd.read_parquet(path)
    elif path.suffix == ".csv":
        text = path.read_text()
        assert text.endswith("\n"), "the last line has no end"
        pd.read_csv(path)
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.suffix == ".safetensors":
        with safe_open(path, "numpy") as file:
            [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118 (it is no dictionary)
    elif path.suffix in (".html", ".svg"):
        assert path.read_text().rstrip().endswith(f"</{path.suffix[1:]}>"), "the last tag is missing"


class Watcher(threading.Thread):
    """Reads each new file below some folders, and each that was replaced.

    seen: how many were read. broken: what was not whole, and why.
    """

    def __init__(self, folders: list[Path]):
        super().__init__(daemon=True)
        self.seen, self.broken = 0, []
        self._folders, self._known, self._end = folders, {}, threading.Event()

    def run(self):
        while not self._end.is_set():
            self._look()
            time.sleep(0.01)
        self._look()

    def stop(self) -> None:
        """Ends after a last look."""
        self._end.set()
        self.join()

    def _look(self) -> None:
        for folder in self._folders:
            for path in folder.rglob("*"):
                parts = path.relative_to(folder).parts
                if any(part.startswith(".") for part in parts) or set(LIVE) & set(parts[:-1]):
                    continue
                try:
                    entry = path.stat()
                    version = (entry.st_ino, entry.st_mtime_ns, entry.st_size)
                    if not path.is_file() or self._known.get(path) == version:
                        continue
                    self._known[path] = version
                    read_whole(path)
                    self.seen += 1
                except FileNotFoundError:  # Snakemake deletes what a failed job had made
                    continue
                except Exception as error:
                    if path.exists() and path.stat().st_ino == entry.st_ino:
                        self.broken.append((str(path), repr(error)))
