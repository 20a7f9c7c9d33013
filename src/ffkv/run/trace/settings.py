"""The options of a trace and of written text, for functions, commands and the explorer."""

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field, field_validator

from ffkv.base.settings import LARGEST, Section, Seed


def _memories(given: Any) -> Any:
    """Returns the names of memories as a list. A mapping of names to factors becomes names such as "L3.17:2"."""
    if isinstance(given, Mapping):
        return [
            f"{name}:{float(value)!r}" if isinstance(value, Real) else f"{name}:{value}"
            for name, value in given.items()
        ]
    several = [given] if isinstance(given, str) or not isinstance(given, Iterable) else given
    return [name for each in several for name in (each.replace(",", " ").split() if isinstance(each, str) else [each])]


Memories = Annotated[list[str], BeforeValidator(_memories)]


class Changes(Section):
    """Which memories are switched off or scaled."""

    off: Memories = Field([])
    """Memories to switch off, such as L3.17, @starred for those of a list, or @behaviour:agreement for the candidates of a
    behaviour: their coefficient becomes 0. Repeat it, or put commas between."""
    scale: Memories = Field([])
    """Memories to scale, with the factor of their coefficient, such as L3.17:2. Repeat it, or put commas between. In
    Python it may be a mapping: {"L3.17": 2}."""

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        """Takes numbers and texts out of a table of numpy's or pandas' as they are."""
        return given.item() if isinstance(given, np.generic) else given


class TraceOptions(Changes):
    """What a trace shows, and which memories it changes."""

    everywhere: bool = False
    """Change these memories at every token, not only at the one looked at."""
    position: int | None = None
    """Position of the token to look at, from 0, the tokens in front of the prompt included; negative numbers count from
    the end. By default the last token."""
    token: str | None = None
    """Next token that contributions are measured on: its text to the letter, such as " Paris", blanks included. By
    default the token that the unchanged model predicts."""
    token_id: int | None = None
    """The same token by its id."""
    top: Annotated[int, Field(ge=1, le=LARGEST)] = 10
    """Number of tokens per prediction."""
    memories: Annotated[int, Field(ge=0, le=LARGEST)] = 20
    """Number of memories per layer with the largest contribution, and of those with the largest effect on the token's
    logit. Both are listed."""
    edges: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """Number of listed memories, those with the largest change of the logit, between which edges are measured, in the unchanged
    model. The model runs again without each of them."""

    def contradictions(self) -> list[str]:
        """See `Section`."""
        both = self.token is not None and self.token_id is not None
        return ["token and token_id name one token. Give one of them."] if both else []


class GenerateOptions(Changes):
    """How text is written, and which memories change at every token."""

    tokens: Annotated[int, Field(ge=1, le=10_000)] = 40
    """Number of tokens to write at most. A text ends earlier with the token that ends documents."""
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    """0 takes the token with the highest logit each time. Above 0, tokens are drawn; logits are divided by this number first."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw only among the most probable tokens that together have this probability."""
    seed: Seed = 0
    """Seed of what is drawn. All texts are drawn with the same random numbers."""
