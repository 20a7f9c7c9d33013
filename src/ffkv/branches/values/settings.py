"""The settings of the branch `values`: predictions of values."""

from typing import Literal

from pydantic import Field

from ffkv.base.settings.section import Section


class Values(Section):
    """The prediction of each value (paper section 4)."""

    projection: Literal["head", "unembedding"] = "head"
    """How a value becomes a prediction. `head`: through the unembedding head of the model, with its final norm
    if it has one. `unembedding`: by the output embedding alone."""
    readout: Literal["head", "both", "all"] = "head"
    """Whether values and states are also read through linear maps to the last layer. `head`: they are not. `both`: the report
    has a section with both readings of figures 4, 5 and 8 to 10, see [translation.md](translation.md). `all`: they are read through
    fitted maps and through the Jacobian lens, side by side. If `translation.fit` is `jacobian`, `ridge` fits the maps."""
    top_tokens: int = Field(50, ge=1, le=100_000)
    """Number of tokens with the highest logits, and of tokens with the lowest logits, that are stored per value."""
    predictive: int = Field(100, ge=1, le=10_000)
    """Number of values that table 2 shows. These are the values with the highest top probability."""
    bins: int = Field(8, ge=1, le=1000)
    """Number of bins of the top probability in figure 6."""
