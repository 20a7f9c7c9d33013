"""Reads small files, and JSON, up to a size and a depth: whatever lies there, memory and time have a limit."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

LARGEST = 2**24  # bytes


def read_bytes(path: Path | str, largest: int = LARGEST) -> bytes:
    """Reads a file, also one without end. Raises ValueError if it has more than `largest` bytes; OSError as `open`."""
    with Path(path).open("rb") as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise ValueError(f"it has more than {largest:,} bytes")
    return content


def read_json(path: Path | str, largest: int = LARGEST, **options: Any) -> Any:
    """Reads a file of JSON; `options` as for `parse_json`. Raises ValueError as `read_bytes` and `parse_json`; OSError as `open`."""
    return parse_json(read_bytes(path, largest), **options)


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parses JSON. `options`: those of `json.loads`; its `object_pairs_hook` may take a name twice.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or has a name twice in an object, of which `json.loads` would
            drop one; or a number has more digits than Python reads.
    """
    try:
        return json.loads(text, **{"object_pairs_hook": _unique, **options})
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"the name {name[:100]!r} occurs twice")
    return found
