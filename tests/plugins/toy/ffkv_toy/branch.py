"""What the branch `lengths` is made of."""

from ffkv.base.steps import Step
from ffkv.branches.branch import Branch
from ffkv_toy import tables

BRANCH = Branch(
    name="lengths",
    about="Lengths: how long the values of a layer are.",
    split="",
    settings="ffkv_toy.settings:Lengths",
    section="ffkv_toy.section:SECTION",
    steps={
        "summarize": Step(
            "ffkv_toy.summarize:summarize_lengths",
            "Write the length of the values of each layer.",
            reads=("values",),
            settings=("lengths",),
            writes=(tables.BY_LAYER,),
            amount=lambda run: (run.shape.all_memories, run.shape.layers),
        )
    },
    heading="Lengths of values",
    introduction="A long value changes the residual stream more than a short one.",
    figures={"value_lengths": "Lengths of values by layer"},
)
