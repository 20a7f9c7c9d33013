"""The process of one contender: prepares its work, does it once, and writes down the time that it took."""

import importlib
import json
import sys
import time
from pathlib import Path


def main(function: str, scratch: str, arguments: str, answer: str) -> None:
    """Runs a contender.

    Args:
        function: "module:function", see `measure.Contender`.
        scratch: the scratch folder.
        arguments: arguments of the function, as JSON.
        answer: JSON file to write. It holds cpu, wall, digest and extra of `measure.Measurement`; or `unmeasured`, the
            reason why the contender cannot run.
    """
    from benchmarks.measure import Unmeasured

    module, name = function.split(":")
    try:
        work = getattr(importlib.import_module(module), name)(Path(scratch), **json.loads(arguments))
    except Unmeasured as reason:
        Path(answer).write_text(json.dumps({"unmeasured": str(reason)}))
        return
    cpu, wall = time.process_time(), time.perf_counter()
    digest, extra = work() or ("", {})
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    Path(answer).write_text(json.dumps({"cpu": cpu, "wall": wall, "digest": digest, "extra": extra}))


if __name__ == "__main__":
    main(*sys.argv[1:])
