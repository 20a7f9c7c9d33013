"""`python -m benchmarks.costs`: seconds against size of corpus and model, and the factors that `ffkv plan` predicts with.

The plan adds up amounts of work (from tokens, layers, d, d_m and V; `ffkv.plan`) over rates of its parts that it measures alone. In
a run the same parts are slower: caches are shared, small operations stand between. By how much is fitted here.
"""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
from scipy.optimize import nnls

from benchmarks import inputs
from benchmarks.__main__ import machine, replaced
from benchmarks.inputs import GPT2, Shape
from benchmarks.measure import ROOT, Arm, run_arm
from ffkv.plan.branches import measure_values
from ffkv.plan.machine import FITTED, measure
from ffkv.plan.passes import triggers
from ffkv.plan.shape import shape_of_run
from ffkv.plan.text import Split
from ffkv.plan.work import Run
from ffkv.settings import Model, Settings

FACTORS, PAGE, FIGURE = ROOT / "src/ffkv/plan/fitted.json", ROOT / "docs/benchmarks.md", ROOT / "docs/costs.png"
BEGIN, END = "<!-- what `python -m benchmarks.costs` measured -->", "<!-- end of costs -->"
SHAPES = [
    Shape(2, 64, 256, 2000),
    Shape(4, 128, 512, 8192),
    Shape(6, 256, 1024, 16384),
    Shape(4, 512, 2048, 50257),
    GPT2,
]
SENTENCES = (200, 800, 3200)
MOST = 2.5e12  # operations of a pass that is worth waiting for
PAPER = Shape(16, 1024, 4096, 50257)  # the paper's model; a trigger pass does not see the size of the vocabulary
WIKITEXT_103 = 103_227_021  # tokens of the train split
# Which rates a work is made of, and which of them share a factor.
WORKS = {
    "triggers": {"body": ["body"], "coefficients": ["coefficients", "candidates"], "calls": ["calls"]},
    "values": {"head": ["head"], "kept": ["kept"]},
}
KIND_OF = {factor: kinds[0] for factors in WORKS.values() for factor, kinds in factors.items()}


def rates(scratch: Path, shape: list[int]):
    """An arm: the rates that the plan measures for a shape, without the factors."""
    settings, form, _ = described(scratch, Shape(*shape), inputs.WARM)

    def work() -> tuple[str, dict[str, float]]:
        found = measure(form, "cpu", settings.activations.batch_tokens, 1).rates
        return "", {kind: rate * FITTED.get(kind, 1.0) for kind, rate in asdict(found).items()}

    return work


def described(scratch: Path, shape: Shape, sentences: int) -> tuple[Settings, Any, Split]:
    """Settings, form and text of a benchmark's model and sentences, as the plan sees them."""
    settings = Settings(model=Model(checkpoint=str(inputs.model_folder(scratch, shape).parent / "checkpoint")))
    lengths = inputs.lengths(sentences)
    text = Split(lengths.sum(), sentences, sentences, lengths.sum(), float((lengths**2.0).mean()), 0.0, "the benchmark")
    return settings, shape_of_run(settings), text


def observe(scratch: Path) -> pd.DataFrame:
    """Measured seconds of each work and size, and what the plan predicts of each of its parts without factors."""
    rows = []
    for shape in SHAPES:
        inputs.model_folder(scratch, shape)
        rate = run_arm(Arm("benchmarks.costs:rates", {"shape": list(shape)}), scratch).extra
        for sentences in SENTENCES:
            settings, form, text = described(scratch, shape, sentences)
            cost = triggers(Run(settings, form, text, text))
            if cost.operations > MOST:
                continue
            inputs.corpus_file(scratch, inputs.model_folder(scratch, shape), sentences)
            arm = Arm("benchmarks.works.triggers:ffkv", {"shape": list(shape), "sentences": sentences})
            rows.append(row("triggers", shape, text.tokens, cost.work, rate, run_arm(arm, scratch).cpu))
        cost = measure_values(Run(settings, form, text, text))
        arm = Arm("benchmarks.works.values:ffkv", {"shape": list(shape), "values": form.all_memories})
        rows.append(row("values", shape, form.all_memories, cost.work, rate, run_arm(arm, scratch).cpu))
    return pd.DataFrame(rows).fillna(0.0)


def row(work: str, shape: Shape, amount: float, parts: dict, rate: dict, seconds: float) -> dict[str, Any]:
    """One measurement."""
    predicted = seconds_of(work, parts, rate)
    click.echo(f"  {work}, {shape}, {amount:,.0f}: {seconds:.3g} s of {predicted}")
    return {"work": work, "shape": shape, "amount": amount, "seconds": seconds, **predicted}


def seconds_of(work: str, parts: dict, rate: dict) -> dict[str, float]:
    """What the plan predicts of each part that has a factor, without it."""
    return {factor: sum(parts[kind] / rate[kind] for kind in kinds) for factor, kinds in WORKS[work].items()}


def all_of_wikitext_103(scratch: Path, shape: Shape, factors: dict[str, float]) -> str:
    """What the plan predicts of a trigger pass over the corpus of the paper, as Markdown."""
    inputs.model_folder(scratch, shape)
    rate = run_arm(Arm("benchmarks.costs:rates", {"shape": list(shape)}), scratch).extra
    settings, form, text = described(scratch, shape, round(WIKITEXT_103 / inputs.MEAN))
    parts = seconds_of("triggers", triggers(Run(settings, form, text, text)).work, rate)
    hours = sum(seconds * factors[KIND_OF[factor]] for factor, seconds in parts.items()) / 3600
    return f"| {shape} | {text.tokens:,.0f} | {hours:.0f} | {text.tokens / hours / 3600:,.0f} |"


def fit(seen: pd.DataFrame) -> dict[str, float]:
    """By how much each part is slower in a run than alone, from relative errors."""
    found = {}
    for work, factors in WORKS.items():
        rows = seen[seen["work"] == work]
        parts = rows[list(factors)].to_numpy() / rows[["seconds"]].to_numpy()
        for factor, value in zip(factors, nnls(parts, np.ones(len(rows)))[0]):
            found |= dict.fromkeys(factors[factor], round(float(value), 3))
    return found


def draw(seen: pd.DataFrame, path: Path) -> None:
    """Seconds against tokens, and against values; lines are what the plan predicts."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, work, label in zip(axes, WORKS, ("tokens", "values")):
        for number, (shape, rows) in enumerate(seen[seen["work"] == work].groupby("shape", sort=False)):
            axis.plot(rows["amount"], rows["predicted"], "-_", color=f"C{number}")
            axis.plot(rows["amount"], rows["seconds"], "o", color=f"C{number}", label=str(Shape(*shape)))
        axis.set(xscale="log", yscale="log", xlabel=label, ylabel="CPU seconds", title=work)
        axis.xaxis.set_minor_formatter("")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=7)
    figure.savefig(path, dpi=110, metadata={"Software": None})


@click.command()
@click.option("--scratch", type=click.Path(path_type=Path), help="Keep inputs here, for the next time.")
def main(scratch: Path | None) -> None:
    """Measure, fit, and write src/ffkv/plan/fitted.json, docs/costs.png and the table in the docs."""
    with tempfile.TemporaryDirectory() as own:
        scratch = (scratch or Path(own)).absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        seen = observe(scratch)
        factors = fit(seen)
        whole = [all_of_wikitext_103(scratch, shape, factors) for shape in (GPT2, PAPER)]
    seen["predicted"] = sum(seen[name] * factors[kind] for name, kind in KIND_OF.items())
    FACTORS.write_text(json.dumps(factors, indent=1, sort_keys=True) + "\n")
    draw(seen, FIGURE)
    written = table(seen, factors, whole)
    PAGE.write_text(replaced(PAGE.read_text(), BEGIN, END, written))
    click.echo(written)


def table(seen: pd.DataFrame, factors: dict[str, float], whole: list[str]) -> str:
    """The measurements beside the predictions, and what is beyond measuring here, as Markdown."""
    lines = [f"On {machine()}. Factors: {', '.join(f'{kind} {value:g}' for kind, value in factors.items())}.", ""]
    lines += ["| work | shape | tokens or values | measured, s | predicted, s | ratio |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.work} | {Shape(*one.shape)} | {one.amount:,.0f} | {one.seconds:.3g} | {one.predicted:.3g} | {one.predicted / one.seconds:.2f} |"
        for one in seen.itertuples()
    ]
    lines += ["", "Triggers of all of WikiText-103's train split, extrapolated, on one thread without a GPU:", ""]
    lines += ["| shape | tokens | hours | tokens a second |", "|---|---|---|---|", *whole]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
