"""What the branch `keys` is made of."""

from typing import Any

from ffkv.base.steps import MODULES, Step
from ffkv.branches.branch import Branch
from ffkv.branches.keys import tables

KEYS = "ffkv.branches.keys"
RUNS_MODEL = ("batches/tokens", *MODULES, "model/max_memory")
PATTERNS = ("per_layer", "pattern_triggers", "minimum_prefixes", "false_discovery_rate", "background_prefixes")


def _chosen(run: Any, most: float = float("inf")) -> float:
    """Returns the number of keys of all layers, `most` per layer."""
    return sum(min(run.settings.keys.per_layer, size, most) for size in run.shape.memories)


def _removal(run: Any) -> float:
    """Returns the operations of token removal.

    Prefixes without the last or a middle token are read once if they begin alike. Those without a middle token are read from
    there on, a half on average; in low precision whole: rounding hides whether that is right. Those without the first one, whole.
    """
    layers, train = run.shape.layers, run.text["train"]
    removed = _chosen(run) * min(run.settings.keys.removal_triggers, run.settings.triggers.per_key)
    rows = 1.5 if run.shape.dtype == "float32" else 2.0  # of a prefix that begin alike
    return (rows * layers * train.triggers_read(removed / layers) + removed * train.trigger_tokens) * run.shape.to_layer


def _precision(run: Any) -> float:
    """Returns the operations of computing coefficients again. Prefixes are read once if they begin alike."""
    layers = run.shape.layers
    triggers = _chosen(run, tables.PRECISION_KEYS) * run.settings.triggers.per_key
    return layers * run.text["train"].triggers_read(triggers / layers) * run.shape.to_layer


BRANCH = Branch(
    name="keys",
    about="Keys: patterns in trigger examples, token removal, activity.",
    split="train",
    settings="ffkv.branches.keys.settings:Keys",
    section="ffkv.branches.keys.section:SECTION",
    samples={"per_layer": 5, "removal_triggers": 1},
    of_control={"precision": False},  # nobody reads it of a control
    steps={
        "patterns": Step(
            f"{KEYS}.patterns:find_patterns",
            "Find patterns in the trigger examples of random keys. Random prefixes are searched in the same way, as a control.",
            reads=("triggers", "train"),
            settings=(*(f"keys/{name}" for name in PATTERNS), "seed", "layer_groups"),
            writes=(tables.PATTERNS, tables.BY_PREFIX),
            amount=lambda run: (_chosen(run), _chosen(run)),
        ),
        "removal": Step(
            f"{KEYS}.removal:remove_tokens",
            "Measure how coefficients change when a token is removed: the first, the last or a random one.",
            reads=("model", "triggers", "train"),
            settings=("keys/per_layer", "keys/removal_triggers", *RUNS_MODEL, "seed", "layer_groups"),
            writes=(tables.REMOVAL,),
            imports="model",
            amount=lambda run: (_removal(run), _chosen(run)),
        ),
        "precision": Step(
            f"{KEYS}.removal:measure_precision",
            "Measure how low precision changes trigger examples. Their coefficients are computed again in float32.",
            reads=("model", "triggers", "train"),
            settings=("keys/per_layer", *RUNS_MODEL, "seed"),
            writes=(tables.PRECISION,),
            imports="model",
            amount=lambda run: (_precision(run), run.shape.layers),
        ),
        "summarize": Step(
            f"{KEYS}.summarize:summarize_keys",
            "Write the tables of figures 2 and 3, and activity.csv.",
            reads=("triggers", "patterns*", "by_prefix*", "removal*"),
            writes=(tables.ACTIVITY, tables.FIGURE_2_CATEGORIES, tables.FIGURE_2_PATTERN_COUNTS, tables.FIGURE_3),
        ),
    },
    heading="Keys",
    introduction="A key is a row of the first matrix of a feed-forward layer. Its memory coefficient says how strongly a "
    "prefix matches the key. The trigger examples of a key are the prefixes of the train split that match it most strongly.",
    figures={"figure_2": "Patterns in trigger examples", "figure_3": "Removing a token from trigger examples"},
)
