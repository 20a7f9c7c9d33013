"""`python -m benchmarks.calibration`: how often intervals contain the truth, and tests find what is not there.

Every interval, p-value and chance level of ffkv meets samples whose truth is known (`benchmarks.known_truths`). It calls the
functions of ffkv that make the numbers of a run, at their default sizes.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from benchmarks.known_truths import COVERAGE, FALSE, Case, chance, intervals, labels, models, prompts
from benchmarks.measure import ROOT

PAGE = ROOT / "benchmarks/README.md"
BEGIN, END = "<!-- written by `python -m benchmarks.calibration` -->", "<!-- end of the calibration -->"
STUDIES = (
    intervals.shares,
    intervals.means,
    intervals.differences,
    intervals.annotators,
    chance.agreement,
    chance.memories,
    chance.partners,
    models.partners,
    chance.tests,
    models.interventions,
    models.patterns,
    chance.machines,
    prompts.tests,
    prompts.intervals,
    chance.lenses,
    models.lenses,
    labels.areas,
    labels.concepts,
    labels.routes,
    labels.roles,
)


def calibrate(seed: int, repetitions: int) -> Iterator[Case]:
    """Yields the cases of all studies.

    Args:
        seed: seed of all random numbers.
        repetitions: number of samples of a cheap case; dear ones take fewer.
    """
    for number, study in enumerate(STUDIES):
        yield from study(repetitions, np.random.default_rng([seed, number]))


def table(cases: list[Case], seed: int, repetitions: int) -> str:
    """Returns the cases as a table in Markdown."""
    head = (
        f"Seed {seed}, {repetitions:,} repetitions.\n\n"
        "| what | truth | size | stated | measured | of | as stated |\n|---|---|---|---|---|---|---|"
    )
    return "\n".join([head, *map(_row, cases)])


def _row(case: Case) -> str:
    low, high = case.limits
    stated = {COVERAGE: "95 % (93 to 97)", FALSE: "at most 5 %"}.get(case.limits) or (
        f"{low:.0%}" if low == high else f"at least {low:.0%}" if high == 1 else f"{low:.0%} to {high:.0%}"
    )
    missed = case.misses(low, high)
    met = f"no: {missed}. {case.note}".strip() if missed else "yes"
    return f"| {case.what} | {case.truth} | {case.size} | {stated} | {case.share:.1%} | {case.trials:,} | {met} |"


@click.command()
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the random numbers.")
@click.option(
    "--repetitions", type=click.IntRange(20), default=2000, show_default=True, help="Samples of a cheap case."
)
@click.option(
    "--page",
    type=click.Path(path_type=Path),
    default=PAGE,
    help="Page that takes the table.  [default: benchmarks/README.md]",
)
def main(seed: int, repetitions: int, page: Path) -> None:
    """Measures how often intervals contain the truth and tests find what is not there, and writes the table."""
    start, cases = time.monotonic(), []
    for case in calibrate(seed, repetitions):
        cases.append(case)
        click.echo(f"{time.monotonic() - start:4.0f} s {_row(case)}")
    text = page.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    page.write_text(f"{before}\n\n{table(cases, seed, repetitions)}\n\n{after}")


if __name__ == "__main__":
    main()
