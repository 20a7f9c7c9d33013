"""The tables of the branch `intervention`, and the words in them."""

from ffkv.base.files.columns import LAYER, MEMORY, REACH, count, flag, interval, layer, number, share, table, text, word

# What is changed: a memory's own coefficient, on its trigger examples or where it is silent; or a control.
OWN, PLACEBO, MEMORIES, DIRECTIONS, SIMILAR = "own", "placebo", "random_memories", "random_directions", "similar_size"
SOURCES = (OWN, MEMORIES, DIRECTIONS, SIMILAR, PLACEBO, "other_tokens")

SIDE = word("side", "sign of the coefficients", "positive", "negative")
DIVERGENCE = number("divergence", "KL divergence of the new prediction from the old one", "nat", lowest=0)
NEXT = number("next", "change of the log-probability of the next token", "nat")
OF_CHANGES = (
    word("change", "`scale`: the coefficient is multiplied; `mean`: it becomes its mean", "scale", "mean"),
    number("scale", "the factor"),
)

BY_PREFIX = table(
    "intervention/by_prefix/{group}.parquet",
    "A memory, a prefix and a change of the coefficient.",
    LAYER,
    MEMORY,
    SIDE,
    word("source", "`own`: a trigger example; `placebo`: where the memory is nearly silent", OWN, PLACEBO),
    count("sentence", "the sentence of the prefix"),
    count("position", "the number of its tokens"),
    number("coefficient", "the coefficient m"),
    number("size", "length of the contribution", lowest=0),
    *OF_CHANGES,
    REACH,
    number("top", "mean change of the log-probabilities of the value's top tokens", "nat"),
    NEXT,
    DIVERGENCE,
    flag("changed", "whether the model predicts another token"),
)
BY_MEMORY = table(
    "intervention/by_memory/{group}.parquet",
    "A memory, a side and a reach: its removal beside its controls.",
    LAYER,
    MEMORY,
    SIDE,
    REACH,
    count("prefixes", "trigger examples"),
    count("silent_prefixes", "prefixes on which the memory is nearly silent, but not 0"),
    count("similar_prefixes", "prefixes with contributions of similar size"),
    number("coefficient", "mean coefficient"),
    number("size", "mean length of the contribution", lowest=0),
    number("own", "mean change of the log-probabilities of the value's top tokens", "nat"),
    number("random_memories", "the same for vectors of this length along values of random memories", "nat"),
    number("random_directions", "the same for vectors of this length in random directions", "nat"),
    number("similar_size", "the same for memories of the layer with contributions of similar size", "nat"),
    number("placebo", "the same for the memory where it is nearly silent; empty if it never is", "nat"),
    number("other_tokens", "the removal's effect on the top tokens of another value", "nat"),
    number("specific", "own - random_memories", "nat"),
    share("p_value", "share of random memories with an effect as large, one added to both counts"),
    NEXT,
    DIVERGENCE,
    share("changed", "share of prefixes on which the model predicts another token"),
    share("q_value", "p-value, adjusted for all memories of the layer"),
)
KEPT = table(
    "intervention/kept/{group}.parquet",
    "A layer, a sampled prefix and a number of memories that are kept while all others are removed.",
    LAYER,
    count("prefix", "number of the sampled prefix"),
    word("choice", "which memories are kept", "largest", "random", "all"),
    count("kept", "number of memories that are kept"),
    flag("unchanged", "whether the model predicts the same token"),
    DIVERGENCE,
    split="validation",
)
BY_LAYER = table(
    "intervention/interventions_by_layer.csv",
    "A layer, a side, a reach and what is removed.",
    LAYER,
    SIDE,
    REACH,
    word("source", "what is removed: the memory itself, or a control", *SOURCES),
    count("memories", "memories that are measured"),
    number("mean", "mean over memories of the change of log-probability", "nat"),
    number("low", "lower end of its interval over memories (95 %)", "nat"),
    number("high", "upper end", "nat"),
    count("significant", "memories with a q-value up to 0.05; of the memories themselves only", "float64"),
)
DOSES = table(
    "intervention/intervention_doses.csv",
    "A layer, a side, a reach and a change of the coefficient.",
    layer("the layer, from 0; -1: all layers"),
    SIDE,
    REACH,
    *OF_CHANGES,
    count("memories", "memories that are measured"),
    number("top", "mean change of the log-probabilities of the values' top tokens", "nat"),
    number("low", "lower end of its interval over memories (95 %)", "nat"),
    number("high", "upper end", "nat"),
    NEXT,
    DIVERGENCE,
    share("changed", "share of prefixes on which the model predicts another token"),
)
KEPT_MEMORIES = table(
    "intervention/kept_memories.csv",
    "A layer and a number of memories that are kept.",
    LAYER,
    word("choice", "which memories are kept", "largest", "random", "all"),
    count("kept", "number of memories that are kept"),
    count("prefixes", "sampled prefixes"),
    count("unchanged", "prefixes on which the model predicts the same token"),
    share("share", "unchanged / prefixes"),
    *interval("Wilson interval (95 %)"),
    DIVERGENCE,
)
MEMORIES_TABLE = table(
    "intervention/intervention_memories.csv",
    "The rows of `intervention/by_memory` of all layers.",
    *BY_MEMORY.columns,
    text("token", "the top token of the value"),
)
