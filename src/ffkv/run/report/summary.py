"""The main numbers of a run in plain sentences."""

from ffkv.run.report.registry import branches_of, load_words
from ffkv.run.report.wording import rows, share_with_pattern, weighted_mean
from ffkv.run.results.run import Run
from ffkv.run.results.text import percent


def summary(run: Run, control: Run | None = None) -> list[str]:
    """Returns one paragraph per question, in the order of the branches, and one about the control run."""
    paragraphs = [said for branch in branches_of(run) for said in load_words(branch.name).summary(run)]
    return paragraphs + ([_control(run, control)] if control is not None else [])


def _control(run: Run, control: Run) -> str:
    """Returns the main numbers of a run beside those of its control."""
    names = (
        "keys with a pattern",
        "values that predict what follows their key",
        "prefixes whose residual predicts the model's prediction in the last layer",
    )
    shares = zip(names, _main_shares(run), _main_shares(control))
    pairs = [f"{name}: {percent(own)}, {percent(its)} in the control" for name, own, its in shares]
    weights = " with random weights" if control.anatomy.weights == "random" else ""
    return f"Beside the control run {control.name}{weights}: {'; '.join(pairs)}."


def _main_shares(run: Run) -> tuple[float, float, float]:
    with_pattern = share_with_pattern(rows(run.table("figure_2_pattern_counts"), sample="trigger"))
    agreement = weighted_mean(rows(run.table("figure_4_agreement"), source="trigger"), "rate", "keys")
    return with_pattern, agreement, run.table("figure_9_residual_agreement")["share"].iloc[-1]
