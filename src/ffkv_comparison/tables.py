"""The tables of a comparison."""

from dataclasses import replace
from typing import Any

from ffkv.base.files.columns import LAYER, MEMORY, Column, bounds, count, number, share, table, text, word
from ffkv.branches.behaviours.tables import BEHAVIOUR

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


def _with_interval(name: str, about: str, **limits: Any) -> tuple[Column, ...]:
    """Returns the columns of a number and of the ends of its interval, which are NaN where it is not known."""
    ends = bounds("its interval over groups of prompts (95 %)", name, **limits)
    return number(name, f"{about}; NaN if it is not known", **limits), *ends


RUNS = table(
    f"{FOLDER}/runs.csv",
    "A run.",
    RUN,
    text("label", "what figures call it"),
    text("checkpoint", "its checkpoint"),
    word("architecture", "class of the model"),
    count("layers", "layers of the model"),
    count("memories", "memories of the model"),
    text("corpus", "the title of its text, or else its data set"),
    word("model_hash", "hash of the weights"),
    word("corpus_hash", "hash of the train split"),
)
CLAIMS = table(
    f"{FOLDER}/claims.csv",
    "A run and a claim of its report. Numbers are those of its `verdicts.csv`.",
    RUN,
    word("claim", "name of the claim"),
    number("value", "the number of the run; NaN if there is none"),
    *bounds(),
    text("verdict", "the verdict, beside the run's own control"),
    number("difference", "value of the run - value of the first run; NaN of the first run"),
    *bounds("its interval (95 %), as if the samples were independent", "difference"),
    since="fourth",
)
ENDS, APART = ["value", "low", "high"], ["difference", "difference_low", "difference_high"]
CURVES = table(
    f"{FOLDER}/curves.csv",
    "A figure, a curve, a run and a point.",
    *POINT,
    number("axis", "place of the run on the axis; NaN without an axis"),
    number("value", "value of the curve"),
    *bounds("its 95 % interval; NaN where the figure has none"),
)
COMPARED = "figure_2", "figure_3", "figure_4", "figure_5", "figure_7", "figure_8"  # by layer
ACTIVE = "median share of active memories"
OF_UNITS = {("figure_4", "agreement rate"), ("figure_7", ACTIVE)}  # curves that are shares of memories
COSTS = table(
    f"{FOLDER}/costs.csv",
    "A layer that a run reads through a dictionary, a run, and a curve of figures 2 to 8: what it says at which cost.",
    LAYER,
    RUN,
    count("units", "memories of the layer, or units of its dictionary"),
    number("active", "units that are active at a token: median over prefixes", lowest=0),
    number(
        "explained",
        "share of the variance of what they are to add up to that they explain; 1 of all memories; below 0 if they leave more",
        highest=1,
    ),
    *POINT[:2],
    number("value", "value of the curve"),
    number("per_thousand", "units per 1,000 of which it holds; NaN of a curve that is no share of units"),
    only="if a run reads a layer through a dictionary",
    since="fourth",
)
DIFFERENCES = table(
    f"{FOLDER}/differences.csv",
    "A figure, a curve, a run but the first, and a point.",
    *POINT[:3],
    text("baseline", "the first run"),
    *POINT[3:],
    number("difference", "value of the run - value of the baseline"),
    *bounds("its 95 % interval; NaN where it is not known"),
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
    share("q_value", "p-value, adjusted for all memories that were sought"),
    only=BY_CORRELATION,
)
BEHAVIOURS = table(
    f"{FOLDER}/behaviours.csv",
    "A run and a behaviour, of behaviours that several runs have.",
    RUN,
    BEHAVIOUR,
    number("axis", "place of the run on the axis; NaN without an axis"),
    word("positions", "tokens of a prompt at which memories are patched", "last", "all"),
    text("other_settings", "settings of the behaviour that are not as in the first run that has it"),
    count("prompts", "prompts that are used"),
    count("groups", "groups of these prompts: a group counts as one draw", since="fourth"),
    *_with_interval(
        "accuracy", "share of them on which the answer has a higher logit than the wrong answer", lowest=0, highest=1
    ),
    *_with_interval("difference", "mean logit difference"),
    number("size", "n: memories in the largest set; NaN if no set was measured", lowest=1),
    *_with_interval(
        "lost", "share of the behaviour that is lost when the n memories with the largest screen are patched"
    ),
    *_with_interval("random_lost", "the same of random sets of equal summed length"),
    *_with_interval("all_lost", "the same of all memories"),
)
BEHAVIOUR_MEMORIES = table(
    f"{FOLDER}/behaviour_memories.csv",
    "A run, a behaviour, and a candidate.",
    RUN,
    BEHAVIOUR,
    LAYER,
    MEMORY,
    text("token", "the top token of the value"),
    number(
        "effect", "by how much the mean logit difference falls when the memory is patched; NaN if it was not measured"
    ),
    number("effect_q", "its p-value among random memories, adjusted for all candidates"),
    number("screen_estimate", "mean screen of the second half of the prompts"),
    only=BY_NUMBER,
)
BEHAVIOUR_OVERLAPS = table(
    f"{FOLDER}/behaviour_overlaps.csv",
    "A behaviour, a run that has it, and the next run that has it.",
    BEHAVIOUR,
    RUN,
    text("next_run", "name of the next run"),
    count("candidates", "candidates in the run"),
    count("next_candidates", "candidates in the next run"),
    count("shared", "memories that are candidates in both"),
    share("jaccard", "`shared` over the candidates in any of both"),
    share("chance", "mean of the same, of random memories of the same layers"),
    only=BY_NUMBER,
)
OF_BEHAVIOURS = (BEHAVIOURS, BEHAVIOUR_MEMORIES, BEHAVIOUR_OVERLAPS)
TABLES = (RUNS, CLAIMS, CURVES, COSTS, DIFFERENCES, BY_LAYER, BY_MEMORY, MATCHES, *OF_BEHAVIOURS)
