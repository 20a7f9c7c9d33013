"""The tables of the branch `translation`."""

from ffkv.base.files.columns import LAYER, Table, count, flag, layer, number, share, table, token_id, word
from ffkv.branches.composition import tables as composition
from ffkv.branches.refinement import tables as refinement
from ffkv.branches.values import tables as values

READINGS = ("translated", "shuffled")
READING = word("reading", "`translated`: by the layer's map; `shuffled`: by the map of shuffled pairs", *READINGS)
JUDGED = (*READINGS, "head")
COMPARED = ("translated", "head", "translated - head", "translated - shuffled")
HALVES = ("lower", "upper", "all")

FIT = table(
    "translation/fit/{group}.parquet",
    "A layer and a reading of its block output: how well it gives what the head reads, on validation prefixes.",
    layer(dtype="int32"),
    word("reading", "by the layer's map, by that of shuffled pairs, or as it is (`head`)", *JUDGED),
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
)
BY_MEMORY = table(
    "translation/by_memory/{group}.parquet",
    "A memory and a reading: what its value predicts, as in `values/by_memory`.",
    READING,
    *values.BY_MEMORY.columns,
    token_id("head_top_token", "token with the highest logit, as the head reads the value without a map"),
    flag("head_agrees", "whether this token is next_token"),
)
BY_PREFIX = table(
    "translation/by_prefix/{group}.parquet",
    "A layer, a sampled prefix and a reading: the predictions of the residual and the FF output.",
    READING,
    LAYER,
    count("prefix", "number of the sampled prefix", "int32"),
    token_id("top_residual", "prediction of the residual r"),
    token_id("top_ffn", "prediction of the FF output y"),
    token_id("final", "prediction of the model"),
    share("probability", "probability that r gives to `final`", "float32"),
    count("tied", "how many of both predictions share their highest logit with another token", "int8"),
    count("agreeing", "active memories whose value predicts what the layer predicts", "int32"),
    count("agreeing_all", "memories, active or not, whose value predicts what the layer predicts", "int32"),
    split="validation",
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
FIT_BY_LAYER = table("translation/translation_fit.csv", FIT.about, LAYER, *FIT.columns[1:])
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
