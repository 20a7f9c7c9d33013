"""The authors' own model and sentences, beside the time that the authors' code took for them."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Comparison, Contender, Unmeasured, Work, run_command
from ffkv.base.settings import Corpus, Model
from ffkv.corpus.step import encode_corpus
from ffkv.model.step import prove

ORACLE = ROOT.parent / "shared" / "oracle"
# The trigger search of github.com/mega002/ff-layers @ f4a71c6 on this model and these sentences: CPU seconds of one thread.
AUTHORS = 556
OPTIONS = "--shard 0 --shards 1 --include-empty-prefix --no-negative"


def ffkv(scratch: Path) -> Work:
    """`ffkv triggers` from the start of its process to its end."""
    if not ORACLE.exists():
        raise Unmeasured("the authors' model and sentences are not beside the project")
    folder = scratch / "oracle"
    if not folder.exists():
        (folder / "model").mkdir(parents=True)
        text = folder / "sentences.txt"
        text.write_text("\n".join(json.loads((ORACLE / "sentences.json").read_text())))
        prove(Model(checkpoint=str(ORACLE / "model"), device="cpu")).write(folder / "model")
        lines: dict[str, Any] = {"dataset": "files", "splitter": "line", "pretokenized": True, "deduplicate": False}
        files = Corpus(**lines, train=[str(text)], validation=[str(text)])
        encode_corpus(folder / "model", "train", files, folder / "train.h5")
    inputs = ("--model", folder / "model", "--corpus", folder / "train.h5", "--output", folder / "triggers.h5")
    command: list[str | Path] = [Path(sys.executable).parent / "ffkv", "triggers", *inputs, *OPTIONS.split()]
    return lambda: {"command": run_command(*command, env={**os.environ, "HF_HUB_OFFLINE": "1"})}


COMPARISONS = [
    Comparison(
        "triggers of the authors' model",
        "L=6 d=128 d_m=512 V=13,784, 1,493 sentences",
        {"ffkv": Contender(f"{__name__}:ffkv")},
        lambda measurements: AUTHORS / measurements["ffkv"].extra["command"],
        150,
        "times less CPU time than the authors' code",
        at_most=False,
        note=f"the authors' code took {AUTHORS} CPU seconds on one thread, measured once; ours includes the start of its process",
    )
]
