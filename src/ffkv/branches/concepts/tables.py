"""The tables of the branch `concepts`."""

from ffkv.base.files.columns import LAYER, MEMORY, count, flag, layer, number, share, table, text, word

OF_FEATURES = """`memories`; `residual`: coordinates of the residual that the layer reads; `directions`: as many random directions of it as
there are memories; `whole`: all its coordinates at once""".replace("\n", " ")
FEATURES = word("features", OF_FEATURES, "memories", "residual", "directions", "whole")
TASK = text("task", "the concept; of several tasks, also `/` and the name of the file or the rule")
SIZE = count("size", "number k of features of the regression")
AUC = share("auc", "area under the curve (AUC) on the test half")
SHUFFLED = share("shuffled", "95 % quantile of the AUC of the best one of as many, with shuffled labels")
P = share("p", "share of shuffles whose best one has as large an AUC; the labels as they are count as one")
SCORES = (
    AUC,
    share("low", "lower end of its interval (95 %)"),
    share("high", "upper end of its interval (95 %)"),
    number("error", "standard error of the AUC, from documents that are drawn again"),
    share("f1", "mean of both labels' F1 on the test half, weighted by their texts"),
    share("accuracy", "share of texts of the test half whose label is predicted"),
)
OF_TASK = (
    text("concept", "the name of the concept in the settings"),
    TASK,
    text("positive", "the positive label"),
    count("train", "texts of the train half"),
    count("test", "texts of the test half"),
    count("positives", "texts with the positive label"),
    count("documents", "documents, which are never split over halves"),
    number("tokens", "mean length of what is read", "token"),
    share("length_auc", "AUC of the length alone"),
    share(
        "examples",
        "of a rule: mean over memories of the share of trigger examples whose last token has the label; else empty",
    ),
    text("left_out", "what is not used, and why; of a task without texts, why there is none"),
)
BY_TASK = table("concepts/by_task/{concept}.parquet", "A task: its texts.", *OF_TASK)
BY_LAYER = table(
    "concepts/by_layer/{concept}.parquet",
    "A task, a layer, a kind of features and a number k: the logistic regression on the first k of the ranking.",
    TASK,
    LAYER,
    FEATURES,
    SIZE,
    *SCORES,
    share("validation", "AUC on the last fifth of the train half, of a regression on the rest of it"),
    flag("chosen", "whether this layer has the largest `validation` of the kind and k"),
)
SHOWN = 10  # first memories of a layer's ranking that are stored, whether they separate the labels or not
OF_CHOICE = "`ranked`: the first one of the ranking on the train half; `best`: the largest AUC on the test half, of all"
BEST = table(
    "concepts/best/{concept}.parquet",
    "A task, a kind of features and a layer: the best single feature, beside the best one with shuffled labels.",
    TASK,
    FEATURES,
    word("choice", OF_CHOICE, "ranked", "best"),
    layer("the layer, from 0; -1 for the best one of all layers"),
    count("feature", "number of the memory, coordinate or direction in its layer"),
    count("in_layer", "the layer in which it is"),
    count("tries", "number of features that it is the best one of"),
    AUC,
    SHUFFLED,
    P,
)
MEMORIES = table(
    "concepts/memories/{concept}.parquet",
    "A task, a layer and a memory that is among the first ten of the ranking, or that separates the labels alone.",
    TASK,
    LAYER,
    MEMORY,
    count("rank", "place in the ranking on the train half, from 0"),
    number("difference", "difference of both labels' means, over the mean size where the memory is not next to 0"),
    share("auc", "AUC on the test half of the memory alone; below 0.5 if it is larger without the label"),
    share("examples", "of a rule: share of its trigger examples whose last token has the label; else empty"),
    flag(
        "alone",
        "whether it, or 1 minus it, is above what the layer's best memory has by chance: `shuffled` of `concept_nulls`",
    ),
)
TASKS = table(
    "concepts/concept_tasks.csv",
    "A task: its texts, and what separates its labels.",
    *OF_TASK,
    share("one", "AUC of the first k memories with the smallest k, in the layer that is chosen on the train half"),
    share("many", "the same with the largest k"),
    share("whole", "the same of all coordinates of the residual"),
    number("best_layer", "layer of the best memory: of the first ones of all layers' rankings; empty without texts"),
    number("best_memory", "this memory"),
    share("auc", "AUC of the best memory alone on the test half"),
    SHUFFLED,
    P,
    share("q", "Benjamini-Hochberg q-value over tasks"),
)
OF_CURVES = "A kind of features and a number k: means over tasks, each in the layer that is chosen on the train half."
CURVES = table("concepts/concept_curves.csv", OF_CURVES, FEATURES, SIZE, count("tasks", "number of tasks"), *SCORES)
LAYERS = table("concepts/concept_layers.csv", BY_LAYER.about, *BY_LAYER.columns)
Q = share("q", "Benjamini-Hochberg q-value over tasks and layers; of the best one of all layers, over tasks")
NULLS = table("concepts/concept_nulls.csv", BEST.about, *BEST.columns, Q)
OF_MEMORIES = table(
    "concepts/concept_memories.csv",
    "A task, a layer and one of the first ten memories of the ranking.",
    *MEMORIES.columns,
)
MIXTURE = table(
    "concepts/concept_mixture.csv",
    "A layer: how many tasks its memories separate alone.",
    LAYER,
    count("memories", "number of memories"),
    share("any", "share of memories that separate one task or more"),
    share("several", "share of memories that separate two or more"),
    number("tasks", "mean number of tasks of those that separate any; empty without any"),
    share(
        "examples",
        "mean share of trigger examples with the label of the rule that a memory separates best, with an AUC above 0.5; empty without any",
    ),
)
