"""The tables of the branch `behaviours`, and the words in them."""

from ffkv.base.files.columns import (
    LAYER,
    MEMORY,
    REACH,
    WILSON,
    Column,
    count,
    flag,
    number,
    share,
    table,
    text,
    token_id,
    word,
)
from ffkv.branches.behaviours.words import (
    BY_CONTRAST,
    BY_SCREEN,
    CHOOSE,
    COMPARED,
    ESTIMATE,
    RANDOM,
    REASONS,
    SOURCES,
)

OF = "behaviours/{behaviour}"
BEHAVIOUR = text("behaviour", "name of the behaviour")
PROMPT = count("prompt", "number of the prompt in its file, from 0")
PART = word("part", "which half of the prompts it is in; empty if it is not used", CHOOSE, ESTIMATE, "")
LOGITS = "logit"
CHOICE = word(
    "choice", "`screen`: the memories with the largest screen; `random`; `all` memories", BY_SCREEN, RANDOM, "all"
)
RANKING = word("ranking", "what ranks the memories", BY_CONTRAST, BY_SCREEN)
WHICH_PROMPTS = word("compared", "which prompts give the two sets", *COMPARED)
INTERVAL = (
    number("low", "lower end of its interval over prompts (95 %)", LOGITS),
    number("high", "upper end", LOGITS),
)
CONTRAST = (
    number("contrast", "mean over the first half: contribution on clean prompts minus that on patch prompts", "1"),
    share("p_value", "share of assignments of signs to prompts with a contrast as large"),
    share("q_value", "p-value, adjusted for all memories of the layer"),
    number("estimate", "contrast on the second half", "1"),
    number("estimate_low", "lower end of its interval over prompts (95 %)", "1"),
    number("estimate_high", "upper end", "1"),
    number("coefficient", "mean over all prompts that are used: m on clean prompts minus m on patch prompts", "1"),
)
SCREENS = (
    number("screen", "mean screen of the first half", LOGITS),
    share("screen_p", "share of assignments of signs to prompts with a mean screen as large"),
    share("screen_q", "`screen_p`, adjusted for all memories of the layer"),
    number("screen_estimate", "mean screen of the second half", LOGITS),
    number("frozen_screen", "`screen` with norms and attention held; empty if the model cannot hold them", LOGITS),
    number("frozen_estimate", "`screen_estimate` with norms and attention held", LOGITS),
    number("size", "mean length of the change by which the memory is patched, first half", "1", lowest=0),
    flag("by_contrast", "whether it is among the memories with the largest contrast"),
    flag("by_screen", "whether it is among the memories with the largest screen"),
)

PROMPTS = table(
    f"{OF}/prompts.parquet",
    "A prompt of the file.",
    BEHAVIOUR,
    PROMPT,
    text("line", "where it is in the file"),
    text("label", "its label"),
    flag("positive", "whether it is of the first of two lists; true in other files"),
    PART,
    word("unused", "why it is not used; empty if it is", *REASONS, ""),
    text("text", "the prompt as the model reads it"),
    Column("clean", "object", "ids of its tokens", "token"),
    Column("patch", "object", "ids of the tokens of the other prompt of the pair; none without one", "token"),
    token_id("answer", "the answer"),
    token_id("wrong", "the wrong answer"),
    count("tokens", "tokens at its end at which memories are patched"),
)
ANSWERS = table(
    f"{OF}/answers.parquet",
    "A prompt that is used.",
    BEHAVIOUR,
    PROMPT,
    text("label", "its label"),
    PART,
    number("difference", "logit of the answer minus that of the wrong answer; empty in lists", LOGITS),
    number("patch_difference", "the same on the other prompt of the pair; empty without one", LOGITS),
    share("probability", "probability of the answer; empty in lists"),
)
MEMORIES = table(
    f"{OF}/memories.parquet",
    "A memory.",
    BEHAVIOUR,
    LAYER,
    MEMORY,
    *CONTRAST,
    *SCREENS,
)
STABILITY = table(
    f"{OF}/stability.parquet",
    "Two sets of memories with the largest values, on other prompts.",
    BEHAVIOUR,
    RANKING,
    WHICH_PROMPTS,
    text("first", "the first label; empty if it is not about labels"),
    text("second", "the second label"),
    count("memories", "memories of each set"),
    share("jaccard", "memories in both sets / memories in any"),
    share("overlap", "rank-biased overlap, persistence 0.9"),
)
EFFECTS = table(
    f"{OF}/effects/{{shard}}.parquet",
    "A prompt, a candidate, a reach, and what is changed.",
    BEHAVIOUR,
    PROMPT,
    LAYER,
    MEMORY,
    REACH,
    word("source", "what is changed: the memory itself, or a control of equal length", *SOURCES),
    count("control", "number of the control, from 0", "int32"),
    number("effect", "by how much the logit difference falls", LOGITS, "float32"),
)
SETS = table(
    f"{OF}/sets/{{shard}}.parquet",
    "A prompt and a set of memories.",
    BEHAVIOUR,
    PROMPT,
    word(
        "choice", "`screen`: the memories with the largest screen; `random`; `all` memories", BY_SCREEN, RANDOM, "all"
    ),
    count("draw", "number of the random set, from 0", "int32"),
    count("size", "n, of random sets the n of the set that they are compared with"),
    count("memories", "memories in the set"),
    number("patched", "logit difference when the set is patched", LOGITS, "float32"),
    number("kept", "logit difference when all memories but the set are patched", LOGITS, "float32"),
)

SIDE_EFFECTS = table(
    f"{OF}/side_effects/{{shard}}.parquet",
    "A sampled validation prefix and a set of memories that is patched there.",
    BEHAVIOUR,
    count("prefix", "number of the sampled prefix"),
    CHOICE,
    count("draw", "number of the random set, from 0", "int32"),
    count("size", "n, of random sets the n of the set that they are compared with"),
    count("memories", "memories in the set"),
    number("divergence", "KL divergence of the new prediction from the old one", "nat", "float32", lowest=0),
    number("loss", "by how much the loss of the next token rises", "nat", "float32"),
)

SUMMARY = table(
    "behaviours/behaviours.csv",
    "A behaviour.",
    BEHAVIOUR,
    word("kind", "what its file has", "pairs", "prompts", "lists"),
    count("lines", "prompts in the file"),
    count("prompts", "prompts that are used"),
    share("accuracy", "share of them on which the answer has a higher logit than the wrong answer; empty in lists"),
    *WILSON,
    flag("explained", "whether the accuracy is at least the setting `minimum_accuracy`, so that effects are measured"),
    number("difference", "mean logit difference", LOGITS),
    number("patch_difference", "the same on the other prompts of the pairs", LOGITS),
    share("probability", "mean probability of the answer"),
    count("significant", "memories whose contrast has a q-value up to 0.05"),
    count("screened", "memories whose screen has a q-value up to 0.05"),
    number("by_memories", "share of the behaviour that is lost when all memories are patched"),
    number("by_memories_low", "lower end of its interval (95 %)"),
    number("by_memories_high", "upper end"),
    number("pearson", "correlation of screen and exact total effect over candidates", lowest=-1, highest=1),
    number("frozen_pearson", "the same of the frozen screen", lowest=-1, highest=1),
)
UNUSED = table(
    "behaviours/behaviour_prompts.csv",
    "A behaviour and a reason why prompts are not used.",
    BEHAVIOUR,
    word("unused", "why they are not used; empty for those that are", *REASONS, ""),
    count("prompts", "prompts"),
)
BY_LAYER = table(
    "behaviours/behaviour_layers.csv",
    "A behaviour and a layer.",
    BEHAVIOUR,
    LAYER,
    count("memories", "memories of the layer"),
    count("significant", "memories whose contrast has a q-value up to 0.05"),
    count("screened", "memories whose screen has a q-value up to 0.05"),
    number("screen", "sum of the screen of all memories, second half", LOGITS),
    number("frozen_screen", "the same with norms and attention held", LOGITS),
)
OF_MEMORIES = table(
    "behaviours/behaviour_memories.csv",
    "A behaviour and a candidate.",
    BEHAVIOUR,
    LAYER,
    MEMORY,
    text("token", "the top token of the value"),
    *CONTRAST,
    *SCREENS,
    REACH,
    count("prompts", "prompts on which the exact effect is measured"),
    number("effect", "mean over prompts: by how much the logit difference falls when the memory is patched", LOGITS),
    *INTERVAL,
    number("random_memories", "the same for changes of equal length along values of random memories", LOGITS),
    number("random_directions", "the same in random directions", LOGITS),
    number("chance", "size up to which the effects of 95 % of the random memories are", LOGITS, lowest=0),
    share("effect_p", "share of random memories with an effect as large, one added to both counts"),
    share("effect_q", "the same, adjusted for all candidates"),
    flag("disagrees", "whether screen and exact total effect differ by more than half of the larger one"),
)
OF_SETS = table(
    "behaviours/behaviour_sets.csv",
    "A behaviour, a choice and a size of sets.",
    BEHAVIOUR,
    word(
        "choice", "`screen`: the memories with the largest screen; `random`; `all` memories", BY_SCREEN, RANDOM, "all"
    ),
    count("size", "n, of random sets the n of the set that they are compared with"),
    number("memories", "memories in the set; of random sets their mean", lowest=0),
    count("prompts", "prompts"),
    number("completeness", "share of the behaviour that is lost when the set is patched"),
    number("completeness_low", "lower end of its interval over prompts (95 %)"),
    number("completeness_high", "upper end"),
    number("faithfulness", "share of the behaviour that is left when all memories but the set are patched"),
    number("faithfulness_low", "lower end of its interval over prompts (95 %)"),
    number("faithfulness_high", "upper end"),
)
OF_SIDE_EFFECTS = table(
    "behaviours/behaviour_side_effects.csv",
    "A behaviour, a choice and a size of sets that are patched on other text.",
    BEHAVIOUR,
    CHOICE,
    count("size", "n, of random sets the n of the set that they are compared with"),
    number("memories", "memories in the set; of random sets their mean", lowest=0),
    count("prefixes", "sampled validation prefixes"),
    number("divergence", "mean KL divergence of the new prediction from the old one", "nat", lowest=0),
    number("divergence_low", "lower end of its interval over prefixes (95 %)", "nat"),
    number("divergence_high", "upper end", "nat"),
    number("loss", "mean rise of the loss of the next token", "nat"),
    number("loss_low", "lower end of its interval over prefixes (95 %)", "nat"),
    number("loss_high", "upper end", "nat"),
)
OF_STABILITY = table(
    "behaviours/behaviour_stability.csv",
    "A behaviour, a ranking, and two kinds of prompts.",
    BEHAVIOUR,
    RANKING,
    WHICH_PROMPTS,
    count("pairs", "pairs of sets"),
    count("memories", "memories of each set"),
    share("jaccard", "mean share of memories in both sets among those in any"),
    share("overlap", "mean rank-biased overlap, persistence 0.9"),
)
SUMMARIES = (SUMMARY, UNUSED, BY_LAYER, OF_MEMORIES, OF_SETS, OF_SIDE_EFFECTS, OF_STABILITY)
