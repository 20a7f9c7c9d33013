"""The tables that the steps of a behaviour write, but for the last step (`summary_tables`)."""

from typing import Any

from ffkv.base.files.columns import (
    LAYER,
    MEMORY,
    REACH,
    Column,
    bounds,
    count,
    flag,
    layer,
    number,
    share,
    table,
    text,
    token_id,
    word,
)
from ffkv.branches.behaviours import words

OF = "behaviours/{behaviour}"
BEHAVIOUR = text("behaviour", "name of the behaviour")
PROMPT = count("prompt", "number of the prompt in its file, from 0")
PART = word("part", "which half of the prompts it is in", words.CHOOSE, words.ESTIMATE)
LOGITS = "logit"
CHOICE = word(
    "choice",
    "`screen`: the memories with the largest screen; `size`: those whose patch is the longest change; `random`; `all` memories; and"
    " all memories of whole `experts`: those with the largest screen, `random_experts`, or `all_experts`",
    *words.CHOICES,
)
RANKED = word(
    "choice",
    "what ranks the memories: `screen`; `size`: the length of the change by which they are patched; `shuffled`: random order",
    *words.RANKED,
)
SIZE = count("size", "n memories or experts, of random sets the n of the set that they are compared with")
OF_SET = (
    CHOICE,
    count("draw", "number of the random set, from 0", "int32"),
    SIZE,
    count("memories", "memories in the set"),
)
RANKING = word("ranking", "what ranks the memories; of whole `experts` their summed screen", *words.RANKINGS)
WHICH_PROMPTS = word("compared", "which prompts give the two sets", *words.COMPARED)
GROUPED_BY = word(
    "grouped_by",
    "what makes groups of prompts: `group`: the field of the file; `words`: those in which the two prompts of a pair differ; `prompt`: each"
    " prompt is one",
    *words.GROUPED,
    since="fourth",
)
OVER_GROUPS = "over groups of prompts (95 %)"
OF_FIVE = f"{OVER_GROUPS}; empty with fewer than five"


def estimated(
    name: str, about: str, unit: str = "1", over: str = OVER_GROUPS, plain: bool = False, **others: Any
) -> tuple[Column, Column, Column]:
    """Returns a column of numbers, and those of its interval. `over`: what that is of. `plain`: these are `low` and `high`."""
    ends = bounds(f"its interval {over}", "" if plain else name, unit=unit)
    return number(name, about, unit, **others), *ends


def effect(about: str) -> tuple[Column, Column, Column]:
    """Returns the columns of an effect and its interval."""
    return estimated("effect", about, LOGITS, OF_FIVE, plain=True)


COEFFICIENT = number(
    "coefficient", "mean over all prompts that are used: m on clean prompts minus m on patch prompts", "1"
)
CONTRAST = (
    number("contrast", "mean over the first half: contribution on clean prompts minus that on patch prompts", "1"),
    share(
        "p_value",
        "share of assignments of signs to groups of prompts with a contrast as large; without pairs, of exchanges with validation prefixes",
    ),
    share("q_value", "p-value, adjusted for all memories of the layer"),
    *estimated("estimate", "contrast on the second half", over=OF_FIVE),
    COEFFICIENT,
)
SCREENS = (
    number("screen", "mean screen of the first half", LOGITS),
    share(
        "screen_p",
        "share of assignments of signs to groups of prompts with a mean screen as large; where memories are patched to a mean or to 0, of"
        " exchanges with validation prefixes",
    ),
    share("screen_q", "`screen_p`, adjusted for all memories of the layer"),
    number("screen_estimate", "mean screen of the second half", LOGITS),
    number(
        "screen_measured",
        "mean screen of those of its prompts on which exact effects are measured",
        LOGITS,
        since="fourth",
    ),
    number(
        "frozen_screen",
        "`screen` with norms and attention held; empty if the model cannot hold them, or `frozen` is false",
        LOGITS,
    ),
    number("frozen_estimate", "`screen_estimate` with norms and attention held", LOGITS),
    number("frozen_measured", "`screen_measured` with norms and attention held", LOGITS, since="fourth"),
    number("size", "mean length of the change by which the memory is patched, first half", "1", lowest=0),
    flag("by_contrast", "whether it is among the memories with the largest contrast"),
    flag("by_screen", "whether it is among the memories with the largest screen"),
)

PROMPTS = table(
    f"{OF}/prompts.parquet",
    "A prompt of the file. Behind them, where a difference from a mean or from 0 is tested, as many sampled validation prefixes.",
    BEHAVIOUR,
    PROMPT,
    text("line", "where it is in the file, or in the validation split"),
    text("label", "its label"),
    text(
        "group",
        "its group: prompts of one group are no independent draws; empty where it cannot be used, unless its file says it",
        since="fourth",
    ),
    GROUPED_BY,
    flag("positive", "whether it is of the first of two lists; true in other files; false of a prefix"),
    word(
        "part",
        "which half of the prompts it is in; `reference`: a prefix; empty if it is not used",
        words.CHOOSE,
        words.ESTIMATE,
        words.REFERENCE,
        "",
    ),
    number(
        "order",
        "its place among the prompts of its half, over groups and labels in turn; -1 if it is not used",
        dtype="int64",
        lowest=-1,
        since="fourth",
    ),
    word("unused", "why it is not used; empty if it is", *words.REASONS, ""),
    text("text", "the prompt as the model reads it"),
    Column("clean", "object", "ids of its tokens, and of those with which both answers begin", "token"),
    Column("patch", "object", "ids of the tokens of the other prompt of the pair; none without one", "token"),
    token_id("answer", "the first token of the answer"),
    token_id("wrong", "that of the wrong answer"),
    Column("answer_rest", "object", "ids of the further tokens of the answer", "token", since="fourth"),
    Column("wrong_rest", "object", "those of the wrong answer", "token", since="fourth"),
    count("tokens", "tokens at its end at which memories are patched"),
)
ANSWERS = table(
    f"{OF}/answers.parquet",
    "A prompt that is used.",
    BEHAVIOUR,
    PROMPT,
    text("label", "its label"),
    PART,
    number(
        "difference",
        "logit of the answer minus that of the wrong answer; of several tokens, their summed log-probabilities; empty in lists",
        LOGITS,
    ),
    number("patch_difference", "the same on the other prompt of the pair; empty without one", LOGITS),
    number("floor", "`patch_difference`; empty where memories are patched to something else", LOGITS, since="fourth"),
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
    share(
        "smallest_p",
        "smallest p-value that the contrast of any memory can have with so many groups of prompts",
        since="fourth",
    ),
)
STABILITY = table(
    f"{OF}/stability.parquet",
    "Two sets of memories with the largest values, on other prompts.",
    BEHAVIOUR,
    RANKING,
    WHICH_PROMPTS,
    text("first", "the first label; empty if it is not about labels"),
    text("second", "the second label"),
    count("memories", "memories, or experts, of each set"),
    share("jaccard", "those in both sets / those in any"),
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
    word(
        "source",
        "what is changed: the memory itself, or a control of equal length; `outside`: the memory itself, which is no candidate",
        *words.SOURCES,
    ),
    count("control", "number of the control, from 0", "int32"),
    number("effect", "by how much the logit difference falls", LOGITS, "float32"),
)
SETS = table(
    f"{OF}/sets/{{shard}}.parquet",
    "A prompt and a set of memories.",
    BEHAVIOUR,
    PROMPT,
    *OF_SET,
    number("patched", "logit difference when the set is patched", LOGITS, "float32"),
    number("kept", "logit difference when all memories but the set are patched", LOGITS, "float32"),
)
PARTS = table(
    f"{OF}/parts/{{shard}}.parquet",
    "A prompt and the first memories of a ranking.",
    BEHAVIOUR,
    PROMPT,
    RANKED,
    share("share", "share of all memories"),
    count("memories", "memories in the part"),
    number("kept", "logit difference when all memories but the part are patched", LOGITS, "float32"),
    since="fourth",
)
SIDE_EFFECTS = table(
    f"{OF}/side_effects/{{shard}}.parquet",
    "A sampled validation prefix and a set of memories that is patched there.",
    BEHAVIOUR,
    count("prefix", "number of the sampled prefix"),
    *OF_SET,
    number("divergence", "KL divergence of the new prediction from the old one", "nat", "float32", lowest=0),
    number("loss", "by how much the loss of the next token rises", "nat", "float32"),
)
OF_WRITERS = (
    layer("the layer, from 0; -1: all layers together"),
    word(
        "writer",
        "`memories`: y; `attention`: what blocks add beside it; `embedding`; `error`: what a dictionary leaves of y, which then is no part of"
        " `memories`; `everything`",
        *words.WRITERS,
    ),
    REACH,
    word("positions", "at the `last` token, or at `all` tokens of pairs of equal length", "last", "all"),
)
WRITERS = table(
    f"{OF}/writers/{{shard}}.parquet",
    "A prompt of a pair, what writes, a reach and where. Without rows if `baseline` is not `patch`, or writes cannot be told apart.",
    BEHAVIOUR,
    PROMPT,
    *OF_WRITERS,
    number("effect", "by how much the logit difference falls when it writes what it does on the other prompt", LOGITS),
    since="fourth",
)

OF_GRAPH_SETS = (
    BEHAVIOUR,
    word(
        "choice",
        "`graph`; `random`: with as many memories per layer; `resampled`: the graph of groups that are drawn again; `none`, `all`",
        *words.BESIDE_GRAPH,
    ),
    count("draw", "number of the set of its choice, from 0"),
    count("memories", "memories in the set"),
    share("jaccard", "memories in the set and in the graph / memories in any of the two"),
    number("chosen", "share that it keeps on the prompts that chose it; empty if none did"),
    flag("reached", "whether that is the setting `graph_share`"),
    count("prompts", "prompts of the second half"),
    number("difference", "mean logit difference on them when all memories but the set are patched", LOGITS),
    *estimated(
        "kept",
        "the same above that when all memories are patched, as a share of the logit difference above that; empty if the interval of the"
        " latter has the 0",
        over=OF_FIVE,
        plain=True,
    ),
    number("patched", "mean logit difference when the set is patched", LOGITS),
)
OF_GRAPH_NODES = (
    BEHAVIOUR,
    LAYER,
    MEMORY,
    *effect("mean over the second half: by how much the logit difference falls when it alone is patched"),
    *estimated("loss", "by how much less the graph keeps without it"),
    share("stability", "share of the graphs of groups that are drawn again that have it"),
    number("passed_on", "sum of the effects of its edges", LOGITS),
    number(
        "coefficient",
        "mean over the second half: by how much m is higher than what it is patched to, summed over tokens",
        since="fourth",
    ),
)
EXPERTS = table(
    f"{OF}/experts.parquet",
    "An expert, how it leaves, and a reach (docs/behaviours.md#experts); without rows if the model has no experts.",
    BEHAVIOUR,
    LAYER,
    count("expert", "number of the expert in its layer, from 0"),
    share("clean", "share of the patched tokens of prompts that are sent to it; of two lists, of the first one"),
    share("patch", "the same of the other prompts; without pairs, of the other list or of sampled prefixes"),
    number(
        "log_ratio",
        "logarithm to base 2 of `clean` over `patch`; half a prompt is added to those that are sent there, one to all",
    ),
    share("p_value", "share of assignments of signs to groups of prompts with a difference of the shares as large"),
    share("q_value", "p-value, adjusted for all experts of the layer"),
    word("change", "how it leaves (docs/behaviours.md#experts)", *words.CHANGES),
    REACH,
    count("prompts", "prompts on which effects are measured"),
    count("active", "those of them with a patched token that is sent to it"),
    number("length", "mean length of the change, summed over tokens; empty like `effect`", lowest=0),
    *effect("mean fall of the logit difference; empty if no token is sent to it, or the change is not known"),
    number("beside", "mean size of a prompt's fall when others of its experts leave; empty without any", LOGITS),
    *estimated("difference", "size of the effect minus that of `beside`", LOGITS, OF_FIVE),
    share("effect_p", "share of assignments of signs with a difference as large; 1 if it is not above 0"),
    share("effect_q", "the same, adjusted for all experts of all layers"),
    since="fourth",
)
SOURCE = count("source", "row of the memory in the behaviour's table of nodes, from 0")
OF_GRAPH_EDGES = (
    BEHAVIOUR,
    SOURCE,
    number("target", "row of the later memory; -1: the answer", dtype="int64", lowest=-1),
    number(
        "change", "mean over the second half: by how much m of the target falls; of the answer, the logit difference"
    ),
    number("share", "the change of m as a share of the target's own; empty of the answer"),
    *effect("that share times the effect of the target; of the answer, the change"),
    flag("shown", "whether it is among the fewest edges that have the share `graph_share` of all"),
    share("stability", "share of draws of groups of prompts in which it is"),
)
OF_GRAPH_PATHS = (
    BEHAVIOUR,
    SOURCE,
    count("target", "row of the later memory"),
    word("factor", "what of the target reads", "key", "gate", "router"),
    number("held", "mean direct edge at the last token, norm held"),
    number("direct", "mean direct edge"),
    number(
        "total", "mean change of the pre-activation when the model runs again without the contribution of the source"
    ),
    number("total_m", "the same of m"),
    number("attention", "what of `total` passes through attention, see docs/graphs.md", since="fourth"),
)
IN_GRAPH = "A behaviour's graph (docs/graphs.md); without rows if none was asked for"
GRAPH_SETS = table(f"{OF}/graph_sets.parquet", f"{IN_GRAPH}: a set of memories.", *OF_GRAPH_SETS)
GRAPH_NODES = table(f"{OF}/graph_nodes.parquet", f"{IN_GRAPH}: a memory.", *OF_GRAPH_NODES)
GRAPH_EDGES = table(f"{OF}/graph_edges.parquet", f"{IN_GRAPH}: an edge.", *OF_GRAPH_EDGES)
GRAPH_PATHS = table(f"{OF}/graph_paths.parquet", f"{IN_GRAPH}: two memories and a factor.", *OF_GRAPH_PATHS)
GRAPHS = (GRAPH_SETS, GRAPH_NODES, GRAPH_EDGES, GRAPH_PATHS)
CHOSEN, MEASURED = (MEMORIES, ANSWERS, STABILITY), (EFFECTS, SETS, PARTS, SIDE_EFFECTS, WRITERS)  # by these steps
