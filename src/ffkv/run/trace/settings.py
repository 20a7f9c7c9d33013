"""What can be asked about a prompt: the options of a trace, of written text and of a graph, for functions, commands and the explorer."""

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Annotated, Any, Literal

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
Share = Annotated[float, Field(gt=0, le=1)]


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
        return given.item() if getattr(given, "shape", None) == () else given  # numpy is not imported for it


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
    top: Annotated[int, Field(ge=1, le=1000)] = 10
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
    """Number of tokens to write at most. A text ends earlier in front of a token that ends it: one that
    generation_config.json, config.json or the tokenizer names, such as the end of a document, or of a turn in a chat."""
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    """0 takes the token with the highest logit each time. Above 0, tokens are drawn; logits are divided by this number first."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Draw only among the most probable tokens that together have this probability."""
    seed: Seed = 0
    """Seed of what is drawn. All texts are drawn with the same random numbers."""


class GraphOptions(Section):
    """What a graph explains, what memories are compared with, and how much it keeps."""

    answer: str | None = None
    """The answer: text of a token to the letter, such as " are", blanks included. By default the token that the model predicts."""
    wrong: str | None = None
    """The token that the answer is compared with. By default the most probable other one."""
    other: str | None = None
    """Another prompt with as many tokens, such as "The key to the cabinet": memories are patched to what they are there."""
    baseline: Literal["mean", "zero"] = "mean"
    """Without another prompt, memories are patched to their mean over the train split, or to 0."""
    share: Share = 0.8
    """Share of the logit difference that the memories of the graph keep when all others are patched."""
    edge_share: Share = 0.8
    """Share of the summed sizes of the effects of all edges that the edges of the graph have."""
    maximum: Annotated[int, Field(ge=1, le=LARGEST)] = 200
    """Most places (a memory at a token) that the set has on the way."""
    random_sets: Annotated[int, Field(ge=2, le=LARGEST)] = 20
    """Number of random sets of equal size beside it."""
