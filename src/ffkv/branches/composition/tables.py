"""The tables of the branch `composition`."""

from ffkv.base.files.columns import BOX, LAYER, WILSON, count, flag, layer, number, share, table, word

READINGS = {"active": "agreeing", "all": "agreeing_all"}  # of "no memory agrees": the column that counts agreement
STREAM = "-1 if they add up to the residual stream"

BY_PREFIX = table(
    "composition/by_prefix/{group}.parquet",
    "A layer and a sampled prefix: how its memories act together.",
    LAYER,
    count("prefix", "number of the sampled prefix", "int32"),
    count("active", "memories with m > 0", "int32"),
    share("share", "active memories / all memories"),
    count("agreeing", f"active memories whose value predicts what the layer predicts; {STREAM}", "int32", -1),
    count("agreeing_all", f"memories, active or not, whose value predicts it; {STREAM}", "int32", -1),
    count("effective", "smallest number of memories that reach `composition.mass` of the summed size", "int32"),
    number("participation", "participation ratio of the sizes", "1", lowest=0),
    flag("target_is_stop_word", "whether the next token is a stop word"),
    count("words", "words of the prefix", "int32"),
)
FIGURE_7_ACTIVE = table(
    "composition/figure_7_active_memories.csv",
    "A layer: the share of memories that are active, over prefixes.",
    LAYER,
    count("prefixes", "sampled prefixes"),
    *BOX,
)
FIGURE_7_EFFECTIVE = table(
    "composition/figure_7_effective_number.csv",
    "A layer: how many memories make its output, over prefixes.",
    LAYER,
    count("memories", "memories of the layer"),
    number("effective_q1", "first quartile of the effective number", lowest=0),
    number("effective_median", "median", lowest=0),
    number("effective_q3", "third quartile", lowest=0),
    number("participation_median", "median of the participation ratio", lowest=0),
)
FIGURE_8_NO_AGREEMENT = table(
    "composition/figure_8_no_agreement.csv",
    "A layer: on how many prefixes no memory predicts what the layer predicts.",
    LAYER,
    word("reading", "which memories count: the active ones, or all", *READINGS),
    count("prefixes", "sampled prefixes"),
    count("no_agreement", "prefixes without an agreeing memory"),
    share("share", "no_agreement / prefixes"),
    *WILSON,
)
FIGURE_8_CASES = table(
    "composition/figure_8_agreement_cases.csv",
    "A layer: prefixes on which a memory predicts what the layer predicts.",
    layer("the layer, from 0; -1: all layers"),
    count("cases", "such prefixes"),
    count("stop_word", "those whose next token is a stop word"),
    share("stop_word_share", "stop_word / cases"),
    count("short", "those with fewer words than `composition.short_prefix`"),
    share("short_share", "short / cases"),
    share("base_stop_word_share", "share of all prefixes whose next token is a stop word"),
    share("base_short_share", "share of all prefixes that are short"),
)
SUMMARIES = (FIGURE_7_ACTIVE, FIGURE_7_EFFECTIVE, FIGURE_8_CASES, FIGURE_8_NO_AGREEMENT)
