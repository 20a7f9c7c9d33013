"""What the branch `roles` is made of."""

from ffkv.base.steps import Step
from ffkv.branches.branch import Branch
from ffkv.branches.roles import tables

BRANCH = Branch(
    name="roles",
    about="Roles: what the weights of memories alone say of them.",
    split="train",
    settings="ffkv.branches.roles.settings:Roles",
    section="ffkv.branches.roles.section:SECTION",
    steps={
        "measure": Step(
            "ffkv.branches.roles.measure:measure_roles",
            "Compare keys, gates and values of each memory with each other and with the head. Sum up by layer.",
            reads=("model", "values", "projections", "triggers", "train"),
            settings=("roles", "model/max_memory", "model/trust_remote_code", "seed", "layer_groups"),
            writes=(tables.BY_MEMORY, tables.BY_LAYER, tables.TYPES_BY_LAYER, tables.SIGN_CASES),
            imports="model",
            amount=lambda run: (run.shape.all_memories, run.shape.all_memories),
        )
    },
    heading="Roles from weights",
    introduction="A memory can write what it reads, or its opposite. It can write into directions that the head does not read, "
    "or raise all frequent tokens at once. Its weights alone say so. The names of these roles are those of other papers "
    "(docs/roles.md).",
    figures={"memory_roles": "What memories do to the direction that they read"},
)
