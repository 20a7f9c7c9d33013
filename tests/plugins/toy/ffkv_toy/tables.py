"""The tables of the branch `lengths`."""

from ffkv.base.files.columns import LAYER, count, number, table

BY_LAYER = table(
    "lengths/value_lengths.csv",
    "A layer: the length of its values.",
    LAYER,
    count("memories", "memories of the layer"),
    number("length", "quantile of the lengths of their values", lowest=0),
)
