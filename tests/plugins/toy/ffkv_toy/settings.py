"""The settings of the branch `lengths`."""

from pydantic import Field

from ffkv.base.settings import Section


class Lengths(Section):
    """How long the values of a layer are."""

    quantile: float = Field(0.5, ge=0, le=1)
    """Quantile of the lengths of a layer's values that is shown. 0.5 is the median."""
