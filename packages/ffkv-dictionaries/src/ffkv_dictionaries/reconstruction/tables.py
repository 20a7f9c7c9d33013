"""The tables of the branch `reconstruction`."""

from ffkv.base.files.columns import LAYER, count, number, share, table

LAYERS = table(
    "reconstruction/reconstruction.csv",
    "A layer that is read through a dictionary: how much of its output the dictionary makes again. Of a dictionary of the residual "
    "stream, the output is that of the block.",
    LAYER,
    count("units", "units of the dictionary"),
    count("tokens", "number of tokens that were read"),
    number(
        "unexplained",
        "sum of the squares of what is left of the output, over its variance summed over dimensions",
        lowest=0,
    ),
    number("active", "mean number of units per token whose coefficient is not 0", lowest=0),
    count("silent", "units whose coefficient is 0 at all these tokens"),
    number("loss", "mean loss of the model, in nats per token", lowest=0),
    number("loss_dictionary", "the same if the layer writes what the dictionary makes, without what is left", lowest=0),
    number("loss_without", "the same if the layer writes nothing", lowest=0),
    number(
        "recovered",
        "(loss_without - loss_dictionary) / (loss_without - loss); 1 if the loss stays as it is; empty if it is no larger without the output",
    ),
    count("prefixes", "number of tokens at which predictions were read"),
    share(
        "ffn_dictionary",
        "share of them at which what the dictionary makes predicts the token that the layer predicts; NaN of the residual stream",
    ),
    share("ffn_error", "share of them at which what is left predicts that token; NaN of the residual stream"),
    share("output_error", "share of them at which what is left predicts the token that the block output predicts"),
)
