"""The words of the branch `behaviours`. It imports nothing, because the workflow reads descriptions at every start."""

CHOOSE, ESTIMATE = "choose", "estimate"  # the two halves of the prompts
# Why a prompt is not used.
SEVERAL, MERGED, SAME, UNKNOWN, LONG, EMPTY, UNEQUAL, DOUBLED, UNDRAWN = (
    "an answer has several tokens",
    "an answer and the prompt make one token",
    "both answers are the same token",
    "a token is none of the model",
    "it is longer than the model reads",
    "it has no token",
    "the prompts of the pair differ in their number of tokens",
    "it is there twice",
    "it was not drawn",
)
REASONS = (SEVERAL, MERGED, SAME, UNKNOWN, LONG, EMPTY, UNEQUAL, DOUBLED, UNDRAWN)
BY_CONTRAST, BY_SCREEN, RANDOM, ALL = "contrast", "screen", "random", "all"  # what ranks or chooses memories
GRAPH, RESAMPLED, NONE = "graph", "resampled", "none"  # sets of memories beside a graph
BOOTSTRAPS, HALVES, LABELS = "bootstraps", "halves", "labels"  # prompts that give two sets of memories
COMPARED = (BOOTSTRAPS, HALVES, LABELS, RANDOM)
OWN, MEMORIES, DIRECTIONS = "own", "random_memories", "random_directions"  # what is changed
SOURCES = (OWN, MEMORIES, DIRECTIONS)
