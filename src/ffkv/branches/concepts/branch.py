"""What the branch `concepts` is made of."""

from typing import Any

from ffkv.base.steps import MODULES, Step
from ffkv.branches.branch import Branch
from ffkv.branches.concepts import tables

TOKENS, TASKS, RULES = 30, 1, 14  # of a text; of a file, which may be a pattern, and of rules: for plans


def _measured(run: Any) -> tuple[float, float]:
    """Returns the operations of the passes over texts, and how many regressions there are, each on as many texts.

    Shuffles are compared by products of matrices: as many operations as shuffles, texts and features.
    """
    total, fits = 0.0, 0.0
    for its in run.settings.concepts.values():
        tasks = RULES if its.rules else TASKS
        total += tasks * its.texts * TOKENS * run.shape.body
        total += tasks * its.shuffles * its.texts * 2 * run.shape.all_memories
        fits += tasks * run.shape.layers * (3 * len(its.sizes) + 1)
    return total, fits


BRANCH = Branch(
    name="concepts",
    about="Concepts: which labelled concepts memories separate.",
    split="train",
    settings="ffkv.branches.concepts.settings:CONCEPTS",
    section="ffkv.branches.concepts.section:SECTION",
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
