"""The tables that the step `summarize` writes, for the report."""

from dataclasses import replace

from ffkv.base.files.columns import LAYER, MEMORY, REACH, count, flag, interval, number, share, table, text, word
from ffkv.branches.behaviours import tables, words
from ffkv.branches.behaviours.tables import estimated

OVER_PREFIXES = "over prefixes (95 %)"
NOT_KNOWN = "empty where it is 1 by construction, or where the interval of the behaviour has the 0"
NOT_ABLE = "empty where no p-value can be as small as 0.05, because there are too few groups of prompts"
COUNTED = (
    number("significant", f"memories whose contrast has a q-value up to 0.05; {NOT_ABLE}", lowest=0),
    number("screened", f"memories whose screen has a q-value up to 0.05; {NOT_ABLE}", lowest=0),
)
SUMMARY = table(
    "behaviours/behaviours.csv",
    "A behaviour.",
    tables.BEHAVIOUR,
    word("kind", "what its file has", "pairs", "prompts", "lists"),
    count("lines", "prompts in the file"),
    count("prompts", "prompts that are used"),
    count("several", "those of them with an answer of several tokens", since="fourth"),
    count("groups", "groups of these prompts", since="fourth"),
    tables.GROUPED_BY,
    share("accuracy", "share of them on which the answer has a higher logit than the wrong answer; empty in lists"),
    *interval("Wilson interval of as many answers as there are groups (95 %)"),
    flag("explained", "whether the accuracy is at least the setting `minimum_accuracy`, so that effects are measured"),
    number("difference", "mean logit difference", tables.LOGITS),
    number("patch_difference", "the same on the other prompts of the pairs", tables.LOGITS),
    share("probability", "mean probability of the answer"),
    share(
        "smallest_p",
        "smallest p-value that the contrast can have with so many groups of the first half",
        since="fourth",
    ),
    *COUNTED,
    *estimated(
        "by_memories", f"share of the behaviour that is lost when all memories are patched; {NOT_KNOWN}", over="(95 %)"
    ),
    number(
        "pearson",
        "correlation of screen and exact total effect over candidates, on the same prompts",
        lowest=-1,
        highest=1,
    ),
    number("frozen_pearson", "the same of the frozen screen", lowest=-1, highest=1),
)
UNUSED = table(
    "behaviours/behaviour_prompts.csv",
    "A behaviour and a reason why prompts are not used.",
    tables.BEHAVIOUR,
    word("unused", "why they are not used; empty for those that are", *words.REASONS, ""),
    count("prompts", "prompts"),
)
BY_LAYER = table(
    "behaviours/behaviour_layers.csv",
    "A behaviour and a layer.",
    tables.BEHAVIOUR,
    LAYER,
    count("memories", "memories of the layer"),
    *COUNTED,
    number("screen", "sum of the screen of all memories, second half", tables.LOGITS),
    number("frozen_screen", "the same with norms and attention held", tables.LOGITS),
)
OF_MEMORIES = table(
    "behaviours/behaviour_memories.csv",
    "A behaviour and a candidate.",
    tables.BEHAVIOUR,
    LAYER,
    MEMORY,
    text("token", "the top token of the value"),
    *tables.CONTRAST,
    *tables.SCREENS,
    REACH,
    count("prompts", "prompts on which the exact effect is measured"),
    *tables.effect("mean over prompts: by how much the logit difference falls when the memory is patched"),
    number("random_memories", "the same for changes of equal length along values of random memories", tables.LOGITS),
    number("random_directions", "the same in random directions", tables.LOGITS),
    number("chance", "size up to which the effects of 95 % of the random memories are", tables.LOGITS, lowest=0),
    share("effect_p", "share of random memories with an effect as large, one added to both counts"),
    share(
        "effect_q",
        "the same, adjusted for all candidates; empty with fewer than 19 random memories, whose p-values are above 0.05",
    ),
    flag(
        "disagrees",
        "whether screen and exact total effect, on the same prompts, differ by more than half of the larger one",
    ),
)
OF_SETS = table(
    "behaviours/behaviour_sets.csv",
    "A behaviour, a choice and a size of sets.",
    tables.BEHAVIOUR,
    tables.CHOICE,
    tables.SIZE,
    number("memories", "memories in the set; of random sets their mean", lowest=0),
    count("prompts", "prompts"),
    *estimated(
        "completeness", f"share of the behaviour that is lost when the set is patched; {NOT_KNOWN}", over=tables.OF_FIVE
    ),
    *estimated(
        "faithfulness",
        "share of the behaviour that is left when all memories but the set are patched; empty like `completeness`",
    ),
)
AREAS = table(
    "behaviours/behaviour_areas.csv",
    "A behaviour and a ranking of memories. Without rows where the interval of what all memories do has the 0.",
    tables.BEHAVIOUR,
    tables.RANKED,
    count("prompts", "prompts"),
    *estimated(
        "cpr", "area below the share that the first memories keep of what all memories do, over the share of memories"
    ),
    *estimated("cmd", "area between that share and 1", lowest=0),
    since="fourth",
)
MISSED = table(
    "behaviours/behaviour_missed.csv",
    "A behaviour and a stratum of the memories that are no candidates. Without rows if none was measured.",
    tables.BEHAVIOUR,
    count("stratum", "number of the stratum, from 0: the largest screen first"),
    count("memories", "memories in the stratum"),
    count("measured", "memories drawn from it, whose exact total effect is measured"),
    number("largest", "largest size of such an effect, as a mean over prompts", tables.LOGITS, lowest=0),
    number(
        "limit", "smallest size of the effect of a candidate with q <= 0.05; empty without one", tables.LOGITS, lowest=0
    ),
    number("above", "measured memories with an effect of that size or more", lowest=0),
    number("estimate", "memories of the stratum with such an effect, if all are as those that were drawn", lowest=0),
    number("most", "most such memories in the stratum; all strata together hold with 95 %", lowest=0),
    since="fourth",
)
OF_WRITERS = table(
    "behaviours/behaviour_writers.csv",
    "A behaviour, what writes, a reach and where, see docs/behaviours.md. Without rows if it was not measured.",
    tables.BEHAVIOUR,
    *tables.OF_WRITERS,
    count("prompts", "prompts"),
    *tables.effect(
        "mean fall of the logit difference when it writes what it does on the other prompt; direct: norm held"
    ),
    *estimated("share", "effect as a share of that of everything; empty if that may be 0", over=tables.OF_FIVE),
    since="fourth",
)
OF_SIDE_EFFECTS = table(
    "behaviours/behaviour_side_effects.csv",
    "A behaviour, a choice and a size of sets that are patched on other text.",
    tables.BEHAVIOUR,
    tables.CHOICE,
    tables.SIZE,
    number("memories", "memories in the set; of random sets their mean", lowest=0),
    count("prefixes", "sampled validation prefixes"),
    *estimated(
        "divergence", "mean KL divergence of the new prediction from the old one", "nat", OVER_PREFIXES, lowest=0
    ),
    *estimated("loss", "mean rise of the loss of the next token", "nat", OVER_PREFIXES),
)
OF_STABILITY = table(
    "behaviours/behaviour_stability.csv",
    "A behaviour, a ranking, and two kinds of prompts.",
    tables.BEHAVIOUR,
    tables.RANKING,
    tables.WHICH_PROMPTS,
    count("pairs", "pairs of sets"),
    count("memories", "memories, or experts, of each set"),
    share("jaccard", "mean share of those in both sets among those in any"),
    share("overlap", "mean rank-biased overlap, persistence 0.9"),
)
SUMMARIES = (SUMMARY, UNUSED, BY_LAYER, OF_MEMORIES, OF_SETS, AREAS, MISSED, OF_WRITERS, OF_SIDE_EFFECTS, OF_STABILITY)
ALL_EXPERTS = replace(tables.EXPERTS, path="behaviours/behaviour_experts.csv")  # of all behaviours
# Those of all behaviours, below each other.
ALL_GRAPHS = tuple(
    table(f"behaviours/behaviour_{each.name}.csv", f"{each.about} Of all behaviours.", *each.columns, *more)
    for each, more in zip(tables.GRAPHS, ((), (text("token", "the top token of the value"),), (), ()), strict=True)
)
