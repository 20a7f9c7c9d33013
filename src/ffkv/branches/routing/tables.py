"""The tables of the branch `routing`."""

from ffkv.base.files.columns import LAYER, count, number, share, table, text

EXPERT = count("expert", "the expert in its layer, from 0; shared experts do not count")
LOAD = table(
    "routing/routing_load.csv",
    "A layer with experts: how evenly tokens are sent to them.",
    LAYER,
    count("experts", "number of experts"),
    count("tokens", "number of tokens that were read"),
    number("per_token", "mean number of experts that a token is sent to"),
    share("even", "effective number of experts, over their number: 1 if each gets as many tokens"),
    share("largest", "share of tokens that are sent to the expert with the most"),
    count("never", "number of experts that no token was sent to"),
)
EXPERTS = table(
    "routing/routing_experts.csv",
    "An expert: how many tokens are sent to it.",
    LAYER,
    EXPERT,
    count("tokens", "number of tokens that are sent to it"),
    share("share", "the same over all tokens that were read"),
)
PATTERNS = table(
    "routing/routing_patterns.csv",
    "An expert and a pattern: how many of its tokens are sent to the expert, beside other tokens.",
    LAYER,
    EXPERT,
    text("pattern", "the name of the rule"),
    count("tokens", "number of tokens with the pattern"),
    share("share", "share of them that are sent to the expert"),
    share("elsewhere", "share of tokens without the pattern that are sent to it"),
    number(
        "log_ratio",
        "logarithm to base 2 of `share` over `elsewhere`; half a token is added to those that are sent there, one to all",
    ),
    share("p", "share of shifts of the labels along the text whose number of such tokens is as far from its mean"),
    share("q", "Benjamini-Hochberg q-value over all rows"),
)
