"""The options of a graph, for functions, commands and the explorer."""

from typing import Annotated, Literal

from pydantic import Field

from ffkv.base.settings import LARGEST, Section

ANSWER = -1  # stands for the answer among the targets of edges
Share = Annotated[float, Field(gt=0, le=1)]


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
