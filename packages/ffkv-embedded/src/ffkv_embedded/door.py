"""What the embedded model adds to ffkv, see `ffkv.base.doors`."""

from typing import Any

from ffkv.base.doors import Command
from ffkv.base.files.columns import count, number, table, word
from ffkv.base.settings import EMBEDDED
from ffkv.base.steps import Rules, Step

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


def amount(run: Any) -> tuple[float, float]:
    """Returns how much a training has to do, and what it writes, see `Step.amount`."""
    from ffkv_embedded.training import MEASUREMENTS, SAMPLE_TOKENS

    made, shape, held_out = run.settings.embedded, run.shape, run.text["validation"].tokens
    tokens = 3 * made.steps * made.batch_tokens + held_out
    tokens += (min(MEASUREMENTS, made.steps) - 1) * min(SAMPLE_TOKENS, held_out)
    return tokens * (shape.body + shape.outside), shape.parameters * (1 + len(made.keep_steps))


TRAIN = Command(
    "Steps, which snakemake starts",
    "ffkv_embedded.commands:train",
    "Train the embedded model, or train it further.",
    first=True,
)
RULES = Rules(
    train=Step(
        "ffkv_embedded.training:train",
        settings=("embedded", "corpus/limit", "corpus/validation_share", "seed"),
        writes=(TRAINING,),
        imports="model",
        also=("ffkv_embedded/python_docs.py",),  # the text, by its door
        amount=amount,
    )
)
