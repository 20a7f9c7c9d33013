"""What the branch `behaviours` is made of."""

from typing import Any

from ffkv.base.steps import MODULES, File, Step
from ffkv.branches.behaviours import summary_tables, tables, words
from ffkv.branches.branch import Branch

PACKAGE = "ffkv.branches.behaviours"
TOKENS = 20  # of a prompt, for plans
PARTS = 3 * len(words.SHARES)  # first memories of three rankings, for CPR and CMD
SENT = 8  # experts of a token, for plans
TRIED = 2  # sets that are tried for a graph, per memory that it may have
OF_STEPS = [f"{each.name}*" for each in (*tables.CHOSEN, *tables.MEASURED, *tables.GRAPHS, tables.EXPERTS)]
RUNS_MODEL = ("batches/tokens", *MODULES, "model/max_memory", "shards")


def _read(run: Any) -> tuple[float, float]:
    """Returns the operations of the passes over prompts: three forward, two of them also backward; and numbers written."""
    # Prompts without pairs are compared with as many prefixes, too, which the settings do not tell.
    prompts = sum(each.count * (1 + (each.baseline != "patch")) for each in run.settings.behaviours.values())
    return 5 * prompts * TOKENS * run.shape.body, 5 * prompts * run.shape.all_memories


def _measured(run: Any) -> tuple[float, float]:
    """Returns the operations of the blocks after candidates, of sets and of the head; and rows."""
    total = 0.0
    for its in run.settings.behaviours.values():
        changes = (2 * its.candidates * (1 + its.controls + its.directions) + its.missed) * its.effect_prompts
        sets = len(its.sets) * (2 + its.random_sets) + 1
        sets *= 2 if run.shape.active < 1 else 1  # of memories, and of experts
        copies = sets * (2 * its.effect_prompts + its.side_effect_prefixes) + PARTS * its.effect_prompts
        whole = TOKENS if its.positions == "all" else 1  # every copy reads its whole prompt
        total += changes * (whole * run.shape.body / 2 + 2 * run.shape.head)
        total += copies * (whole * 2 * run.shape.body + run.shape.head)
        written = 2 * (2 * run.shape.layers + 5) * its.effect_prompts * (its.baseline == "patch")
        total += written * (TOKENS * 2 * run.shape.body + run.shape.head)
    return total, 0


def _graphed(run: Any) -> tuple[float, float]:
    """Returns the operations of the sets that are tried for graphs, and rows. A set costs a token, or a prompt if it is patched whole."""
    total = 0.0
    for its in run.settings.behaviours.values():
        sets = (1 + its.graph_resamples) * TRIED * its.graph_maximum + 2 * its.random_sets
        whole = TOKENS if its.positions == "all" else 1
        total += sets * its.graph_prompts * (whole * 2 * run.shape.body + run.shape.head)
    return total, 0


def _of_experts(run: Any) -> tuple[float, float]:
    """Returns the operations of the passes that read routers, of the blocks after experts, and of the head; and rows."""
    total, body = 0.0, run.shape.body
    for its in run.settings.behaviours.values() if run.shape.active < 1 else ():
        whole = TOKENS if its.positions == "all" else 1
        # An expert leaves in three ways, beside the others.
        changes = 3 * SENT**2 * run.shape.layers * (whole * body / 2 + 2 * run.shape.head)
        total += its.effect_prompts * (changes + (3 + SENT) * TOKENS * body) + 2 * its.count * TOKENS * body
    return total, 0


BRANCH = Branch(
    name="behaviours",
    about="Behaviours: which memories cause what the model does on a set of prompts.",
    split="train",
    settings=f"{PACKAGE}.settings:BEHAVIOURS",
    section=f"{PACKAGE}.section:SECTION",
    local_files=f"{PACKAGE}.prompt_file:prompt_files",
    # A control has the run's own prompts, so that accuracies and counts of memories can be compared.
    samples={
        "candidates": 5,
        "effect_prompts": 15,
        "random_sets": 3,
        "missed": 70,
        "side_effect_prefixes": 10,
        "bootstraps": 20,
    },
    of_control={"graph_prompts": 0},
    steps={
        "encode": Step(
            f"{PACKAGE}.encode:encode_behaviour",
            "Encode the prompts of a behaviour, and draw those that are used.",
            reads=("model", "train", "prefixes", "validation"),
            settings=("behaviours", "model/trust_remote_code", "seed"),
            writes=(tables.PROMPTS,),
            imports="head",
        ),
        "read": Step(
            f"{PACKAGE}.states:read_behaviour",
            "Read contributions and screen of every memory on the prompts of a behaviour.",
            reads=("model", "encode", "triggers"),
            settings=("behaviours", *RUNS_MODEL),
            writes=(File("behaviours/{behaviour}/states/{shard}.h5", f"{PACKAGE}.stored:write_states"),),
            imports="model",
            amount=_read,
        ),
        "choose": Step(
            f"{PACKAGE}.choose:choose_memories",
            "Test the contrast of every memory, and choose those whose exact effects are measured.",
            reads=("model", "encode", "read*"),
            settings=("behaviours", "seed"),
            writes=tables.CHOSEN,
        ),
        "measure": Step(
            f"{PACKAGE}.measure:measure_behaviour",
            "Patch candidates and sets of memories on the prompts of a behaviour, beside controls of equal length.",
            reads=("model", "encode", "memories", "answers", "triggers", "prefixes", "validation"),
            settings=("behaviours", "seed", *RUNS_MODEL),
            writes=tables.MEASURED,
            imports="model",
            amount=_measured,
        ),
        "graph": Step(
            f"{PACKAGE}.graph:graph_behaviour",
            "Find few memories that keep a share of a behaviour, and measure what is between them.",
            reads=("model", "encode", "answers", "triggers"),
            settings=("behaviours", "seed", *RUNS_MODEL[:-1]),
            writes=tables.GRAPHS,
            imports="model",
            amount=_graphed,
        ),
        "experts": Step(
            f"{PACKAGE}.experts:measure_experts",
            "Measure which experts the routers send the prompts of a behaviour to, and what each expert does there.",
            reads=("model", "encode", "answers", "triggers"),
            settings=("behaviours", "seed", *RUNS_MODEL[:-1]),
            writes=(tables.EXPERTS,),
            imports="model",
            amount=_of_experts,
        ),
        "summarize": Step(
            f"{PACKAGE}.summarize:summarize_behaviours",
            "Write the tables of the report's section of behaviours.",
            reads=("model", "encode*", *OF_STEPS, "projections*"),
            writes=(*summary_tables.SUMMARIES, *summary_tables.ALL_GRAPHS, summary_tables.ALL_EXPERTS),
        ),
    },
    heading="Behaviours",
    introduction="A behaviour is what the model does on a set of prompts: it gives one answer a higher logit than another one. "
    "Which memories make it do so? One half of the prompts chooses memories, the other half tells what they do.",
    figures={
        "behaviour_layers": "Where the memories of a behaviour are",
        "behaviour_sets": "How many memories carry a behaviour",
        "behaviour_writers": "Who carries it, where",
    },
    applies=lambda settings: bool(settings.behaviours),
)
