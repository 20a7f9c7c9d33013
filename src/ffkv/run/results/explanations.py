"""How machines explain memories, and how good that is: one row per machine and memory."""

import pandas as pd

PLACE = ["annotator", "layer", "memory"]
# Scores of a label, as the machine's tables name them, and as columns. docs/annotation.md defines them.
SCORES = {
    "detection": "detection",
    "detection of the same word": "same_word",
    "fuzzing": "fuzzing",
    "simulation": "simulation",
}
INTRUDER = "intruder"  # a score of the memory: it needs no label
OF_OTHER = "_of_other"  # a score of the label of another memory
COLUMNS = [*PLACE, "label", "refusal", *SCORES.values(), *(f"{name}{OF_OTHER}" for name in SCORES.values()), INTRUDER]


def score_labels(labels: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Puts the scores of memories beside their labels.

    Args:
        labels: rows of `annotation/machine_labels`.
        scores: rows of `annotation/machine_scores`.
    Returns:
        `COLUMNS`; NaN where there is no score.
    """
    suffix = scores["label"].map({"other": OF_OTHER}).fillna("")
    columns = scores["score"].map(SCORES | {INTRUDER: INTRUDER}) + suffix
    wide = scores.assign(column=columns).pivot(index=PLACE, columns="column", values="value")
    return labels.join(wide.reindex(columns=COLUMNS[5:]), on=PLACE)[COLUMNS]
