"""The settings of the branch `roles`: what weights alone say."""

from pydantic import Field

from ffkv.base.settings.section import Section


class Roles(Section):
    """What the weights of a memory alone say of it."""

    threshold: float = Field(0.5, ge=0, lt=1)
    """Cosine from which on two vectors count as having the same direction, or opposite ones, when a memory's type is named."""
    ignored: float = Field(0.01, gt=0, le=1)
    """Share of the directions of the residual stream that count as ignored by the head: those that it reads the least."""
    tokens: int = Field(10, ge=1, le=100_000)
    """Number of tokens with the highest logits of a value, and with the lowest, among which the tokens of trigger examples
    are sought. At most `values.top_tokens`."""
