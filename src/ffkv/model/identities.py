"""The identities that the proof checks on every model: what each one says, and why it must hold."""

from typing import NamedTuple

# Relative error up to which an identity counts as true, by type of the weights: rounding, with room to spare.
TOLERANCE = {"float64": 1e-4, "float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}


class Identity(NamedTuple):
    """One identity of the proof, in words."""

    meaning: str  # what holds if the identity holds, for `ffkv inspect` and the report
    failure: str  # what is wrong with a model for which it does not hold, for the error message


# In the order of the proof. `Anatomy.errors` has an entry for each identity that applies to the model.
IDENTITIES = {
    # Applies to models with experts only.
    "experts": Identity(
        "experts that run one at a time give the output of the model's own code",
        "experts that run one at a time give another output than the model's own code",
    ),
    "memories": Identity(
        "the memories add up to the feed-forward output: y = Σ m v + b",
        "the memories do not add up to the feed-forward layer's output",
    ),
    "residual": Identity(
        "the block adds the feed-forward output to the residual: o = r + y",
        "the block output is not the feed-forward output plus the block output without the feed-forward layer",
    ),
    "prefix": Identity(
        "the coefficients of a prefix do not depend on the tokens after it",
        "not causal: the coefficients of a prefix change with the tokens after it (is it an encoder that was loaded without is_decoder=True?)",
    ),
    "head": Identity(
        "the head turns the last block output into the model's own logits",
        "what follows the last block does not depend on the block output at one token alone: the head gives other logits than the model",
    ),
}
