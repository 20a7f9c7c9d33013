"""The tables of the branch `translation`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ffkv.base.files.columns import LAYER, MEMORY, Column, Table, count, flag, number, share, table, token_id, word
from ffkv.branches.composition import tables as composition
from ffkv.branches.refinement import tables as refinement
from ffkv.branches.values import tables as values

if TYPE_CHECKING:
    from ffkv.branches.settings import Settings

READINGS = ("translated", "shuffled")
JACOBIAN_READINGS = ("jacobian", "jacobian without identity", "rotated")
PUBLISHED = "jacobian without offset"
ALL_READINGS = (*READINGS, *JACOBIAN_READINGS)
ABOUT = (
    "`translated`: by the layer's map; `shuffled`: by the map of shuffled pairs; `jacobian`: by the mean Jacobian;"
    " `jacobian without identity`: by what of it is no multiple of the identity; `rotated`: by the Jacobian of random directions"
)
READING = word("reading", ABOUT, *ALL_READINGS)
JUDGED = (*ALL_READINGS, PUBLISHED, "head")
# What is compared memory by memory: readings, and differences of two.
COMPARED = (
    *("translated", "head", "translated - head", "translated - shuffled"),
    *("jacobian", "jacobian - head", "jacobian - rotated", "jacobian - jacobian without identity"),
)
HALVES = ("lower", "upper", "all")


def maps_of(settings: "Settings") -> tuple[str, ...]:
    """Returns the maps that a run with such settings has, of "translated" and "jacobian"."""
    one = "jacobian" if settings.translation.fit == "jacobian" else "translated"
    return {"head": (), "both": (one,), "all": ("translated", "jacobian")}[settings.values.readout]


def has_fitted(settings: "Settings") -> bool:
    """Tells whether a run with such settings has fitted maps."""
    return "translated" in maps_of(settings)


def has_jacobian(settings: "Settings") -> bool:
    """Tells whether a run with such settings has a Jacobian lens."""
    return "jacobian" in maps_of(settings)


def has_texts(settings: "Settings") -> bool:
    """Tells whether a run with such settings makes its Jacobian lens from texts."""
    return has_jacobian(settings) and not settings.translation.lens


def has_reading(settings: "Settings") -> bool:
    """Tells whether a run with such settings measures what its keys read."""
    return has_texts(settings) and settings.translation.reading_texts > 0


_FITTED: dict[str, Any] = {"only": "if maps are fitted", "applies": has_fitted}
_JACOBIAN: dict[str, Any] = {"only": "with the Jacobian lens", "applies": has_jacobian}

FIT = table(
    "translation/fit/{group}.parquet",
    "A layer and a reading of its block output: how well it gives what the head reads, on validation prefixes.",
    replace(LAYER, dtype="int32"),
    word("reading", f"{ABOUT}; `{PUBLISHED}`: J o, as published; `head`: as it is", *JUDGED),
    number("penalty", "penalty of the map; NaN of `head`", lowest=0),
    count("steps", "steps of gradient descent from the map in closed form to this one"),
    number(
        "explained_variance", "share of the variance that it explains; below 0 if the mean would do better", highest=1
    ),
    count("prefixes", "prefixes on which predictions are compared"),
    number("divergence", "mean divergence of its prediction from the model's", "nat", lowest=0),
    number("low", "lower end of the interval of the mean (95 %)", "nat", lowest=0),
    number("high", "upper end", "nat", lowest=0),
    split="validation",
    **_FITTED,
)
LENS = [
    replace(column, since="the fourth edition")
    for column in (
        count("texts", "texts that the Jacobian is the mean of; 0 of other readings"),
        count("positions", "positions of these texts that count"),
        number(
            "change", "how far it moves if one text is left out, of its length: root mean square over texts", lowest=0
        ),
        share("identity_share", "how much of it is a multiple of the identity, d α² / ‖J‖² with α = tr J / d"),
    )
]
JACOBIAN_FIT = table(
    "translation/jacobian_fit/{group}.parquet", FIT.about, *FIT.columns, *LENS, split="validation", **_JACOBIAN
)
BY_MEMORY = table(
    "translation/by_memory/{group}.parquet",
    "A memory and a reading: what its value predicts, as in `values/by_memory`.",
    READING,
    *values.BY_MEMORY.columns,
    token_id("head_top_token", "token with the highest logit, as the head reads the value without a map"),
    flag("head_agrees", "whether this token is next_token"),
    **_FITTED,
)
OF_PREFIX = {column.name: column for column in (*composition.BY_PREFIX.columns, *refinement.BY_PREFIX.columns)}
BY_PREFIX = table(
    "translation/by_prefix/{group}.parquet",
    "A layer, a sampled prefix and a reading: the predictions of the residual and the FF output.",
    READING,
    *(OF_PREFIX[name] for name in ("layer", "prefix", "top_residual", "top_ffn", "final", "probability")),
    count("tied", "how many of both predictions share their highest logit with another token", "int8"),
    *(OF_PREFIX[name] for name in ("agreeing", "agreeing_all")),
    split="validation",
    **_FITTED,
)
JACOBIAN_BY_MEMORY, JACOBIAN_BY_PREFIX = (
    replace(each, path=each.path.replace("/by_", "/jacobian_by_"), **_JACOBIAN) for each in (BY_MEMORY, BY_PREFIX)
)

FACTORS = ("key", "gate")
READINGS_OF_KEYS = {"auc": "derivative", "permuted_auc": "permuted", "identity_auc": "identity"}  # by column
FACTOR = word("factor", "what is read by: `key`; with a gate also `gate`, m = act(gate) key", *FACTORS)
READ_TOKENS = table(
    "keys/read_tokens/{group}.parquet",
    "A memory and a factor: which tokens it reads, by their embeddings and the mean derivative of the layer's input.",
    LAYER,
    MEMORY,
    FACTOR,
    Column("tokens", "object", "ids of the tokens with the highest scores k · E e_w, the highest first"),
    number(
        "rank",
        "tokens with a higher score than the last token of the strongest trigger example; -1 if there is none",
        dtype="int64",
        lowest=-1,
    ),
    share("auc", "mean share of the vocabulary with a lower score than the last tokens of up to 10 trigger examples"),
    share("permuted_auc", "the same, of the trigger examples of another key of the layer"),
    share(
        "identity_auc", "the same as `auc` without the derivative, by k · e_w; NaN if embeddings have another length"
    ),
    only="if what keys read is measured",
    applies=has_reading,
)
READ_BY_LAYER = table(
    "keys/read_by_layer/{group}.parquet",
    "A layer, a factor and a way to read: how high the last tokens of trigger examples are, over keys.",
    LAYER,
    FACTOR,
    word(
        "reading",
        "`derivative`: `auc` of `keys/read_tokens`; `permuted` and `identity`: its columns of these names",
        *READINGS_OF_KEYS.values(),
    ),
    count("keys", "keys with a trigger example"),
    share("q1", "first quartile over keys"),
    share("median", "median"),
    share("q3", "third quartile"),
    only="if what keys read is measured",
    applies=has_reading,
)


def _translated(name: str, of: Table) -> Table:
    """Returns the description of a table of another branch, for each reading."""
    columns = (word("counted", each.about, *each.choices) if each.name == "reading" else each for each in of.columns)
    about = f"A reading, and what a row of `{of.path.removesuffix('.csv')}` is."
    return table(f"translation/{name}.csv", about, READING, *columns)


AGREEMENT = _translated("translated_agreement", values.FIGURE_4)
RANK = _translated("translated_rank", values.FIGURE_5)
NO_AGREEMENT = _translated("translated_no_agreement", composition.FIGURE_8_NO_AGREEMENT)
RESIDUAL = _translated("translated_residual_agreement", refinement.FIGURE_9)
PROBABILITY = _translated("translated_final_probability", refinement.FIGURE_10)
FIT_BY_LAYER = table("translation/translation_fit.csv", FIT.about, LAYER, *FIT.columns[1:], *LENS)
DIFFERENCES = table(
    "translation/translation_differences.csv",
    "A half of the layers and a number of each memory: its mean. The intervals are those of shares, and of shares of the same "
    "memories.",
    word("half", "the lower half of the layers, the upper half, or all layers", *HALVES),
    word("compared", "agreement above permuted keys: of a reading, or a difference of two", *COMPARED),
    count("memories", "memories with a trigger example"),
    number("mean", "mean over the memories", lowest=-2, highest=2),
    number("low", "lower end of its interval (95 %)", lowest=-2, highest=2),
    number("high", "upper end", lowest=-2, highest=2),
)
SUMMARIES = (AGREEMENT, RANK, NO_AGREEMENT, RESIDUAL, PROBABILITY, FIT_BY_LAYER, DIFFERENCES)
