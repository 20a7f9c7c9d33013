"""The table of the training."""

from ffkv.base.files.columns import count, number, table, word
from ffkv.base.settings.inputs import EMBEDDED

TRAINING = table(
    "checkpoint/training.csv",
    "A training step and a split: the loss of the model.",
    count("step", "training steps so far"),
    count("tokens", "training tokens so far"),
    word("split", "split that the loss is measured on", "train", "validation"),
    number("loss", "mean loss per token", "nat", lowest=0),
    number("perplexity", "exp(loss)", lowest=1),
    only="if the model is trained here",
    applies=lambda settings: settings.model.checkpoint == EMBEDDED,
)
