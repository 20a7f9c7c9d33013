"""The settings of the branch `routing`: to which experts tokens are sent."""

from typing import Literal

from pydantic import Field

from ffkv.base.settings.section import Section, Whole


class Routing(Section):
    """To which experts a model sends the tokens of a corpus."""

    tokens: Whole = Field(0, ge=0, le=100_000)
    """Number of tokens of the train split, in whole sentences of documents that are drawn, for which it is read which experts they are sent to. 0: it is not
    asked. A model without experts has an empty table."""
    patterns: Literal["text", "code"] = "text"
    """Which patterns are sought among these tokens: the rules of `concepts` for text, or for code and LaTeX."""
