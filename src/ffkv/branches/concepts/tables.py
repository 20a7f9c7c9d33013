"""The tables of the branch `concepts`."""

from ffkv.base.files.columns import LAYER, MEMORY, count, flag, layer, number, share, table, text, word

FEATURES = ("memories", "residual", "directions", "whole")
FEATURE = word(
    "features",
    "`memories`; `residual`: coordinates of the residual that the layer reads; `directions`: as many random directions of it as the layer"
    " has memories; `whole`: all its coordinates at once",
    *FEATURES,
)
TASK = text("task", "the concept; of several tasks, `/` and the name of the file or the rule behind it")
SIZE = count("size", "number k of features of the regression")
AUC = share("auc", "area under the curve (AUC) on the test half")
INTERVAL = (share("low", "lower end of its interval (95 %)"), share("high", "upper end of its interval (95 %)"))
SCORES = (
    AUC,
    *INTERVAL,
    number("error", "standard error of the AUC, from documents that are drawn again"),
    share("f1", "mean of the F1 of both labels on the test half, weighted by their numbers of texts"),
    share("accuracy", "share of texts of the test half whose label is predicted"),
)
CHOICES = ("ranked", "best")
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
    text("left_out", "what is not used, and why; of a task without texts, why there is none"),
)
BY_TASK = table("concepts/by_task/{concept}.parquet", "A task: its texts.", *OF_TASK)
BY_LAYER = table(
    "concepts/by_layer/{concept}.parquet",
    "A task, a layer, a kind of features and a number k: the logistic regression on the first k of the ranking.",
    TASK,
    LAYER,
    FEATURE,
    SIZE,
    *SCORES,
    share("validation", "AUC on the last fifth of the train half, without which the regression was fitted"),
    flag("chosen", "whether this layer has the largest `validation` of the kind and k"),
)
BEST = table(
    "concepts/best/{concept}.parquet",
    "A task, a kind of features and a layer: the best single feature, beside the best one with shuffled labels.",
    TASK,
    FEATURE,
    word(
        "choice",
        "`ranked`: the first one of the ranking on the train half; `best`: the largest AUC on the test half, of all",
        *CHOICES,
    ),
    layer("the layer, from 0; -1 for the best one of all layers"),
    count("feature", "number of the memory, coordinate or direction in its layer"),
    count("in_layer", "the layer in which it is"),
    count("tries", "number of features that it is the best one of"),
    AUC,
    share("shuffled", "95 % quantile of the AUC of the best one of as many, with shuffled labels"),
    share("p", "share of shuffles whose best one has as large an AUC; the labels as they are count as one"),
)
MEMORIES = table(
    "concepts/memories/{concept}.parquet",
    "A task, a layer and a memory that is among the first of the ranking.",
    TASK,
    LAYER,
    MEMORY,
    count("rank", "place in the ranking on the train half, from 0"),
    number("difference", "difference of the means of both labels, over the mean size where the memory is not 0"),
    share("auc", "AUC on the test half of the memory alone; below 0.5 if it is larger without the label"),
)
TASKS = table(
    "concepts/concept_tasks.csv",
    "A task: its texts, and what separates its labels.",
    *OF_TASK,
    share(
        "one",
        "AUC of the first memory of the ranking, in the layer with the largest AUC on the last fifth of the train half",
    ),
    share("many", "the same of the most memories that a regression has"),
    share("whole", "the same of all coordinates of the residual"),
    number("layer", "the layer of the memory that is best of all layers; empty without texts"),
    number("memory", "this memory, the first one of its layer's ranking"),
    share("auc", "its AUC on the test half"),
    share("shuffled", "95 % quantile of the AUC of the best one of all layers, with shuffled labels"),
    share("p", "p-value of the best one of all layers, corrected for the choice among them"),
    share("q", "Benjamini-Hochberg q-value over tasks"),
)
CURVES = table(
    "concepts/concept_curves.csv",
    "A kind of features and a number k: means over tasks, each in the layer that is chosen on the train half.",
    FEATURE,
    SIZE,
    count("tasks", "number of tasks"),
    *SCORES,
)
LAYERS = table("concepts/concept_layers.csv", BY_LAYER.about, *BY_LAYER.columns)
NULLS = table(
    "concepts/concept_nulls.csv",
    BEST.about,
    *BEST.columns,
    share("q", "Benjamini-Hochberg q-value over tasks and layers; of the best one of all layers, over tasks"),
)
OF_MEMORIES = table("concepts/concept_memories.csv", MEMORIES.about, *MEMORIES.columns)
