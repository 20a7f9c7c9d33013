"""The settings of the branch `reconstruction`."""

from pydantic import Field

from ffkv.base.settings import Section, Whole


class Reconstruction(Section):
    """How much of the output of layers their dictionary makes again. Runs without a `dictionary` do not measure it."""

    tokens: Whole = Field(8192, ge=64, le=10_000_000)
    """Number of tokens of the validation split, in whole sentences of documents that are drawn."""
    prefixes: Whole = Field(1000, ge=1, le=100_000)
    """Number of these tokens, at most, at which the predictions of the layer, of its units and of what they leave are read."""
