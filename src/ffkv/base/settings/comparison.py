"""The settings of a comparison: several runs over each other in one report."""

from typing import Annotated, Literal

from pydantic import Field

from ffkv.base.settings.section import Section

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
RunName = Annotated[str, Field(pattern=RUN_NAME)]


class Comparison(Section):
    """Several runs over each other in one report, `reports/comparisons/<name>/index.html`."""

    title: str = Field("Runs over each other", min_length=1)
    """Title of the report."""
    runs: list[RunName] = Field(min_length=2, max_length=20)
    """Names of runs of this file. The first one is what the others are compared with."""
    labels: list[Annotated[str, Field(min_length=1)]] = Field([])
    """What each run is called in figures, in the order of `runs`. If the list is empty, its place on the axis or its name."""
    axis: str = ""
    """What orders the runs, such as "training step" or "parameters". Empty means that nothing does."""
    values: list[Annotated[float, Field(allow_inf_nan=False)]] = Field([])
    """The place of each run on the axis, in the order of `runs`."""
    memories: Literal["auto", "by_number", "by_correlation", "no"] = "auto"
    """How a memory of one run is found in another run. `by_number`: L3.17 is the same memory in all runs, as at several
    training steps of one model, or on several corpora. `by_correlation`: the memory whose coefficients correlate most on the
    same text, as in models of other sizes or seeds. `no`: not at all. `auto`: `by_number` if all models have the same
    shape, else `by_correlation`."""
    permutations: int = Field(10, ge=1, le=1000)
    """Number of times that the memories of a layer are permuted. Permuted memories show which overlap is chance."""
    sampled_memories: int = Field(500, ge=1, le=100_000)
    """Number of random memories of the first run that are looked for in each other run by correlation."""
    shown_memories: int = Field(50, ge=0, le=10_000)
    """Number of memories of each kind that the tables of the report show."""

    def contradictions(self) -> list[str]:
        """Each run is there once, and has one label and one place."""
        runs, labels, places = len(self.runs), len(self.labels), len(self.values)
        rules = {
            "runs: must be different runs": len({*self.runs}) == runs,
            f"labels: has {labels} labels for {runs} runs: must have one per run": labels in (0, runs),
            "labels: must be different labels": len({*self.labels}) == labels,
            "axis and values: must both be there, or none of them": bool(self.axis) == bool(self.values),
            f"values: has {places} places for {runs} runs: must have one per run": places in (0, runs),
            "values: must be different places": len({*self.values}) == places,
        }
        return [problem for problem, holds in rules.items() if not holds]
