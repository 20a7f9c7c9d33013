"""What the branch `intervention` is made of."""

from typing import Any

from ffkv.base.steps import MODULES, Step
from ffkv.branches.branch import Branch
from ffkv.branches.intervention import tables


def _amount(run: Any) -> tuple[float, float]:
    """Returns the operations of passes over prefixes, of the blocks after each layer and of the head; and memories."""
    its, shape, layers = run.settings.intervention, run.shape, run.shape.layers
    after = shape.body * (layers - 1) / 2  # of all layers
    prefixes = its.memories * its.examples * run.signs
    changes = prefixes * (len(its.scales) + 1 + its.controls + its.directions + its.similar)
    top_k = its.top_k_prefixes * (2 * len(its.top_k) + 1)
    # A pass up to the layer finds the silent prefixes, another one keeps keys and values. One pass over the prefixes on which
    # memories are kept serves all layers. The blocks after a layer read the changed tokens alone.
    passes = prefixes * layers * (shape.to_layer + shape.body) + its.top_k_prefixes * shape.body
    # Of own changes the direct effect is read too; it is the total one in the last layer.
    read = (changes * (2 * layers - 1) + top_k * layers) * shape.head
    return passes * run.text["train"].trigger_tokens + (changes + top_k) * after + read, its.memories * layers


BRANCH = Branch(
    name="intervention",
    about="Interventions: what changes when memory coefficients are changed.",
    split="train",
    settings="ffkv.branches.intervention.settings:Intervention",
    section="ffkv.branches.intervention.section:SECTION",
    samples={"memories": 1, "examples": 1, "top_k_prefixes": 10},
    steps={
        "measure": Step(
            "ffkv.branches.intervention.measure:measure_interventions",
            "Change the coefficients of random memories on their trigger examples, beside controls; keep a few memories alone.",
            reads=("model", "triggers", "projections", "prefixes", "train", "validation"),
            settings=("intervention", "batches/tokens", *MODULES, "model/max_memory", "seed", "layer_groups"),
            writes=(tables.BY_PREFIX, tables.BY_MEMORY, tables.KEPT),
            imports="model",
            amount=_amount,
        ),
        "summarize": Step(
            "ffkv.branches.intervention.summarize:summarize_interventions",
            "Write the tables of the report's section of interventions.",
            reads=("by_prefix*", "by_memory*", "kept*", "model", "projections*"),
            writes=(tables.BY_LAYER, tables.DOSES, tables.KEPT_MEMORIES, tables.MEMORIES_TABLE),
        ),
    },
    heading="Interventions",
    introduction="All figures above show what happens together. Here coefficients are changed while the model runs, so that the "
    "figures show what memories cause. A memory that is removed takes some probability from the tokens that its value "
    "promotes. The question is whether it takes more than any other change of the same size.",
    figures={
        "interventions": "Removed memories beside their controls",
        "intervention_doses": "Scaled memories",
        "kept_memories": "How many memories make a prediction",
    },
    applies=lambda settings: settings.intervention.memories > 0,
)
