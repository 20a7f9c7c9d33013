"""What the branch `routing` is made of."""

from ffkv.base.steps import MODULES, Step
from ffkv.branches.branch import Branch
from ffkv.branches.routing import tables

BRANCH = Branch(
    name="routing",
    about="Routing: to which experts tokens are sent.",
    split="train",
    settings="ffkv.branches.routing.settings:Routing",
    section="ffkv.branches.routing.section:SECTION",
    steps={
        "measure": Step(
            "ffkv.branches.routing.measure:measure_routing",
            "Read to which experts the tokens of the train split are sent, and which experts fire on which patterns.",
            reads=("model", "train"),
            settings=("routing", "seed", "batches/tokens", *MODULES, "model/max_memory"),
            writes=(tables.LOAD, tables.EXPERTS, tables.PATTERNS),
            imports="model",
            amount=lambda run: (run.settings.routing.tokens * run.shape.body, 0),
        )
    },
    heading="Routing",
    introduction="A router sends each token to few of the experts of a layer. To which ones, how evenly, and which experts get tokens "
    "with which patterns?",
    figures={"routing_load": "How evenly tokens are sent to experts"},
    applies=lambda settings: settings.routing.tokens > 0,
)
