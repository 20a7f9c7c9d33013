"""What each rule of a run costs, from the model's shape, the corpus and the settings. Pure; docs/plan.md has the reasons."""

from collections.abc import Callable

from ffkv.plan import branches, passes
from ffkv.plan.work import Cost, Run
from ffkv.settings import EMBEDDED

RULES: tuple[Callable[[Run], Cost | list[Cost]], ...] = (
    passes.train,
    passes.model,
    passes.corpus,
    passes.triggers,
    passes.merge_triggers,
    passes.prefixes,
    passes.merge_prefixes,
    branches.key_patterns,
    branches.key_removal,
    branches.key_precision,
    branches.keys,
    branches.measure_values,
    branches.values,
    branches.measure_composition,
    branches.composition,
    branches.measure_refinement,
    branches.refinement,
    branches.write_settings,
    branches.report,
)


def costs(run: Run) -> list[Cost]:
    """One row a rule, in the order of the workflow. `corpus` has one for each split."""
    left_out = set() if run.settings.model.checkpoint == EMBEDDED else {passes.train}
    left_out |= {branches.key_precision} if run.settings.model.dtype == "float32" else set()
    made = [cost(run) for cost in RULES if cost not in left_out]
    return [row for rows in made for row in (rows if isinstance(rows, list) else [rows])]
