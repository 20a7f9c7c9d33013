"""What the branch `values` is made of."""

from ffkv.base.steps import MODULES, File, Step
from ffkv.branches.branch import Branch
from ffkv.branches.values import tables

ROOM = "ffkv.branches.values"

BRANCH = Branch(
    name="values",
    about="Values: projections, agreement, rank, top probability.",
    split="train",
    settings=f"{ROOM}.settings:Values",
    section=f"{ROOM}.section:SECTION",
    steps={
        "project": Step(
            f"{ROOM}.project:project_values",
            "Project values onto the vocabulary, for one layer group. Compare them with their keys' trigger examples.",
            reads=("model", "values", "triggers"),
            settings=("values/projection", "values/top_tokens", *MODULES, "layer_groups"),
            writes=(File("values/projections/{group}.h5", f"{ROOM}.projections:write_projections"), tables.BY_MEMORY),
            imports="head",
            # Each layer's values, and a vector of zeros.
            amount=lambda run: ((run.shape.all_memories + run.shape.layers) * run.shape.head, run.shape.all_memories),
        ),
        "summarize": Step(
            f"{ROOM}.summarize:summarize_values",
            "Write the tables of figures 4 to 6 and of table 2.",
            reads=("by_memory*", "model", "triggers", "train"),
            settings=("values/predictive", "values/bins", "seed"),
            imports="head",
            writes=tables.SUMMARIES,
        ),
    },
    heading="Values",
    introduction="A value is a row of the second matrix of a feed-forward layer. It is a vector in the space of the residual "
    "stream, so that the model's head turns it into a distribution over the vocabulary.",
    figures={
        "figure_4": "Agreement between values and trigger examples",
        "figure_5": "Rank of the next token in the value's prediction",
        "figure_6": "Agreement by the value's top probability",
    },
)
