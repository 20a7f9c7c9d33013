"""`python -m benchmarks.launches RUN`: what a GPU would have to start, and what the program would wait for, in each step.

No GPU is needed: each step runs on a pretended card (`benchmarks.pretended_card`), and does what it does on a GPU but for
Triton's kernel. Launches, waits and copies do not depend on how wide a model is, only on its layers, on the settings and on
the text. `tests/test_launches.py` compares those of the run of the tests with `results/launches.csv`: they may not rise.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import pandas as pd
import torch

import ffkv
from benchmarks import pretended_card
from benchmarks.measure import ROOT
from ffkv.base.process.runtime import configure, torch_with

WORK = ffkv.Work(pretended_card.DEVICE, batch_tokens=16_384)
PROMPTS = ROOT / "configs/prompts/documentation.jsonl"
STORED = ROOT / "benchmarks/results/launches.csv"
PAGE = ROOT / "benchmarks/README.md"
BEGIN, END = "<!-- written by `python -m benchmarks.launches --store` -->", "<!-- end of the launches -->"


class Case(NamedTuple):
    """A step that is counted.

    Attributes:
        unit: what its work grows with.
        take: takes the step for a run, with a folder for files. Returns the number of units; 0 if the unit is a pass.
    """

    unit: str
    take: Callable[[ffkv.Run, Path], int]


def _triggers(run: ffkv.Run, folder: Path) -> int:
    corpus = run.folder / "corpus/train.h5"
    work = dataclasses.replace(WORK, part=ffkv.Part(0, max(1, len(ffkv.read_corpus(corpus).tokens) // 5000)))
    batches = ffkv.settings.Batches(tokens=WORK.batch_tokens, block_sentences=64)
    ffkv.find_triggers(run.folder / "model", corpus, batching=batches, work=work)
    return 0


def _states(run: ffkv.Run, folder: Path) -> int:
    settings, batches = ffkv.settings.Prefixes(count=100), ffkv.settings.Batches(tokens=WORK.batch_tokens)
    files = run.folder / "model", run.folder / "corpus/validation.h5", folder / "sampled.h5"
    ffkv.sample_prefixes(*files, settings, batches, work=WORK)
    return settings.count


def _step(name: str, run: ffkv.Run, folder: Path, **settings: Any) -> int:
    made = ffkv.step(name, run, group=0, work=WORK, **settings)
    return len(made[-1] if isinstance(made, tuple) else made)


def _behaviour(run: ffkv.Run, folder: Path, **settings: Any) -> int:
    ffkv.behaviour(run, PROMPTS, device=WORK.device, **settings)
    return len(PROMPTS.read_text().splitlines())


def _prompt(function: Callable[..., Any], run: ffkv.Run, folder: Path, **options: Any) -> int:
    function(run, "Return the name of the", device=WORK.device, **options)
    return 1


KEPT = {"intervention": ffkv.settings.Intervention(memories=0, top_k_prefixes=20)}
CHANGED = {"intervention": ffkv.settings.Intervention(memories=3, examples=3, top_k=[0], top_k_prefixes=1)}
CASES = {
    "triggers": Case("pass", _triggers),
    "sampled prefixes": Case("prefix", _states),
    "removal": Case("row", functools.partial(_step, "keys removal")),
    "values": Case("value", functools.partial(_step, "values project")),
    "composition": Case("prefix and layer", functools.partial(_step, "composition measure")),
    "refinement": Case("prefix and layer", functools.partial(_step, "refinement measure")),
    "translation, fit": Case("layer and reading", functools.partial(_step, "translation fit")),
    "translation": Case("value", functools.partial(_step, "translation measure")),
    "kept memories": Case("choice", functools.partial(_step, "intervention measure", **KEPT)),
    "interventions": Case("change", functools.partial(_step, "intervention measure", **CHANGED)),
    "behaviour": Case("prompt", _behaviour),
    "trace": Case("prompt", functools.partial(_prompt, ffkv.trace)),
    # The search for more memories has more passes on one trained model than on another.
    "graph of a prompt, 2 memories": Case("prompt", functools.partial(_prompt, ffkv.graph, maximum=2)),
}


def count(run: Path, names: Sequence[str] = ()) -> pd.DataFrame:
    """Counts steps of a run [step: launches, waits, copies, passes, units, unit].

    `passes`: how often the block ran that ran most often, so what was started for it counts once.
    """
    rows = []
    for name in names or [*CASES]:
        with (
            tempfile.TemporaryDirectory() as folder,
            pretended_card.as_device() as ran,
            pretended_card.PretendedCard() as card,
        ):
            units = CASES[name].take(ffkv.open(run), Path(folder))
        passes = max(ran.values(), default=0)
        counted = {kind: sum(getattr(card, kind).values()) for kind in ("launches", "waits", "copies")}
        rows.append({"step": name, **counted, "passes": passes, "units": units or passes, "unit": CASES[name].unit})
    return pd.DataFrame(rows).set_index("step")


def table(counted: pd.DataFrame, run: Path) -> str:
    """Returns the counts as a table in Markdown, per unit."""
    lines = [
        f"Run {run.name}, batches of {WORK.batch_tokens:,} tokens; torch {torch.__version__.partition('+')[0]}.",
        "",
        "| step | per | launches | waits | copies | passes | waits per pass |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in counted.iterrows():
        per_unit = [f"{row[kind] / row.units:.3g}" for kind in ("launches", "waits", "copies", "passes")]
        per_pass = f"{row.waits / row.passes:.3g}" if row.passes else ""
        lines.append(f"| {' | '.join([str(name), row.unit, *per_unit, per_pass])} |")
    return "\n".join(lines)


@click.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True), default=ROOT / "results/demo")
@click.option(
    "--store", is_flag=True, help="Write results/launches.csv and benchmarks/README.md: RUN is of configs/tiny.yaml."
)
def main(run: Path, store: bool) -> None:
    """Counts the steps of a finished RUN, and prints the table."""
    configure(1)
    torch_with(1)
    counted = count(run)
    if not store:
        click.echo(table(counted, run))
        return
    counted.to_csv(STORED)
    page = PAGE.read_text()
    before, after = page[: page.index(BEGIN) + len(BEGIN)], page[page.index(END) :]
    PAGE.write_text(f"{before}\n\n{table(counted, run)}\n\n{after}")


if __name__ == "__main__":
    main()
