"""What the branch `translation` is made of."""

from typing import Any

from ffkv.base.files.columns import Table
from ffkv.base.steps import MODULES, File, Step
from ffkv.branches.branch import Branch
from ffkv.branches.translation import tables

LENS = tuple(f"translation/{name}" for name in ("texts", "tokens", "skip", "reach", "reading_texts"))
READING = ("translation/texts", "translation/reading_texts")
PASS = ("batches", *MODULES, "model/max_memory", "seed", "shards")  # settings of a pass of the whole model over text
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


def _jacobian(run: Any) -> tuple[float, float]:
    """Returns the operations of the passes over texts: forward once per copy, backward once per dimension, twice as many for what keys
    read; and the numbers of the sums."""
    asked, width = run.settings.translation, run.shape.width
    tokens = (asked.texts + 2 * min(asked.texts, asked.reading_texts)) * asked.tokens
    return tokens * width * run.shape.body, run.settings.shards * run.shape.layers * 4 * width**2


def _measuring(prefix: str, through: str, *written: Table) -> Step:
    """Returns the step that reads values, residuals and FF outputs through maps. `prefix`: of the names of its files."""
    readings = len(tables.JACOBIAN_READINGS if prefix else tables.READINGS)

    def amount(run: Any) -> tuple[float, float]:
        rows = run.shape.all_memories + run.shape.layers * run.sampled
        return readings * (rows + run.shape.layers * run.sampled) * run.shape.head, rows  # r and y of each prefix

    writer = "ffkv.branches.values.projections:write_projections"
    return Step(
        f"{ROOM}.measure:measure_translation",
        f"Read values, residuals and FF outputs through the {through} of a layer group.",
        reads=("model", f"{prefix}maps", "values", "triggers", "projections", "prefixes"),
        settings=(*MODULES, "layer_groups"),
        writes=(File(f"translation/{prefix}projections/{{group}}.h5", writer, written[0].applies), *written),
        imports="head",
        amount=amount,
    )


BRANCH = Branch(
    name="translation",
    about="Translation: values and states, read through linear maps to the last layer.",
    split="train",
    settings=f"{ROOM}.settings:Translation",
    section=f"{ROOM}.section:SECTION",
    local_files=f"{ROOM}.settings:lens_files",
    samples={"prefixes": 200, "texts": 4, "reading_texts": 1},
    of_control={"lens": ""},  # a published lens is of the trained model
    steps={
        "read": Step(
            f"{ROOM}.states:read_states",
            "Read the block outputs of all layers on random train prefixes.",
            reads=("model", "train"),
            settings=("translation/prefixes", "prefixes/sample", *PASS),
            writes=(File("translation/states/{shard}.h5", f"{ROOM}.states:write_states", tables.has_fitted),),
            imports="model",
            amount=_read,
        ),
        "fit": Step(
            f"{ROOM}.fit:fit_maps",
            "Fit a linear map from each layer's block output to the last one, and judge it on validation prefixes.",
            reads=("model", "states*", "prefixes"),
            settings=("translation/fit", *MODULES, "layer_groups", "seed"),
            writes=(File("translation/maps/{group}.h5", f"{ROOM}.maps:write_maps", tables.has_fitted), tables.FIT),
            imports="head",
            amount=_fit,
        ),
        "measure": _measuring("", "maps", tables.BY_MEMORY, tables.BY_PREFIX),
        "derive": Step(
            f"{ROOM}.jacobian:read_jacobians",
            "Sum derivatives of the last layer's output with respect to those of all layers, over train texts.",
            reads=("model", "train"),
            settings=(*LENS, *PASS),
            writes=(File("translation/jacobians/{shard}.h5", f"{ROOM}.states:write_states", tables.has_texts),),
            imports="model",
            amount=_jacobian,
        ),
        "average": Step(
            f"{ROOM}.average:average_jacobians",
            "Make the maps of the Jacobian lens, and judge them on validation prefixes.",
            reads=("model", "jacobians*", "prefixes"),
            settings=("translation/lens", *MODULES, "layer_groups", "seed"),
            writes=(
                File("translation/jacobian_maps/{group}.h5", f"{ROOM}.maps:write_maps", tables.has_jacobian),
                tables.JACOBIAN_FIT,
            ),
            imports="head",
            # 500 prefixes in five readings
            amount=lambda run: (2500 * run.shape.layers * run.shape.head, 3 * run.shape.layers * run.shape.width**2),
        ),
        "jacobian": _measuring("jacobian_", "Jacobian lens", tables.JACOBIAN_BY_MEMORY, tables.JACOBIAN_BY_PREFIX),
        "keys": Step(
            f"{ROOM}.reading:read_tokens",
            "Score the tokens by how strongly their embeddings excite each key of a layer group.",
            reads=("model", "jacobians*", "triggers", "train"),
            settings=(*READING, *MODULES, "model/max_memory", "layer_groups", "seed"),
            writes=(tables.READ_TOKENS, tables.READ_BY_LAYER),
            imports="model",
            amount=lambda run: (4 * run.shape.all_memories * run.shape.head, 2 * run.shape.all_memories),
        ),
        "summarize": Step(
            f"{ROOM}.summarize:summarize_translation",
            "Write the tables of figures 4, 5 and 8 to 10 in the translated reading, and the differences of readings.",
            reads=(
                *("fit*", "by_memory*", "by_prefix*", "jacobian_fit*", "jacobian_by_memory*", "jacobian_by_prefix*"),
                *("model", "triggers", "train"),
            ),
            settings=("seed",),
            writes=tables.SUMMARIES,
        ),
    },
    heading="Translation",
    introduction="Do values of lower layers predict little, or do they hold their predictions in another space than that of the head? "
    "Here a linear map from each layer to the last one precedes the head: one that is fitted on states of other text, or the mean "
    "derivative of the last layer's output, or both.",
    figures={
        "translated_agreement": "Agreement between values and trigger examples, translated",
        "translated_rank": "Rank of the next token in the value's prediction, translated",
        "translated_composition": "Predictions that no single memory makes, translated",
        "translated_residual": "The residual's prediction, translated",
        "translation_fit": "How well the maps fit",
        "key_reading": "The last token of trigger examples among the tokens that keys read",
    },
    applies=lambda settings: settings.values.readout != "head",
)
