"""The step of the room: measure what several finished runs have in common, and what they differ by, their claims among it."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ffkv.base.intervals import difference_of_intervals
from ffkv.base.settings import Comparison
from ffkv.run.report.claims import as_table, judge_claims
from ffkv.run.report.section import open_control
from ffkv_comparison.comparison_file import Compared, Measured, compare_behaviours, open_compared
from ffkv_comparison.curves import gather_curves, measure_differences
from ffkv_comparison.same_memories import follow_memories, match_memories
from ffkv_comparison.tables import APART, CLAIMS, ENDS


def compare_runs(
    folders: Sequence[Path | str],
    settings: Comparison | None = None,
    name: str = "comparison",
    seed: int = 0,
    trust_remote_code: bool = False,
) -> Measured:
    """Compares finished runs.

    Args:
        folders: the folder of each run, such as "results/demo". The first one is what the others are compared with.
        settings: the settings of the comparison. None compares the runs without an axis.
        name: name of the comparison.
        seed: seed of samples, permutations and bootstraps.
        trust_remote_code: as of `ffkv.open`, for all runs.
    Raises:
        UserError: a folder holds no finished run, a file in it is missing or damaged, the settings name other runs, or
            they ask for memories by number in models of different shapes.
    Examples:
        >>> measured = ffkv_comparison.compare_runs(["results/tiny", "results/other"])
        >>> "figure_4" in set(measured.curves["figure"])
        True
    """
    settings = settings or Comparison(runs=[Path(folder).resolve().name for folder in folders])
    compared = open_compared(folders, settings, name, trust_remote_code)
    by_memory = by_layer = matches = pd.DataFrame()
    if compared.memories == "by_number":
        by_memory, by_layer = follow_memories(compared, seed)
    elif compared.memories == "by_correlation":
        matches = match_memories(compared, seed)
    behaviours, behaviour_memories, behaviour_overlaps = compare_behaviours(compared)
    facts = [
        {
            "run": run.name,
            "label": label,
            "checkpoint": run.anatomy.checkpoint,
            "architecture": run.anatomy.architecture,
            "layers": len(run.anatomy.layers),
            "memories": run.anatomy.layer_offset[-1],
            "corpus": run.settings.corpus.title or run.settings.corpus.dataset,
            "model_hash": run.anatomy.model_hash,
            "corpus_hash": run.files.corpora["train"]["corpus_hash"],
        }
        for run, label in zip(compared.runs, compared.labels, strict=True)
    ]
    return Measured(
        name=name,
        settings=settings,
        memories=compared.memories,
        runs=pd.DataFrame(facts),
        claims=compare_claims(compared),
        curves=gather_curves(compared),
        differences=measure_differences(compared, seed),
        by_memory=by_memory,
        by_layer=by_layer,
        matches=matches,
        behaviours=behaviours,
        behaviour_memories=behaviour_memories,
        behaviour_overlaps=behaviour_overlaps,
    )


def compare_claims(compared: Compared) -> pd.DataFrame:
    """Judges the claims in each run, beside its own control, as its report does: the table `CLAIMS`.

    Raises UserError if a table of a run is missing, or the folder of its control is not beside that of the run.
    """
    judged = [as_table(judge_claims(run, open_control(run))).assign(run=run.name) for run in compared.runs]
    for place, found in enumerate(judged):
        found[APART] = [
            difference_of_intervals(*own, *first) if place else (float("nan"),) * 3
            for own, first in zip(found[ENDS].to_numpy(float), judged[0][ENDS].to_numpy(float), strict=True)
        ]
    return CLAIMS.frame(pd.concat(judged, ignore_index=True)[CLAIMS.names])
