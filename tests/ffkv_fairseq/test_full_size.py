"""The paper's model at its full size, with random weights: what each step costs, and that it stays in bounds."""

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pytest
import torch

from ffkv.base.files import tables
from ffkv.model.anatomy import read_anatomy
from ffkv_fairseq.checkpoint import read_checkpoint

pytestmark = pytest.mark.large

VOCABULARY, LAYERS, D, MEMORIES = 267_744, 16, 1024, 4096
PARAMETERS = 246_933_504  # the paper's 247M
GIB = 2**30


class Cost(NamedTuple):
    """What a command took: seconds by the clock and of the processors, and the largest resident memory in bytes."""

    seconds: float
    processor: float
    peak: int


# A child's largest memory counts that of the process that it was forked from: here a small one stands between.
BETWEEN = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
_, status, usage = os.wait4(child.pid, 0)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def measured(*arguments) -> Cost:
    """Runs an `ffkv` command with two threads; each process that encodes a corpus has one."""
    started = time.monotonic()
    command = ["ffkv", *map(str, arguments), *(("--threads", "2") if arguments[0] != "corpus" else ())]
    done = subprocess.run([sys.executable, "-c", BETWEEN, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    processor, peak = done.stdout.split()[-2:]
    cost = Cost(time.monotonic() - started, float(processor), int(peak))
    print(  # seen with pytest -s
        f"{' '.join(command[:3]):24} {cost.seconds:6.1f} s, {cost.processor:6.1f} s of processors, {cost.peak / GIB:5.2f} GiB"
    )
    return cost


@pytest.fixture(scope="module")
def checkpoint(write_checkpoint, tmp_path_factory) -> Path:
    form = {"d": D, "d_m": MEMORIES, "heads": 8, "cutoffs": (20_000, 60_000), "factor": 4, "max_target_positions": 3072}
    return write_checkpoint(tmp_path_factory.mktemp("full") / "fairseq", layers=LAYERS, vocabulary=VOCABULARY, **form)


@pytest.fixture(scope="module")
def run(checkpoint, tmp_path_factory) -> tuple[Path, dict[str, Cost]]:
    """The folder of a run by hand, and what each of its steps took."""
    out, costs = tmp_path_factory.mktemp("full") / "run", {}
    generator = np.random.default_rng(0)
    rare = generator.zipf(1.2, (200, 9)) % (VOCABULARY - 4) + 4
    text = out.with_suffix(".txt")
    text.write_text("\n".join(" ".join(f"w{word}" for word in sentence) for sentence in rare))
    model, values, corpus = ("--model", out / "model"), ("--output-values", out / "values.h5"), out / "corpus.h5"
    files = ("--dataset", "files", "--train", text, "--validation", text, "--pretokenized", "--splitter", "line")
    group, projections = ("--layer-group", "15", "--layer-groups", "16"), out / "projections.h5"
    both = ("--triggers", out / "triggers.h5", "--output-projections", projections)
    for step, arguments in {
        "model": ("--checkpoint", checkpoint, "--output", out / "model", *values),
        "corpus": (*model, "--split", "train", *files, "--output", corpus),
        "triggers": (*model, "--corpus", corpus, "--output", out / "triggers.h5"),
        "sampled-prefixes": (*model, "--corpus", corpus, "--count", 50, "--output", out / "sampled_prefixes.h5"),
        "values project": (
            *model,
            "--values",
            out / "values.h5",
            *group,
            *both,
            "--output-by-memory",
            out / "by_memory.parquet",
        ),
    }.items():
        costs[step] = measured(*step.split(), *arguments)
    return out, costs


def test_the_model_is_proven(run):
    anatomy = read_anatomy(run[0] / "model")
    assert (anatomy.parameters, anatomy.vocabulary, anatomy.context) == (PARAMETERS, VOCABULARY, 3072)
    assert [layer.memories for layer in anatomy.layers] == [MEMORIES] * LAYERS
    assert max(anatomy.errors.values()) < 1e-5
    assert (run[0] / "model" / "head.safetensors").stat().st_size < 0.2 * GIB  # the tied matrices once


def test_triggers_and_prefixes_are_there(run):
    with h5py.File(run[0] / "triggers.h5") as file:
        assert file["coefficient"].shape == (LAYERS * MEMORIES, 50)
        assert np.median(file["count"][...]) == 50
    with h5py.File(run[0] / "sampled_prefixes.h5") as file:
        assert file["m"].shape == (50, LAYERS * MEMORIES)
        assert np.isfinite(file["y"][...]).all() and np.isfinite(file["o"][...]).all()


def test_values_are_projected_by_the_whole_softmax(run, checkpoint):
    """Three values of the last layer by the formula, from the tensors as fairseq stores them."""
    weight = read_checkpoint(checkpoint / "model.pt")[1]
    stem, chosen = "decoder.adaptive_softmax", [0, 1000, 4095]
    v = weight["decoder.layers.15.fc2.weight"][:, chosen].T
    head = torch.cat([v @ weight[f"{stem}.head.{part}_proj.weight"].T for part in ("word", "class")], 1).log_softmax(1)
    tails = [
        ((v @ weight[f"{stem}.tail.{tail}.0.weight"]) @ weight[f"{stem}.tail.{tail}.2.weight"].T).log_softmax(1)
        + head[:, 20_000 + tail, None]
        for tail in range(2)
    ]
    expected = torch.cat([head[:, :20_000], *tails], 1)
    with h5py.File(run[0] / "projections.h5") as file:
        assert file["top"].shape == (MEMORIES,)
        found = torch.from_numpy(file["top_log_probability"][chosen])
        top = torch.from_numpy(file["top"][chosen])
    torch.testing.assert_close(found, expected.topk(50, 1).values, rtol=0, atol=1e-4)
    assert torch.equal(top.long(), expected.argmax(1))


def test_ranks_cover_the_vocabulary(run):
    table = tables.read(run[0] / "by_memory.parquet")
    assert len(table) == MEMORIES and table["layer"].eq(15).all()
    ranks = table["rank"][table["rank"] >= 0]
    assert len(ranks) > 0.9 * MEMORIES and ranks.min() >= 0 and ranks.max() < VOCABULARY


def test_memory_stays_in_bounds(run):
    """Of a workstation, however large the vocabulary: the head works in chunks."""
    for step, limit in {"values project": 3, "model": 4, "triggers": 4, "sampled-prefixes": 4}.items():
        assert run[1][step].peak < limit * GIB, step
