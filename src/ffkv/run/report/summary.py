"""The main numbers of a run in plain sentences."""

from ffkv.run.report.registry import branches_of, load_words
from ffkv.run.report.wording import rows, weighted_mean
from ffkv.run.results.run import Run
from ffkv.run.results.text import percent


def summary(run: Run, control: Run | None = None) -> list[str]:
    """Returns one paragraph per question, in the order of the branches, and one about the control run."""
    paragraphs = [said for branch in branches_of(run) for said in load_words(branch.name).summary(run)]
    return paragraphs + ([_control(run, control)] if control is not None else [])


def _control(run: Run, control: Run) -> str:
    """Returns the main numbers of a run beside those of its control."""
    pairs = [
        f"{what}: {percent(share(run))}, {percent(share(control))} in the control"
        for what, share in MAIN_SHARES.items()
    ]
    weights = " with random weights" if control.anatomy.weights == "random" else ""
    return f"Beside the control run {control.name}{weights}: {'; '.join(pairs)}."


def _share_with_pattern(run: Run) -> float:
    table = rows(run.table("figure_2_pattern_counts"), sample="trigger")
    return table["keys_with_pattern"].sum() / max(table["keys"].sum(), 1)


def _agreement(run: Run) -> float:
    return weighted_mean(rows(run.table("figure_4_agreement"), source="trigger"), "rate", "keys")


MAIN_SHARES = {
    "keys with a pattern": _share_with_pattern,
    "values that predict what follows their key": _agreement,
    "prefixes whose residual predicts the model's prediction in the last layer": lambda run: run.table(
        "figure_9_residual_agreement"
    )["share"].iloc[-1],
}
