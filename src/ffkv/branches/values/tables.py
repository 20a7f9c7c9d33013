"""The tables of the branch `values`."""

from ffkv.base.files.columns import (
    LAYER,
    MEMORY,
    NEGATIVE,
    bounds,
    count,
    flag,
    interval,
    layer,
    number,
    share,
    table,
    text,
    token_id,
    word,
)

SOURCES = ("trigger", "permuted", "unigram", "uniform", "negative")
NORM = number("norm", "length of the value", dtype="float32", lowest=0)
CONTRIBUTION = number("contribution", "mean coefficient of the trigger examples times the norm")

BY_MEMORY = table(
    "values/by_memory/{group}.parquet",
    "A memory: what its value predicts, beside the trigger examples of its key.",
    layer(dtype="int32"),
    count("memory", "the memory in its layer, from 0", "int32"),
    NORM,
    CONTRIBUTION,
    token_id("top_token", "token with the highest logit"),
    share("top_probability", "its probability", "float32"),
    flag("tied", "whether several tokens share the highest logit"),
    token_id("bottom_token", "token with the lowest logit"),
    count("triggers", "trigger examples", "int32"),
    token_id("next_token", "token after the first trigger example"),
    number("rank", "rank of next_token among the logits, from 0; -1 if there is none", dtype="int32", lowest=-1),
    flag("agrees", "whether top_token is next_token"),
    count("matching", "trigger examples that top_token follows", "int32"),
    number("first_match", "rank of the first of them; -1 if there is none", dtype="int32", lowest=-1),
    count("negative_triggers", "trigger examples with negative coefficients", "int32", optional=NEGATIVE),
    token_id("negative_next_token", "token after the first of these", optional=NEGATIVE),
    flag("negative_agrees", "whether bottom_token is negative_next_token", optional=NEGATIVE),
)
FIGURE_4 = table(
    "values/figure_4_agreement.csv",
    "A layer and a source of the token that follows: how often the value's top token is that token.",
    LAYER,
    word("source", "`trigger`: the first trigger example; its baselines; `negative` has the bottom tokens", *SOURCES),
    number("agreeing", "keys that agree; of a baseline the expected number", lowest=0),
    count("keys", "keys with such a trigger example"),
    count("dead", "keys without one"),
    share("rate", "agreeing / keys"),
    *interval("Wilson interval (95 %); of a baseline of the middle 95 % of random draws"),
)
FIGURE_5 = table(
    "values/figure_5_rank.csv",
    "A layer: the rank of the token after the first trigger example in the prediction of the value.",
    LAYER,
    count("keys", "keys with a trigger example"),
    number("whisker_low", "lowest rank within 1.5 interquartile ranges of the box", lowest=0),
    number("q1", "first quartile", lowest=0),
    number("median", "median", lowest=0),
    number("q3", "third quartile", lowest=0),
    number("whisker_high", "highest rank within 1.5 interquartile ranges of the box", lowest=0),
    count("tied", "keys whose value gives its highest logit to several tokens"),
)
FIGURE_6 = table(
    "values/figure_6_top_probability.csv",
    "A bin of top probabilities: how often values agree.",
    share("low", "lower edge of the bin"),
    share("high", "upper edge of the bin"),
    count("values", "values in the bin"),
    count("agreeing", "values that agree"),
    share("rate", "agreeing / values"),
    *bounds("the Wilson interval (95 %)", "rate", lowest=0, highest=1),
)
PREDICTIVE_LAYERS = table(
    "values/table_2_predictive_layers.csv",
    "A layer: how many of the values with the highest top probability it has.",
    LAYER,
    count("values", "such values"),
    count("matching", "those with a trigger example that the top token follows"),
)
PREDICTIVE_VALUES = table(
    "values/table_2_predictive_values.csv",
    "A value with one of the highest top probabilities.",
    LAYER,
    MEMORY,
    NORM,
    CONTRIBUTION,
    token_id("top_token", "id of the top token"),
    text("token", "the top token"),
    share("top_probability", "its probability"),
    count("triggers", "trigger examples"),
    count("matching", "trigger examples that the top token follows"),
    share("precision", "matching / triggers"),
    text("prefix", "the strongest trigger example that the top token follows; else the strongest of all"),
    text("next_token", "the token after it"),
)
SUMMARIES = (FIGURE_4, FIGURE_5, FIGURE_6, PREDICTIVE_LAYERS, PREDICTIVE_VALUES)
