"""What the branch `concepts` is made of."""

from typing import Any

from ffkv.base.steps import MODULES, Step
from ffkv.branches.branch import Branch
from ffkv.branches.concepts import tables

TOGETHER = 6  # the states of so many times the texts of a task are kept at once, if tasks share texts
TOKENS = 30  # of a text, for plans
REGRESSION = 1e8  # operations of matrices that take as long as a regression, for plans: 5 ms


def _measured(run: Any) -> tuple[float, float]:
    """Returns the operations of the passes over texts, of shuffles and of regressions; and rows.

    Raises UserError as `task_files`.
    """
    from ffkv.branches.concepts.labels import task_files  # a command starts without them
    from ffkv.corpus.rules import RULES

    total, rows = 0.0, 0.0
    for its in run.settings.concepts.values():
        tasks = len(RULES[its.rules]) if its.rules else len(task_files(its.labels))
        fits = run.shape.layers * (3 * len(its.sizes) + 1)
        total += tasks * its.texts * (TOKENS * run.shape.body + its.shuffles * 2 * run.shape.all_memories)
        total += tasks * fits * REGRESSION
        rows += tasks * (fits + tables.SHOWN * run.shape.layers)
    return total, rows


def _held(run: Any) -> float:
    """Returns the bytes of the states of the texts that are kept at once."""
    of_a_text = run.shape.all_memories + 2 * run.shape.layers * run.shape.width
    return 4 * of_a_text * TOGETHER * max((each.texts for each in run.settings.concepts.values()), default=0)


BRANCH = Branch(
    name="concepts",
    about="Concepts: which labelled concepts memories separate.",
    split="train",
    settings="ffkv.branches.concepts.settings:CONCEPTS",
    section="ffkv.branches.concepts.section:SECTION",
    local_files="ffkv.branches.concepts.labels:label_files",
    samples={"shuffles": 99, "draws": 50},  # a control has the run's own texts
    steps={
        "measure": Step(
            "ffkv.branches.concepts.measure:measure_concept",
            "Measure how well memories, coordinates and random directions separate the labels of a concept.",
            reads=("model", "train", "triggers"),
            settings=("concepts", "seed", "batches/tokens", *MODULES, "model/max_memory"),
            writes=(tables.BY_TASK, tables.BY_LAYER, tables.BEST, tables.MEMORIES),
            imports="model",
            amount=_measured,
            memory=_held,
        ),
        "summarize": Step(
            "ffkv.branches.concepts.summarize:summarize_concepts",
            "Write the tables of the report's section of concepts.",
            reads=("model", "by_task*", "by_layer*", "best*", "memories*"),
            writes=(tables.TASKS, tables.CURVES, tables.LAYERS, tables.NULLS, tables.OF_MEMORIES, tables.MIXTURE),
        ),
    },
    heading="Concepts",
    introduction="A concept is a label that somebody else gave to texts. Which memories separate texts with the label from those "
    "without it, and do they so better than coordinates of the residual stream, or random directions of it?",
    figures={
        "concept_curves": "How well memories separate the labels of texts",
        "concept_mixture": "How many concepts a memory separates",
    },
    applies=lambda settings: bool(settings.concepts),
)
