"""The tables of the branch `refinement`."""

from ffkv.base.files.columns import BOX, LAYER, WILSON, count, number, share, table, text, token_id, word

CASES = ("residual", "agreement", "composition", "ffn", "other")
CASE = word("case", "which prediction the block's prediction comes from (`classify`)", *CASES)

BY_PREFIX = table(
    "refinement/by_prefix/{group}.parquet",
    "A layer and a sampled prefix: the predictions of the residual, the FF output and the block output.",
    LAYER,
    count("prefix", "number of the sampled prefix", "int32"),
    token_id("top_residual", "prediction of the residual r"),
    token_id("top_ffn", "prediction of the FF output y"),
    token_id("top_output", "prediction of the block output o"),
    token_id("final", "prediction of the model"),
    share("probability", "probability that r gives to `final`", "float32"),
    CASE,
    count("tied", "how many of the three predictions share their highest logit with another token", "int8"),
)
FIGURE_9 = table(
    "refinement/figure_9_residual_agreement.csv",
    "A layer: how often its residual predicts what the model predicts.",
    LAYER,
    count("prefixes", "sampled prefixes"),
    count("matching", "prefixes on which the residual predicts what the model predicts"),
    share("share", "matching / prefixes"),
    *WILSON,
    count("tied", "prefixes with a tie in one of the three predictions"),
)
FIGURE_10 = table(
    "refinement/figure_10_final_probability.csv",
    "A layer: the probability that its residual gives to the model's prediction, over prefixes.",
    LAYER,
    count("prefixes", "sampled prefixes"),
    *BOX,
)
FIGURE_11 = table(
    "refinement/figure_11_breakdown.csv",
    "A layer and a case: on how many prefixes it holds.",
    LAYER,
    CASE,
    count("prefixes", "prefixes of the case"),
    share("share", "share of all prefixes"),
    *WILSON,
)
CHANGES = table(
    "refinement/prediction_changes.csv",
    "A sampled prefix on which the last layer changes the prediction.",
    count("prefix", "number of the sampled prefix"),
    text("text", "its text"),
    text("next_token", "the token that follows it"),
    text("residual_token", "the prediction before the last layer"),
    text("output_token", "the prediction after it"),
    number("cosine", "cosine of the output embeddings of both predictions", lowest=-1, highest=1),
    share("cosine_percentile", "share of random pairs of tokens of the corpus that are less close"),
    text("related", "empty: for a person to fill in"),
)
