"""What the branch `composition` is made of."""

from ffkv.base.steps import MODULES, Step
from ffkv.branches.branch import Branch
from ffkv.branches.composition import tables

BRANCH = Branch(
    name="composition",
    about="Composition: how the memories of a layer act together.",
    split="validation",
    settings="ffkv.branches.composition.settings:Composition",
    section="ffkv.branches.composition.section:SECTION",
    steps={
        "measure": Step(
            "ffkv.branches.composition.measure:measure_composition",
            "Measure how memories compose the output of their layer, on each sampled prefix.",
            reads=("model", "prefixes", "projections", "validation"),
            settings=("composition/mass", *MODULES, "layer_groups"),
            writes=(tables.BY_PREFIX,),
            imports="head",
            amount=lambda run: (run.sampled * run.shape.layers * run.shape.head, run.sampled * run.shape.layers),
        ),
        "summarize": Step(
            "ffkv.branches.composition.summarize:summarize_composition",
            "Write the tables of figures 7 and 8.",
            reads=("by_prefix*", "model"),
            settings=("composition/short_prefix",),
            writes=tables.SUMMARIES,
        ),
    },
    heading="Composition",
    introduction="The output of a layer is the sum of its values, each multiplied by its memory coefficient. These figures ask "
    "how many memories contribute, and whether the sum predicts what one of them predicts.",
    figures={"figure_7": "Active memories", "figure_8": "Predictions that no single memory makes"},
)
