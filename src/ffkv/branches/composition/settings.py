"""The settings of the branch `composition`: how memories combine."""

from pydantic import Field

from ffkv.base.settings.section import Section, Whole


class Composition(Section):
    """How the memories of a layer combine (paper section 5.1)."""

    mass: float = Field(0.9, gt=0, le=1)
    """Share of the summed contribution |m|·‖v‖ that defines the effective number of memories: the smallest number of
    memories that together reach this share."""
    short_prefix: Whole = Field(5, ge=1)
    """Number of words below which a prefix counts as short."""
