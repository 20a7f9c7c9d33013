"""The tables of the branch `values`."""

from ffkv.base.files import columns

SOURCES = ("trigger", "permuted", "unigram", "uniform", "negative")
NORM = columns.number("norm", "length of the value", dtype="float32", lowest=0)
CONTRIBUTION = columns.number("contribution", "mean coefficient of the trigger examples times the norm")

BY_MEMORY = columns.table(
    "values/by_memory/{group}.parquet",
    "A memory: what its value predicts, beside the trigger examples of its key.",
    columns.layer(dtype="int32"),
    columns.count("memory", "the memory in its layer, from 0", "int32"),
    NORM,
    CONTRIBUTION,
    columns.token_id("top_token", "token with the highest logit"),
    columns.share("top_probability", "its probability", "float32"),
    columns.flag("tied", "whether several tokens share the highest logit"),
    columns.token_id("bottom_token", "token with the lowest logit"),
    columns.count("triggers", "trigger examples", "int32"),
    columns.token_id("next_token", "token after the first trigger example"),
    columns.number(
        "rank", "rank of next_token among the logits, from 0; -1 if there is none", dtype="int32", lowest=-1
    ),
    columns.flag("agrees", "whether top_token is next_token"),
    columns.count("matching", "trigger examples that top_token follows", "int32"),
    columns.number("first_match", "rank of the first of them; -1 if there is none", dtype="int32", lowest=-1),
    columns.count(
        "negative_triggers", "trigger examples with negative coefficients", "int32", optional=columns.NEGATIVE
    ),
    columns.token_id("negative_next_token", "token after the first of these", optional=columns.NEGATIVE),
    columns.flag("negative_agrees", "whether bottom_token is negative_next_token", optional=columns.NEGATIVE),
)
FIGURE_4 = columns.table(
    "values/figure_4_agreement.csv",
    "A layer and a source of the token that follows: how often the value's top token is that token.",
    columns.LAYER,
    columns.word(
        "source", "`trigger`: the first trigger example; its baselines; `negative` has the bottom tokens", *SOURCES
    ),
    columns.number("agreeing", "keys that agree; of a baseline the expected number", lowest=0),
    columns.count("keys", "keys with such a trigger example"),
    columns.count("dead", "keys without one"),
    columns.share("rate", "agreeing / keys"),
    *columns.interval("Wilson interval (95 %); of a baseline of the middle 95 % of random draws"),
)
FIGURE_5 = columns.table(
    "values/figure_5_rank.csv",
    "A layer: the rank of the token after the first trigger example in the prediction of the value.",
    columns.LAYER,
    columns.count("keys", "keys with a trigger example"),
    columns.number("whisker_low", "lowest rank within 1.5 interquartile ranges of the box", lowest=0),
    columns.number("q1", "first quartile", lowest=0),
    columns.number("median", "median", lowest=0),
    columns.number("q3", "third quartile", lowest=0),
    columns.number("whisker_high", "highest rank within 1.5 interquartile ranges of the box", lowest=0),
    columns.count("tied", "keys whose value gives its highest logit to several tokens"),
)
FIGURE_6 = columns.table(
    "values/figure_6_top_probability.csv",
    "A bin of top probabilities: how often values agree.",
    columns.share("low", "lower edge of the bin"),
    columns.share("high", "upper edge of the bin"),
    columns.count("values", "values in the bin"),
    columns.count("agreeing", "values that agree"),
    columns.share("rate", "agreeing / values"),
    columns.share("rate_low", "lower end of the Wilson interval (95 %)"),
    columns.share("rate_high", "upper end"),
)
PREDICTIVE_LAYERS = columns.table(
    "values/table_2_predictive_layers.csv",
    "A layer: how many of the values with the highest top probability it has.",
    columns.LAYER,
    columns.count("values", "such values"),
    columns.count("matching", "those with a trigger example that the top token follows"),
)
PREDICTIVE_VALUES = columns.table(
    "values/table_2_predictive_values.csv",
    "A value with one of the highest top probabilities.",
    columns.LAYER,
    columns.MEMORY,
    NORM,
    CONTRIBUTION,
    columns.token_id("top_token", "id of the top token"),
    columns.text("token", "the top token"),
    columns.share("top_probability", "its probability"),
    columns.count("triggers", "trigger examples"),
    columns.count("matching", "trigger examples that the top token follows"),
    columns.share("precision", "matching / triggers"),
    columns.text("prefix", "the strongest trigger example that the top token follows; else the strongest of all"),
    columns.text("next_token", "the token after it"),
)
