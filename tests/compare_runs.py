"""Compares the folders of two runs: every dataset and every table, to the byte.

    python tests/compare_runs.py OLD/results/demo NEW/results/demo [--renamed tests/renamed.json]

A file, dataset or column that was renamed on purpose is listed in the JSON file. Exit code 1 if anything else differs.
"""

import argparse
import json
import sys
from fnmatch import fnmatch
from pathlib import Path

import h5py
import numpy as np
import pandas as pd

RENAMED = Path(__file__).parent / "renamed.json"
# Times and machine states; text for people; what is compared through other files.
SKIPPED = ("logs", "benchmarks")


def files_of(folder: Path) -> set[str]:
    """The files of a run that hold numbers, relative to its folder."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        str(path)
        for path in paths
        if path.parts[0] not in SKIPPED and not any(part.startswith(".") for part in path.parts)
    }


def datasets_of(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The datasets of an HDF5 file by name, without dimension scales."""
    found: dict[str, h5py.Dataset] = {}
    file.visititems(
        lambda name, item: (
            found.update({name: item}) if isinstance(item, h5py.Dataset) and not name.startswith("dimension/") else None
        )
    )
    return found


def compare_hdf5(old: Path, new: Path, gone: list[str]) -> list[str]:
    """What differs between two HDF5 files. gone: datasets that the new one leaves out on purpose."""
    with h5py.File(old) as before, h5py.File(new) as after:
        left, right = datasets_of(before), datasets_of(after)
        problems = [f"dataset {name} is missing" for name in sorted(left.keys() - right.keys() - {*gone})]
        problems += [f"dataset {name} is new" for name in sorted(right.keys() - left.keys())]
        for name in sorted(left.keys() & right.keys()):
            a, b = left[name][...], right[name][...]
            if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                where = f" (at most {np.abs(a.astype(float) - b).max():g})" if a.shape == b.shape and a.size else ""
                problems.append(f"dataset {name} differs{where}")
    return problems


def compare_tables(old: Path, new: Path, columns: dict[str, str]) -> list[str]:
    """What differs between two tables; columns: old names to new ones."""
    if old.suffix == ".csv":
        header, _, rest = old.read_bytes().partition(b"\n")
        for before, after in columns.items():
            header = b",".join(after.encode() if name == before.encode() else name for name in header.split(b","))
        return [] if new.read_bytes() == header + b"\n" + rest else ["the bytes differ"]
    before, after = pd.read_parquet(old).rename(columns=columns), pd.read_parquet(new)
    try:
        pd.testing.assert_frame_equal(before, after, check_exact=True)
    except AssertionError as error:
        return [" ".join(str(error).split())[:200]]
    return []


def compare(old: Path, new: Path, renamed: dict) -> list[str]:
    """What differs between the folders of two runs, one line per file or dataset."""
    names, gone, columns = renamed["files"], renamed["datasets"], renamed["columns"]

    def new_name(name: str) -> str:
        for before, after in names.items():
            if name == before or name.startswith(before + "/"):
                return after + name[len(before) :]
        return name

    before, after = {new_name(name): name for name in files_of(old)}, files_of(new)
    ignored = {*renamed["ignored"]}
    problems = [f"{name}: missing" for name in sorted(before.keys() - after - ignored)]
    added = {name for name in after if any(fnmatch(name, pattern) for pattern in renamed["added"])}
    problems += [f"{name}: new" for name in sorted(after - before.keys() - ignored - added)]
    for name in sorted(before.keys() & after - ignored):
        a, b = old / before[name], new / name
        if a.suffix == ".h5":
            found = compare_hdf5(a, b, gone.get(name.partition("/")[0].removesuffix(".h5"), []))
        elif a.suffix in (".csv", ".parquet"):
            found = compare_tables(a, b, columns.get(name, {}))
        else:
            found = [] if a.read_bytes() == b.read_bytes() else ["the bytes differ"]
        problems += [f"{name}: {problem}" for problem in found]
    return problems


def main() -> None:
    """Prints what differs between the two folders on the command line."""
    parser = argparse.ArgumentParser(description="Compare the folders of two runs.")
    parser.add_argument("old", type=Path, help="such as OLD/results/demo")
    parser.add_argument("new", type=Path)
    parser.add_argument("--renamed", type=Path, default=RENAMED, help="what was renamed on purpose")
    asked = parser.parse_args()
    for folder in (asked.old, asked.new):
        if not (folder / "settings.json").is_file():
            parser.error(f"{folder} is not the folder of a run: it has no settings.json")
    problems = compare(asked.old, asked.new, json.loads(asked.renamed.read_text()))
    print("\n".join(problems) or f"{len(files_of(asked.new))} files are equal.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
