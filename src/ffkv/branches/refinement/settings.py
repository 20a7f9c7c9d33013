"""The settings of the branch `refinement`: how predictions change."""

from pydantic import Field

from ffkv.base.settings.section import Section


class Refinement(Section):
    """How predictions change from layer to layer (paper section 5.2)."""

    changes: int = Field(100, ge=1, le=10_000)
    """Number of prefixes that are sampled among those whose prediction the last layer changes."""
