"""What the branch `translation` is made of."""

from typing import Any

from ffkv.base.steps import MODULES, File, Step
from ffkv.branches.branch import Branch
from ffkv.branches.translation import tables

READ_OUT = 75_000  # vectors that a descent reads out, at most: 300 steps of 64, forward and backward, and 13 looks
ROOM = "ffkv.branches.translation"


def _read(run: Any) -> tuple[float, float]:
    """Returns the operations of the pass over train prefixes, and the numbers that it stores."""
    train, prefixes = run.text["train"], run.settings.translation.prefixes
    return train.tokens_read(prefixes) * run.shape.body, prefixes * run.shape.layers * run.shape.width


def _fit(run: Any) -> tuple[float, float]:
    """Returns the operations of sums of products and of the head, and the numbers of the maps."""
    shape, asked = run.shape, run.settings.translation
    descent = 2 * READ_OUT if asked.fit == "divergence" else 0  # of two maps
    return (
        shape.layers * (4 * asked.prefixes * shape.width**2 + (2000 + descent) * shape.head),
        2 * shape.layers * shape.width**2,
    )


BRANCH = Branch(
    name="translation",
    about="Translation: values and states, read through linear maps to the last layer.",
    split="train",
    settings=f"{ROOM}.settings:Translation",
    section=f"{ROOM}.section:SECTION",
    samples={"prefixes": 200},
    steps={
        "read": Step(
            f"{ROOM}.states:read_states",
            "Read the block outputs of all layers on random train prefixes.",
            reads=("model", "train"),
            settings=(
                "translation/prefixes",
                "prefixes/sample",
                "batches",
                *MODULES,
                "model/max_memory",
                "seed",
                "shards",
            ),
            writes=(File("translation/states/{shard}.h5", f"{ROOM}.states:write_states"),),
            imports="model",
            amount=_read,
        ),
        "fit": Step(
            f"{ROOM}.fit:fit_maps",
            "Fit a linear map from each layer's block output to the last one, and judge it on validation prefixes.",
            reads=("model", "states*", "prefixes"),
            settings=("translation/fit", *MODULES, "layer_groups", "seed"),
            writes=(File("translation/maps/{group}.h5", f"{ROOM}.maps:write_maps"), tables.FIT),
            imports="head",
            amount=_fit,
        ),
        "measure": Step(
            f"{ROOM}.measure:measure_translation",
            "Read values, residuals and FF outputs through the maps of a layer group.",
            reads=("model", "maps", "values", "triggers", "projections", "prefixes"),
            settings=(*MODULES, "layer_groups"),
            writes=(
                File("translation/projections/{group}.h5", "ffkv.branches.values.projections:write_projections"),
                tables.BY_MEMORY,
                tables.BY_PREFIX,
            ),
            imports="head",
            # Two maps, through which the head reads the values, and r and y of each layer.
            amount=lambda run: (
                2 * (run.shape.all_memories + 2 * run.shape.layers * run.sampled) * run.shape.head,
                run.shape.all_memories + run.shape.layers * run.sampled,
            ),
        ),
        "summarize": Step(
            f"{ROOM}.summarize:summarize_translation",
            "Write the tables of figures 4, 5 and 8 to 10 in the translated reading, and the differences of readings.",
            reads=("fit*", "by_memory*", "by_prefix*", "model", "triggers", "train"),
            settings=("seed",),
            writes=tables.SUMMARIES,
        ),
    },
    heading="Translation",
    introduction="Do values of lower layers predict little, or do they hold their predictions in another space than that of the head? "
    "Here a linear map from each layer to the last one, fitted on states of other text, precedes the head.",
    figures={
        "translated_agreement": "Agreement between values and trigger examples, translated",
        "translated_rank": "Rank of the next token in the value's prediction, translated",
        "translated_composition": "Predictions that no single memory makes, translated",
        "translated_residual": "The residual's prediction, translated",
        "translation_fit": "How well the maps fit",
    },
    applies=lambda settings: settings.values.readout == "both",
)
