"""What costs are made of: the parts of a run that they follow from, and the amounts of work that rules share.

L layers, M memories in all, d width, V vocabulary, T tokens, t triggers a key, P sampled prefixes.
"""

import math
from dataclasses import dataclass, field

from ffkv.files.lazy import KEPT
from ffkv.model.head.head import CHUNK_BYTES
from ffkv.plan.disk import corpus_bytes, triggers_bytes
from ffkv.plan.shape import Shape
from ffkv.plan.text import Split
from ffkv.settings import Settings

PIECES_AT_ONCE = 4 * KEPT * 2**20  # bytes: of tokens, their ends, the text and its offsets
LOADED = 1.25  # peak of loading weights, over the weights


@dataclass(frozen=True)
class Cost:
    """What all jobs of a rule cost together, and one of them at its peak.

    threads: that a job asks for. tokens: that the model runs. work: amount of each kind of work, see `machine.Rates`.
    written: bytes of files that stay. beside: bytes of files that one job keeps until its own is written.
    memory: bytes of one job, above what its libraries hold.
    libraries: which those are, a key of `machine.LIBRARIES`; "" for none.
    """

    rule: str
    jobs: int = 1
    threads: int = 1
    tokens: float = 0.0
    work: dict[str, float] = field(default_factory=dict)
    written: float = 0.0
    memory: float = 0.0
    libraries: str = "tables"
    beside: float = 0.0

    @property
    def operations(self) -> float:
        """Floating-point operations of matrix products."""
        return sum(self.work.get(kind, 0.0) for kind in ("body", "head", "training"))


@dataclass(frozen=True)
class Run:
    """All that costs follow from: settings, the model's shape, both splits."""

    settings: Settings
    shape: Shape
    train: Split
    validation: Split

    @property
    def weights(self) -> float:
        """Bytes of the weights in memory."""
        return self.shape.parameters * self.shape.itemsize

    @property
    def prefixes(self) -> float:
        """P: sampled validation prefixes, no more than there are."""
        return min(self.settings.prefixes.count, self.validation.prefixes)

    @property
    def sides(self) -> int:
        """1, or 2 where negative triggers are kept, too."""
        return 2 if self.shape.signed and self.settings.triggers.negative else 1

    @property
    def top_tokens(self) -> int:
        """k: highest, and lowest, tokens that are kept of a value."""
        return min(self.settings.values.top_tokens, self.shape.vocabulary)

    @property
    def groups(self) -> int:
        """Groups of layers that hold any."""
        return min(self.settings.layer_groups, self.shape.layers)

    @property
    def group_memories(self) -> float:
        """Memories of one group of layers."""
        return max(self.shape.memories) * math.ceil(self.shape.layers / self.settings.layer_groups)

    def logits(self, vectors: float) -> float:
        """Bytes of the logits of so many vectors that stand at a time, with those before them, and as a 16-bit head makes them."""
        return 3 * min(CHUNK_BYTES, 4 * self.shape.vocabulary * vectors)

    @property
    def head_weights(self) -> float:
        """Bytes of the model without its blocks."""
        return self.shape.outside * self.shape.itemsize

    def corpus_file(self, split: Split) -> float:
        """Bytes of a split's file."""
        return corpus_bytes(split, self.shape)

    def corpus_memory(self, split: Split) -> float:
        """Bytes of a split that is read: where its sentences start and how long they are, and some pieces of the rest."""
        return 24 * split.sentences + min(self.corpus_file(split), PIECES_AT_ONCE)

    @property
    def triggers_memory(self) -> float:
        """Bytes of `triggers.h5` in memory."""
        return triggers_bytes(self.shape, self.settings.triggers.per_key, self.sides)


def body_operations(shape: Shape, tokens: float, length: float) -> float:
    """Of the blocks: two a matrix entry and token, and attention's scores and mixing with the tokens before it."""
    return tokens * (2 * shape.body + 4 * (length / 2) * shape.width * shape.layers)


def running(run: Run, tokens: float, length: float) -> dict[str, float]:
    """Tokens through all blocks: their products, what grows with the coefficients, and each block's call on each batch."""
    return {
        "body": body_operations(run.shape, tokens, length),
        "coefficients": tokens * run.shape.all_memories * (1 + 0.4 * (run.sides - 1)),
        "calls": run.shape.layers * math.ceil(tokens / run.settings.activations.batch_tokens),
    }


def head_operations(shape: Shape, vectors: float) -> float:
    """Of reading vectors out: two an entry of the output matrices."""
    return 2 * shape.head * vectors


def loading(run: Run, jobs: int) -> dict[str, float]:
    """Each job that runs the model reads its weights, checks them and takes their hash."""
    return {"bytes": jobs * run.weights}


def reading(run: Run, *sizes: float) -> dict[str, float]:
    """Each job of a group of layers reads files of these sizes whole, for their checksums, whatever part of them it needs."""
    return {"bytes": run.settings.layer_groups * sum(sizes)}


def batch_tokens(run: Run) -> float:
    """Tokens of a batch: a sentence longer than a batch is one of its own."""
    return max(run.settings.activations.batch_tokens, 3 * run.train.length)
