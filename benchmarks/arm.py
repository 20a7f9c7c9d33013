"""The process of one arm: gets ready, works once, writes down what it took."""

import importlib
import json
import sys
import time
from pathlib import Path


def main(function: str, scratch: str, arguments: str, answer: str) -> None:
    """Runs `module:function` with the scratch folder and its arguments; see `measure.Arm`."""
    from benchmarks.measure import Unmeasured

    module, name = function.split(":")
    try:
        work = getattr(importlib.import_module(module), name)(Path(scratch), **json.loads(arguments))
    except Unmeasured as reason:
        Path(answer).write_text(json.dumps({"unmeasured": str(reason)}))
        return
    cpu, wall = time.process_time(), time.perf_counter()
    digest, extra = work() or ("", {})
    found = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "digest": digest, "extra": extra}
    Path(answer).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
