"""The tables of the graph of a behaviour (docs/graphs.md)."""

from ffkv.base.files.columns import LAYER, MEMORY, count, flag, number, share, table, text, word
from ffkv.branches.behaviours.tables import BEHAVIOUR, INTERVAL, LOGITS, OF
from ffkv.branches.behaviours.words import ALL, GRAPH, NONE, RANDOM, RESAMPLED

OF_GRAPH_SETS = (
    BEHAVIOUR,
    word(
        "choice",
        "`graph`; `random`: with as many memories per layer; `resampled`: the graph of prompts that are drawn again; `none`, `all`",
        GRAPH,
        RANDOM,
        RESAMPLED,
        NONE,
        ALL,
    ),
    count("draw", "number of the set of its choice, from 0"),
    count("memories", "memories in the set"),
    share("jaccard", "memories in the set and in the graph / memories in any of the two"),
    number("chosen", "share that it keeps on the prompts that chose it; empty if none did"),
    flag("reached", "whether that is the setting `graph_share`"),
    count("prompts", "prompts of the second half"),
    number("difference", "mean logit difference on them when all memories but the set are patched", LOGITS),
    number("kept", "the same above that when all memories are patched, as a share of the logit difference above that"),
    number("low", "lower end of its interval over prompts (95 %)"),
    number("high", "upper end"),
    number("patched", "mean logit difference when the set is patched", LOGITS),
)
OF_GRAPH_NODES = (
    BEHAVIOUR,
    LAYER,
    MEMORY,
    number(
        "effect", "mean over the second half: by how much the logit difference falls when it alone is patched", LOGITS
    ),
    *INTERVAL,
    number("loss", "by how much less the graph keeps without it"),
    number("loss_low", "lower end of its interval over prompts (95 %)"),
    number("loss_high", "upper end"),
    share("stability", "share of the graphs of prompts that are drawn again that have it"),
    number("passed_on", "sum of the effects of its edges", LOGITS),
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
    number("effect", "that share times the effect of the target; of the answer, the change", LOGITS),
    *INTERVAL,
    flag("shown", "whether it is among the fewest edges that have the share `graph_share` of all"),
    share("stability", "share of draws of prompts in which it is"),
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
)
IN_GRAPH = "A behaviour's graph (docs/graphs.md); without rows if none was asked for"
GRAPH_SETS = table(f"{OF}/graph_sets.parquet", f"{IN_GRAPH}: a set of memories.", *OF_GRAPH_SETS)
GRAPH_NODES = table(f"{OF}/graph_nodes.parquet", f"{IN_GRAPH}: a memory.", *OF_GRAPH_NODES)
GRAPH_EDGES = table(f"{OF}/graph_edges.parquet", f"{IN_GRAPH}: an edge.", *OF_GRAPH_EDGES)
GRAPH_PATHS = table(f"{OF}/graph_paths.parquet", f"{IN_GRAPH}: two memories and a factor.", *OF_GRAPH_PATHS)
GRAPHS = (GRAPH_SETS, GRAPH_NODES, GRAPH_EDGES, GRAPH_PATHS)
# Those of all behaviours, below each other.
ALL_GRAPHS = tuple(
    table(f"behaviours/behaviour_{each.name}.csv", f"{each.about} Of all behaviours.", *each.columns, *more)
    for each, more in zip(GRAPHS, ((), (text("token", "the top token of the value"),), (), ()), strict=True)
)
