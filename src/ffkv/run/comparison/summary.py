"""The words of a comparison."""

import numpy as np
import pandas as pd

from ffkv.base.multiple_tests import SIGNIFICANT
from ffkv.run.comparison.comparison_file import Measured
from ffkv.run.comparison.matching import FEWEST, TIED
from ffkv.run.report.curve import LAYER
from ffkv.run.report.registry import load_figure
from ffkv.run.report.wording import rows
from ffkv.run.results.text import number, percent, signed

MEMORIES = {
    "by_number": (
        "All models have the same shape, and memory L3.17 is taken to be the same memory in all runs: at another training step, "
        "or on another corpus. Whether it is can be seen in the figures: permuted memories show how much is the same by chance."
    ),
    "by_correlation": (
        "The models have different shapes, or the settings say that they share no numbering. So no memory of one run is a "
        "memory of another run by its number. Distributions can be compared. A memory is looked for by the correlation of its "
        "coefficients over the same validation prefixes. The highest of many correlations is high by chance too: so a partner must "
        "stand out from all other memories of the other run."
    ),
    "no": "The settings ask for no comparison of single memories.",
}
# The figures whose means over the layers the summary compares, and their curves.
MAIN = {
    "figure_4": ("agreement rate",),
    "figure_8": ("no active memory agrees",),
    "figure_9": ("the residual predicts what the model predicts",),
    "interventions": ("direct effect of removal (nats)", "total effect of removal (nats)"),
}
PAIRED = {
    "memories": "the same memories are paired",
    "prefixes": "the same validation prefixes are paired",
    "": "the samples count as independent",
}


def describe_differences(measured: Measured, name: str) -> str:
    """Returns the caption of a figure with a curve per run."""
    found = rows(measured.differences, figure=name)
    first, curves = measured.runs["label"].iloc[0], load_figure(name).curves
    paired = [*dict.fromkeys(found["paired_by"].fillna(""))]
    labels = "; ".join(curve.label for curve in curves)
    if found.empty:
        return f"{labels[:1].upper()}{labels[1:]}. A line per run; bars are 95 % intervals. The runs have no points in common."
    text = f"Upper row: {labels}. A line per run; bars are 95 % intervals."
    text += f" Lower row: each run's difference to {first}, with 95 % intervals where they are known"
    text += f" ({' or '.join(PAIRED[by] for by in paired)})."
    if curves[0].x == LAYER and not measured.same_depth:
        text += " Layers are compared at the same relative depth, (l + ½) / L."
    known = found.dropna(subset=["low", "high"])
    apart = (known["low"] > 0) | (known["high"] < 0)
    if len(known):
        text += f" In {number(apart.sum())} of {number(len(known))} points the interval does not contain 0; by chance it does not in 1 of 20."
    return text


def describe_memories(measured: Measured, name: str) -> str:
    """Returns the caption of a figure about memories."""
    last = measured.runs["label"].iloc[-1]
    permutations = number(measured.settings.permutations)
    texts = {
        "overlaps": (
            f"How much of a memory is the same as in {last}, mean per layer. Trigger examples: the Jaccard index, and rank-biased "
            "overlap, in which the first ten places have 86 % of the weight. Top token: the share of values with the same one. Key "
            f"and value: the cosine. Grey dots: the memories of a layer permuted, mean of {permutations} permutations."
        ),
        "formation": (
            f"How much of a memory is the same as in the first run and as in the last one, by {measured.settings.axis}, mean over "
            f"the layers. Grey dots: the memories of a layer permuted, mean of {permutations} permutations."
        ),
        "kinds": (
            f"The memories that agree in a run or in {last}: the token that the value predicts follows the key's strongest "
            "trigger example (figure 4). Of those that agree in both, the value predicts the same token or another one."
        ),
        "matches": (
            f"{number(measured.settings.sampled_memories)} random memories of {measured.runs['label'].iloc[0]}: the highest "
            "correlation of their coefficients with those of any memory of another run, over the same validation prefixes. "
            "Grey: the second highest correlation. A memory has a partner where the first one stands out."
        ),
    }
    return texts[name]


def describe_behaviours(measured: Measured) -> str:
    """Returns the caption of the figure of behaviours."""
    by = measured.settings.axis or "run"
    return (
        f"Behaviours that several runs have, by {by}. Accuracy: the share of prompts on which the answer has a higher logit than the "
        "wrong answer. Lost: the share of the behaviour that is lost when the n memories with the largest screen, or all memories, are "
        "patched. Grey: random sets of equal summed length. Bars are 95 % intervals over prompts. Where the "
        "accuracy is too low, no set is patched, and there is no share."
    )


def note_behaviours(measured: Measured) -> list[str]:
    """Says of each behaviour which runs do not have it, and which have it with other settings."""
    notes, labels = [], dict(zip(measured.runs["run"], measured.runs["label"], strict=True))
    for name, found in measured.behaviours.groupby("behaviour", sort=False):
        if lacking := [label for run, label in labels.items() if run not in {*found["run"]}]:
            notes.append(f"{name}: left out because they do not have it: {', '.join(lacking)}.")
        for row in found[found["other_settings"].fillna("") != ""].itertuples():
            others = f"has other settings than {labels[found['run'].iloc[0]]}: {row.other_settings}"
            notes.append(f"{name}: {labels[row.run]} {others}.")
    return notes


def summarize(measured: Measured) -> list[str]:
    """Says what the comparison found, a sentence or two per item."""
    first, last = measured.runs.iloc[0], measured.runs.iloc[-1]
    runs = dict(zip(measured.runs["run"], measured.runs["label"]))
    sentences = [f"{len(runs)} runs: {', '.join(measured.runs['label'])}."]
    for name, curves in MAIN.items():
        for curve in curves:
            found = rows(measured.curves, figure=name, curve=curve)
            if len(found):
                means = found.groupby("run")["value"].mean().reindex(runs)  # of a run in which nothing fires, none
                is_share = next(each.share for each in load_figure(name).curves if each.label == curve)
                write = percent if is_share else signed
                of = ", ".join(f"{write(means[run])} in {label}" for run, label in runs.items())
                sentences.append(f"{curve[0].upper() + curve[1:]}, mean over the layers: {of}.")
    if len(measured.by_layer):
        found = rows(measured.by_layer, run=last["run"], reference=first["run"])
        counts = found[["appeared", "lost", "stayed", "changed"]].sum()
        sentences += [
            _overlap_sentence(found, first["label"], last["label"]),
            f"Agreement of values and keys (figure 4): {number(counts['appeared'])} memories agree in {last['label']} only, "
            f"{number(counts['lost'])} in {first['label']} only, {number(counts['stayed'])} in both with the same token, "
            f"{number(counts['changed'])} in both with another token.",
        ]
    for name, own in measured.behaviours.groupby("behaviour", sort=False):
        of = ", ".join(
            f"{percent(row.accuracy)} and {percent(row.all_lost)} in {runs[row.run]}" for row in own.itertuples()
        )
        sentences.append(f"{name}: accuracy, and share that is lost when all memories are patched: {of}.")
    if len(measured.matches):
        sentences += [_match_sentence(measured, run, label) for run, label in [*runs.items()][1:]]
    elif measured.memories == "by_correlation":
        sentences.append("No run read the same validation prefixes as the first one, so no memories were matched.")
    return sentences


def _overlap_sentence(found: pd.DataFrame, first: str, last: str) -> str:
    weights = found["memories"]
    words = {"jaccard": "of trigger examples are in both lists", "same_top_token": "of values have the same top token"}
    parts = []
    for measure in (name for name in words if found[name].notna().any()):
        columns = (found[column].fillna(0) for column in (measure, f"permuted_{measure}"))
        own, chance = (percent(np.average(column, weights=weights)) for column in columns)
        parts.append(f"{own} {words[measure]} ({chance} with memories permuted)")
    return f"The same memory in {first} and in {last}: {'; '.join(parts)}."


def _match_sentence(measured: Measured, run: str, label: str) -> str:
    found = rows(measured.matches, run=run)
    if not len(found):
        return f"{label} did not read the same validation prefixes as the first run, so its memories were not matched."
    partners = (found["q_value"] <= SIGNIFICANT).sum()
    tied = (found["correlation"] - found["next_correlation"] <= TIED).sum()
    text = (
        f"{number(partners)} of {number(len(found))} memories have a partner in {label}: a memory whose coefficients correlate "
        f"with theirs so much that it stands out from all others (false discovery rate {SIGNIFICANT})."
    )
    left_out = min(measured.settings.sampled_memories, measured.runs["memories"].iloc[0]) - len(found)
    if left_out:
        text += f" {number(left_out)} memories vary on fewer than {FEWEST} prefixes, and are left out."
    if tied:
        text += f" For {number(tied)} memories several correlate equally: none of them is a partner."
    return text
