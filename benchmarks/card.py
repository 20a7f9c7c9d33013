"""`python -m benchmarks card`: what is measured on the day that a card is there, the most valuable part first.

Each part is written into `results/card.json` as soon as it is done, and the table in docs/benchmarks.md after it. The same command
goes on with the parts that this card lacks. A part that would not end within the time begins the next time.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from benchmarks.cases.smollm2 import CONTENDERS, layers_of, over_limit
from benchmarks.inputs import LLAMA_8B, SMOLLM2, Llama, make_llama
from benchmarks.measure import ROOT, Measurement, run_contender, same_work

RESULTS, PAGE = ROOT / "benchmarks/results/card.json", ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- written by `python -m benchmarks card` -->", "<!-- end of the card -->"
MINUTES = 10.0  # for which a card is lent
# Operations per second of products in float32 (without TF32) and in bfloat16, of the data sheets of the SXM modules.
PEAKS = {"H100": (67e12, 989e12), "H200": (67e12, 989e12), "A100": (19.5e12, 312e12)}
SHAPES = {"SmolLM2": SMOLLM2, "Llama 3 8B, 4 layers": LLAMA_8B._replace(layers=4)}
SENTENCES = {"SmolLM2": 12_000, "Llama 3 8B, 4 layers": 4000}  # some 300,000 and 100,000 tokens
BATCH_TOKENS = 16_384
# The run that takes every kind of step of a large shape once: little text, all branches, few of everything.
EVERY_STEP: dict[str, Any] = {
    "corpus": {"dataset": "files", "splitter": "line", "validation_share": 0.3},
    "batches": {"tokens": BATCH_TOKENS},
    "prefixes": {"count": 100},
    "keys": {"per_layer": 4},
    "intervention": {"memories": 2, "examples": 2, "controls": 5, "directions": 2, "similar": 2, "top_k_prefixes": 5},
    "report": {"control": "none"},
}
BEHAVIOUR: dict[str, Any] = {
    "minimum_accuracy": 0,
    "controls": 5,
    "directions": 2,
    "candidates": 3,
    "effect_prompts": 6,
    "sets": [1, 2],
    "random_sets": 2,
    "side_effect_prefixes": 5,
    "bootstraps": 10,
    "flips": 200,
    "graph_prompts": 2,
}


class Part(NamedTuple):
    """What is measured together.

    Attributes:
        minutes: how long it takes, about.
        take: measures it in a folder of inputs, on a card with a name. Returns what the table tells.
    """

    minutes: float
    take: Callable[[Path, str], dict[str, Any]]


def rates(
    shape: Llama, sentences: int, dtype: str, scratch: Path, card: str, device: str = "cuda", tokens: int = BATCH_TOKENS
) -> dict[str, Any]:
    """Speed of a random model: tokens per second of the forward pass and of triggers, and all ratios to the limits."""
    options = {"device": device, "batch_tokens": tokens, "limit": sentences, "dtype": dtype, "llama": [*shape]}
    contenders = same_work("benchmarks.cases.smollm2", CONTENDERS, **options)
    measured: dict[str, Measurement] = {name: run_contender(each, scratch) for name, each in contenders.items()}
    forward, triggers = measured["forward"], measured["triggers"]
    count = forward.extra["tokens"]
    peak = next((peaks[dtype != "float32"] for name, peaks in PEAKS.items() if name in card), None)
    return {
        "forward": count / forward.wall,
        "share": peak and 2 * shape.block_weights * count / forward.wall / peak,
        "triggers": count / triggers.wall,
        "triggers ratio": triggers.wall / forward.wall,
        "removal ratio": over_limit("removal", clock="wall")(measured),
        "kept ratio": over_limit("keep", len(layers_of(shape.layers)), "wall")(measured),
    }


def command(*words: str) -> dict[str, Any]:
    """Runs a command in the repository. Returns the last line that it wrote, whether it failed or not."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return {"told": f"{lines[-1] if lines else 'nothing'} (exit code {done.returncode})"}


def run_of(configfile: Path | str, folder: Path | str = ROOT) -> dict[str, Any]:
    """Makes a run with Snakemake. Returns the seconds of each kind of step, by the clock."""
    cores = str(os.cpu_count() or 1)
    told = command("snakemake", "--cores", cores, "--configfile", str(configfile), "--directory", str(folder))
    seconds = Counter[str]()
    for path in sorted(Path(folder, "results").glob("*/benchmarks/**/*.tsv")):
        step = path.relative_to(folder).parts[3].removesuffix(".tsv")  # results/<run>/benchmarks/<step>
        seconds[step] += round(float(pd.read_csv(path, sep="\t")["s"].iloc[0]), 1)
    return told | {"seconds": dict(seconds)}


def report(scratch: Path, card: str) -> dict[str, Any]:
    """The run of `make report` on the card, beside the tables of `tests/reference`."""
    made = run_of(ROOT / "config.yaml")
    return made | {"compared": command(sys.executable, "tests/reference/compare.py", "results/demo")["told"]}


def every_step(scratch: Path, card: str, shape: Llama = SHAPES["Llama 3 8B, 4 layers"]) -> dict[str, Any]:
    """A run of a random model, with little text."""
    folder = scratch / "every_step"
    folder.mkdir(exist_ok=True)
    checkpoint = make_llama(scratch, shape, "bfloat16").parent / "checkpoint"
    (folder / "settings.yaml").write_text(json.dumps(settings_of_every_step(folder, checkpoint)))
    return run_of(folder / "settings.yaml", folder)


def settings_of_every_step(folder: Path, checkpoint: Path) -> dict[str, Any]:
    """The settings of a run of a checkpoint whose words are w0, w1, and so on; writes its text and its prompts."""
    text, prompts = folder / "text.txt", folder / "prompts.jsonl"
    text.write_text("\n".join(" ".join(f"w{7 * line + word}" for word in range(20)) for line in range(100)))
    with prompts.open("w") as file:
        for row in range(12):
            a, b, c, right, wrong = (f"w{20 * row + word}" for word in range(5))
            pair = {"clean_prefix": f"{a} {b}", "patch_prefix": f"{a} {c}"}
            file.write(json.dumps(pair | {"clean_answer": f" {right}", "patch_answer": f" {wrong}"}) + "\n")
    return EVERY_STEP | {
        "model": {"checkpoint": str(checkpoint), "dtype": "bfloat16"},
        "corpus": EVERY_STEP["corpus"] | {"train": [str(text)]},
        "behaviours": {"words": BEHAVIOUR | {"prompts": str(prompts)}},
        "runs": {"large": {}},
    }


def tests(scratch: Path, card: str) -> dict[str, Any]:
    """The tests of GPUs."""
    return command(sys.executable, "-m", "pytest", "-q", "-n0", "tests/gpu")


PARTS = {
    **{
        f"{name}, {dtype}": Part(minutes, partial(rates, SHAPES[name], SENTENCES[name], dtype))
        for name, dtype, minutes in (
            ("SmolLM2", "float32", 1.5),
            ("SmolLM2", "bfloat16", 1),
            ("Llama 3 8B, 4 layers", "bfloat16", 1.5),
            ("Llama 3 8B, 4 layers", "float32", 2),
        )
    },
    "tests/gpu": Part(2, tests),
    "make report": Part(3, report),
    "every kind of step": Part(3, every_step),
}


def take(
    card: str,
    scratch: Path,
    minutes: float = MINUTES,
    tell: Callable[[str], None] = print,
    parts: dict[str, Part] = PARTS,
) -> None:
    """Takes the parts that are not there yet, within some minutes. What goes wrong in one is told; the next one begins."""
    end = time.monotonic() + 60 * minutes
    known: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())
    for name, part in parts.items():
        if known.get(name, {}).get("card") == card:
            continue
        if time.monotonic() + 60 * part.minutes > end:
            tell(f"{name}: begins the next time, it takes some {part.minutes:g} minutes")
            continue
        try:
            known[name] = {"card": card, **part.take(scratch, card)}
        except Exception as error:  # a part of a lent hour must not end the others
            tell(f"{name}: {type(error).__name__}: {error}")
            continue
        RESULTS.write_text(json.dumps(known, indent=1) + "\n")
        page = PAGE.read_text()
        before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
        PAGE.write_text(f"{before}\n\n{table(known)}\n\n{after}")
        tell(f"{name}: {known[name]}")


def table(known: dict[str, dict[str, Any]]) -> str:
    """What is known, as a table in Markdown, and what is not."""
    lines = list[str]()
    if any("forward" in found for found in known.values()):
        lines = [
            "| random weights | card | forward: tokens per second | share of its peak | triggers: tokens per second |"
            " times forward | removal | kept memories |",
            f"|{'---|' * 8}",
        ]
    for name, found in known.items():
        if "forward" in found:
            share = "–" if found["share"] is None else f"{found['share']:.0%}"
            rate, own = (f"{found[what]:,.0f}" for what in ("forward", "triggers"))
            ratios = [f"{found[f'{what} ratio']:.3g}" for what in ("triggers", "removal", "kept")]
            lines.append(f"| {' | '.join([name, found['card'], rate, share, own, *ratios])} |")
    for name, found in known.items():
        if "told" in found:
            told = [found[key] for key in ("told", "compared") if key in found]
            steps = [f"{step} {seconds:g} s" for step, seconds in found.get("seconds", {}).items()]
            lines.append(f"\n{name}: {'; '.join([found['card'], *told, *steps])}.")
    if absent := [name for name in PARTS if name not in known]:
        lines.append(f"\nNo card yet for: {'; '.join(absent)}.")
    return "\n".join(lines).strip()
