"""The words of the branch `behaviours`. It imports nothing, because the workflow reads descriptions at every start."""

PAIRS, PROMPTS, LISTS = "pairs", "prompts", "lists"  # kinds of files of prompts
CHOOSE, ESTIMATE = "choose", "estimate"  # the two halves of the prompts
# The fields of a line, by kind: all of them must be there, of lists one.
FIELDS = {
    PAIRS: ("clean_prefix", "patch_prefix", "clean_answer", "patch_answer"),
    PROMPTS: ("prompt", "answer", "wrong"),
    LISTS: ("positive", "negative"),
}
LABEL_FIELDS = ("label", "case")  # where a label may be
GROUP = "group"  # where a group may be
READ = (*FIELDS[PAIRS], *FIELDS[PROMPTS], *FIELDS[LISTS], *LABEL_FIELDS, GROUP)  # all fields
REFERENCE = "reference"  # prefixes of other text, with which prompts are compared
# Why a prompt is not used.
REASONS = MERGED, SAME, UNKNOWN, LONG, EMPTY, UNEQUAL, DOUBLED, UNDRAWN = (
    "an answer and the prompt make one token",
    "both answers are the same token",
    "a token is none of the model",
    "it is longer than the model reads",
    "it has no token",
    "the prompts of the pair differ in their number of tokens",
    "it is there twice",
    "it was not drawn",
)
GROUPED = BY_FIELD, BY_WORDS, BY_PROMPT = "group", "words", "prompt"  # what makes groups of prompts
BY_CONTRAST, BY_SCREEN, RANDOM, ALL = "contrast", "screen", "random", "all"  # what ranks or chooses memories
BY_SIZE, SHUFFLED = "size", "shuffled"
# Of all memories of whole experts.
FIRST_EXPERTS, RANDOM_EXPERTS, ALL_EXPERTS = "experts", "random_experts", "all_experts"
# Sets that are patched.
CHOICES = BY_SCREEN, BY_SIZE, RANDOM, ALL, FIRST_EXPERTS, RANDOM_EXPERTS, ALL_EXPERTS
RANKINGS = BY_CONTRAST, BY_SCREEN, FIRST_EXPERTS  # what is ranked again for the stability
RANKED = BY_SCREEN, BY_SIZE, SHUFFLED  # memories of which the first ones are kept
GRAPH, RESAMPLED, NONE = "graph", "resampled", "none"
BESIDE_GRAPH = GRAPH, RANDOM, RESAMPLED, NONE, ALL  # sets of memories of which a graph is one
ANSWER = -1  # stands for the answer among the targets of edges
BOOTSTRAPS, HALVES, LABELS = "bootstraps", "halves", "labels"  # prompts that give two sets of memories
COMPARED = (BOOTSTRAPS, HALVES, LABELS, RANDOM)
# What is changed.
SOURCES = OWN, MEMORIES, DIRECTIONS, OUTSIDE = "own", "random_memories", "random_directions", "outside"
# What writes into the residual stream, as `ffkv.model.effects.writes` calls it; and all of it.
WRITERS = EMBEDDING, ATTENTION, ALL_MEMORIES, ERROR, EVERYTHING = (
    "embedding",
    "attention",
    "memories",
    "error",
    "everything",
)
# Parts of all memories at which CPR and CMD look (MIB, Mueller et al. 2025).
SHARES = 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0
# How an expert leaves.
CHANGES = REMOVED, RENORMALISED, REPLACED = "removed", "renormalised", "replaced"
