"""What the branch `refinement` is made of."""

from ffkv.base.steps import MODULES, Step
from ffkv.branches.branch import Branch
from ffkv.branches.refinement import tables

BRANCH = Branch(
    name="refinement",
    about="Refinement: how predictions change from layer to layer.",
    split="validation",
    settings="ffkv.branches.refinement.settings:Refinement",
    section="ffkv.branches.refinement.section:SECTION",
    steps={
        "measure": Step(
            "ffkv.branches.refinement.measure:measure_refinement",
            "Read the predictions of r, y and o on each sampled prefix: of the residual, the FF output and the block output.",
            reads=("model", "prefixes"),
            settings=(*MODULES, "layer_groups"),
            writes=(tables.BY_PREFIX,),
            imports="head",
            # The head reads r, y and o of each layer, and the model's prediction.
            amount=lambda run: (
                (3 * run.shape.layers + 1) * run.sampled * run.shape.head,
                run.sampled * run.shape.layers,
            ),
        ),
        "summarize": Step(
            "ffkv.branches.refinement.summarize:summarize_refinement",
            "Write the tables of figures 9 to 11, and prediction_changes.csv.",
            reads=("by_prefix*", "model", "prefixes", "validation"),
            settings=("refinement/changes", "seed"),
            writes=(tables.FIGURE_9, tables.FIGURE_10, tables.FIGURE_11, tables.CHANGES),
            imports="head",
        ),
    },
    heading="Refinement",
    introduction="Each block adds to the residual stream. These figures ask at which layer the stream holds the model's "
    "prediction, and how the feed-forward layer changes it.",
    figures={
        "figure_9": "The residual's prediction and the model's prediction",
        "figure_10": "Probability of the model's prediction",
        "figure_11": "Where a block's prediction comes from",
    },
)
