"""The authors' own model and sentences, beside what the authors' code took for them."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import ROOT, Arm, Row, Unmeasured

ORACLE = ROOT.parent / "shared" / "oracle"
# The trigger search of github.com/mega002/ff-layers @ f4a71c6 on this model and these sentences: CPU seconds of one thread.
AUTHORS = 556


def ffkv(scratch: Path) -> Callable:
    """`ffkv triggers` from the start of its process to the end."""
    if not ORACLE.exists():
        raise Unmeasured("the authors' model and sentences are not beside the project")
    folder = scratch / "oracle"
    run = [Path(sys.executable).parent / "ffkv"]
    if not folder.exists():
        (folder / "text").mkdir(parents=True)
        text = folder / "text" / "sentences.txt"
        text.write_text("\n".join(json.loads((ORACLE / "sentences.json").read_text())))
        made = ["--output", folder / "model", "--memories", folder / "values.h5"]
        subprocess.run([*run, "model", "--checkpoint", ORACLE / "model", *made], check=True)
        corpus = ["corpus", "--model", folder / "model", "--split", "train", "--dataset", "files", "--splitter", "line"]
        corpus += ["--train", text, "--validation", text, "--pretokenized", "--no-deduplicate"]
        subprocess.run([*run, *corpus, "--output", folder / "train.h5"], check=True)
    command = [*run, "triggers", "--model", folder / "model", "--corpus", folder / "train.h5", "--shard", "0"]
    command += ["--shards", "1", "--include-empty-prefix", "--no-negative", "--output", folder / "triggers.h5"]

    def work() -> tuple[str, dict[str, float]]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return "", {"command": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}

    return work


ROWS = [
    Row(
        "triggers of the authors' model",
        "L=6 d=128 d_m=512 V=13,784, 1,493 sentences",
        {"ffkv": Arm(f"{__name__}:ffkv")},
        lambda samples: AUTHORS / samples["ffkv"].extra["command"],
        150,
        "times less CPU than the authors' code",
        at_most=False,
        note=f"the authors' code: {AUTHORS} CPU seconds on one thread, measured once and quoted; ours with the start of its process",
    )
]
