"""The tables of a comparison."""

from dataclasses import replace

from ffkv.base.files.columns import LAYER, MEMORY, count, number, share, table, text, word

FOLDER = "comparisons/<name>/tables"
BY_NUMBER, BY_CORRELATION = (f"if memories are found {how}" for how in ("by number", "by correlation"))
RUN = text("run", "name of the run")
REFERENCE = text("reference", "the run that it is compared with: the first or the last one")
POINT = (
    word("figure", "name of the figure"),
    word("curve", "label of the curve"),
    RUN,
    number("x", "the layer, from 0, or another quantity"),
    share("depth", "relative depth of the layer; NaN of another quantity"),
)
# How much of a memory is the same in both runs.
MEASURES = (
    share("jaccard", "trigger examples in both, over those in any; NaN if the runs read different text"),
    share("rank_biased_overlap", "the same, in which the first ones count most"),
    share("same_top_token", "whether both values have the same top token"),
    number("key_cosine", "cosine of both keys; NaN if the model has no plain first matrices", lowest=-1, highest=1),
    number("value_cosine", "cosine of both values", lowest=-1, highest=1),
)
# What became of a memory between two runs. It agrees if its value predicts the token after its first trigger example.
KINDS = {
    "appeared": "agree (figure 4) in the later run only",
    "lost": "agree in the earlier run only",
    "stayed": "agree in both, with the same top token",
    "changed": "agree in both, with another top token",
}

RUNS = table(
    f"{FOLDER}/runs.csv",
    "A run.",
    RUN,
    text("label", "what figures call it"),
    text("checkpoint", "its checkpoint"),
    word("architecture", "class of the model"),
    count("layers", "layers of the model"),
    count("memories", "memories of the model"),
    text("corpus", "its data set"),
    word("model_hash", "hash of the weights"),
    word("corpus_hash", "hash of the train split"),
)
CURVES = table(
    f"{FOLDER}/curves.csv",
    "A figure, a curve, a run and a point.",
    *POINT,
    number("axis", "place of the run on the axis; NaN without an axis"),
    number("value", "value of the curve"),
    number("low", "lower end of its 95 % interval; NaN where the figure has none"),
    number("high", "upper end"),
)
DIFFERENCES = table(
    f"{FOLDER}/differences.csv",
    "A figure, a curve, a run but the first, and a point.",
    *POINT[:3],
    text("baseline", "the first run"),
    *POINT[3:],
    number("difference", "value of the run - value of the baseline"),
    number("low", "lower end of its 95 % interval; NaN where it is not known"),
    number("high", "upper end"),
    count("pairs", "units that both runs have; 0 if they are not paired"),
    word("paired_by", "what is paired, if anything", "memories", "prefixes"),
)
BY_LAYER = table(
    f"{FOLDER}/by_layer.csv",
    "A run, a reference and a layer: means over its memories.",
    RUN,
    REFERENCE,
    LAYER,
    count("memories", "memories of the layer"),
    *MEASURES,
    *(replace(each, name=f"permuted_{each.name}", about="the same with memories permuted") for each in MEASURES),
    *(count(kind, f"memories that {about}") for kind, about in KINDS.items()),
    only=BY_NUMBER,
)
BY_MEMORY = table(
    f"{FOLDER}/by_memory.parquet",
    "A run, a reference and a memory.",
    RUN,
    REFERENCE,
    LAYER,
    MEMORY,
    text("top_token", "top token of the value"),
    text("reference_token", "top token of the value in the reference"),
    share("top_probability", "probability of `top_token`", "float32"),
    *MEASURES,
    word("kind", "what became of it, if it agrees in any of both runs", *KINDS),
    only=BY_NUMBER,
)
MATCHES = table(
    f"{FOLDER}/matches.csv",
    "A run but the first, and a random memory of the first run.",
    RUN,
    LAYER,
    MEMORY,
    number("correlation", "highest correlation with the coefficients of any memory of the run"),
    count("matched_layer", "layer of that memory"),
    count("matched_memory", "its number in the layer"),
    number("next_correlation", "second highest correlation"),
    share("p_value", "probability that the highest one stands out as much by chance; 1 if it is tied"),
    share("q_value", "p-value, adjusted for all memories of the first run"),
    only=BY_CORRELATION,
)
TABLES = (RUNS, CURVES, DIFFERENCES, BY_LAYER, BY_MEMORY, MATCHES)
