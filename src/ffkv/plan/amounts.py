"""How much there is to do: what the seconds, the files and the memory of each rule grow with."""

from collections.abc import Callable
from dataclasses import dataclass

from ffkv.activations.trigger_file import HISTOGRAM_EDGES, Triggers
from ffkv.corpus.corpus_file import Corpus
from ffkv.files.datasets import stored_bytes
from ffkv.keys.topics import PASSAGE_SENTENCES, PASSAGES
from ffkv.model.head.head import CHUNK_BYTES
from ffkv.model.values_file import ValuesFile
from ffkv.plan.shape import Shape
from ffkv.plan.text import Split
from ffkv.settings import Settings
from ffkv.values.projections import Projections

LOADED = 1.25  # most bytes while weights are loaded, per byte of weights
DIGESTED = 20  # bytes in memory per byte of text that is split and tokenized
READ_RATE = 5e8  # bytes per second at which files are read and their checksums computed


@dataclass(frozen=True)
class Amounts:
    """The numbers that the costs of a run follow from.

    Attributes:
        settings: the settings of the run.
        shape: the shape of its model.
        train: size of the train split.
        validation: size of the validation split.
        signed: whether a coefficient can be negative.
    """

    settings: Settings
    shape: Shape
    train: Split
    validation: Split
    signed: bool = True

    @property
    def prefixes(self) -> int:
        """P, number of sampled validation prefixes."""
        return int(min(self.settings.prefixes.count, max(self.validation.prefixes, 1)))

    @property
    def keys(self) -> int:
        """Number of keys that are analysed, of all layers."""
        return sum(min(self.settings.keys.per_layer, memories) for memories in self.shape.memories)

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return self.shape.parameters * self.shape.itemsize

    @property
    def head(self) -> int:
        """Bytes of the weights outside of the blocks."""
        return self.shape.outside * self.shape.itemsize

    @property
    def group(self) -> float:
        """Memories of the largest layer group."""
        return max(self.shape.memories) * -(-self.shape.layers // self.settings.layer_groups)

    @property
    def background(self) -> float:
        """Share of the text that `keys_patterns` learns topics and frequencies from, times the sentences."""
        return min(self.train.sentences, PASSAGES * PASSAGE_SENTENCES)

    def trigger_bytes(self) -> int:
        """Bytes of `triggers.h5`."""
        negative = self.signed and self.settings.triggers.negative
        return stored_bytes(Triggers, self.sizes(rank=self.settings.triggers.per_key), () if negative else ("negative",))

    def prefix_bytes(self) -> int:
        """Bytes of y, o and m of the sampled prefixes in float32, and of x where it is kept."""
        states = 2 + len(getattr(self.settings.prefixes, "keep", ()))
        return 4 * self.prefixes * (states * self.shape.layers * self.shape.width + self.shape.all_memories)

    def corpus_bytes(self) -> int:
        """Bytes of both corpus files."""
        return sum(stored_bytes(Corpus, self.sizes(split)) for split in (self.train, self.validation))

    def projection_bytes(self) -> int:
        """Bytes of all files of projections."""
        return stored_bytes(Projections, self.sizes(rank=min(self.settings.values.top_tokens, self.shape.vocabulary)))

    def sizes(self, split: Split | None = None, rank: int = 0) -> dict[str, int]:
        """The length of each dimension of the run's datasets.

        Args:
            split: the split that the dimensions of a corpus are of; None for train.
            rank: number of entries per memory.
        """
        split = split or self.train
        return {
            "memory": self.shape.all_memories,
            "layer": self.shape.layers,
            "width": self.shape.width,
            "vocabulary": self.shape.vocabulary,
            "bin": len(HISTOGRAM_EDGES) - 1,
            "rank": rank,
            "prefix": self.prefixes,
            "token": int(split.tokens),
            "sentence": int(split.sentences),
            "document": int(split.documents),
            "text_byte": int(split.text_bytes),
            "document_name_byte": 40 * int(split.documents),
        }


def constant(amounts: Amounts) -> float:
    """Nothing that grows."""
    return 0.0


@dataclass(frozen=True)
class Rule:
    """What the cost of a rule grows with. All jobs of the rule together, except memory: one job.

    Attributes:
        work: an amount that its seconds are proportional to, but for a constant part; 0 if they do not grow.
        libraries: which libraries a job imports, see `trial.LIBRARIES`.
        disk: bytes of its outputs, as far as their descriptions tell.
        rows: an amount that the rest of its outputs is proportional to; 0 if it does not grow.
        memory: bytes that a job holds, as far as they grow.
        loads: bytes that each job reads before it starts its work.
        repeats: an amount that the constant part of each job is proportional to; 0 if it does not grow.
    """

    work: Callable[[Amounts], float] = constant
    libraries: str = "tables"
    disk: Callable[[Amounts], float] = constant
    rows: Callable[[Amounts], float] = constant
    memory: Callable[[Amounts], float] = constant
    loads: Callable[[Amounts], float] = constant
    repeats: Callable[[Amounts], float] = constant


def _logits(a: Amounts) -> float:
    """Bytes of the logits that are in memory at a time."""
    return 3 * min(CHUNK_BYTES, 4 * a.shape.vocabulary * max(a.shape.memories))


def _head_memory(a: Amounts) -> float:
    return a.head + _logits(a)


def _pass_memory(a: Amounts) -> float:
    """Bytes of the model, of a batch, and of the lengths of the sentences."""
    batch = 4 * a.settings.activations.batch_tokens * (8 * max(a.shape.memories) + 12 * a.shape.width)
    return LOADED * a.weights + batch + 24 * a.train.sentences


def _vectors(a: Amounts) -> float:
    """Operations to read one vector per sampled prefix and layer out."""
    return a.prefixes * a.shape.layers * a.shape.vocabulary * a.shape.width


def _keys_pass(a: Amounts) -> float:
    """Weights of the blocks per trigger of the sampled keys: a pass ends at the key's layer, half of all on average."""
    return a.keys * a.shape.body * (a.shape.layers + 1) / (2 * a.shape.layers)


def _removal(a: Amounts) -> float:
    return _keys_pass(a) * min(a.settings.keys.removal_triggers, a.settings.triggers.per_key)


RULES = {
    "train": Rule(
        lambda a: a.settings.embedded.steps * a.settings.embedded.batch_tokens,
        libraries="model",
        disk=lambda a: 4 * a.shape.parameters,
        memory=lambda a: 16 * a.shape.parameters + DIGESTED * (a.train.text_bytes + a.validation.text_bytes),
    ),
    "model": Rule(
        lambda a: sum(d_m * d_m * a.shape.width + 4 * a.shape.body / a.shape.layers for d_m in a.shape.memories),
        libraries="model",
        disk=lambda a: a.head + stored_bytes(ValuesFile, a.sizes()),
        rows=lambda a: a.shape.vocabulary,
        memory=lambda a: LOADED * a.weights + a.head + 16 * max(a.shape.memories) * a.shape.width,
        loads=lambda a: 2 * a.weights,
    ),
    "corpus": Rule(
        libraries="model",
        disk=Amounts.corpus_bytes,
        memory=lambda a: DIGESTED * a.train.text_bytes,
    ),
    "triggers": Rule(
        lambda a: a.train.tokens * a.shape.body,
        libraries="model",
        disk=lambda a: a.settings.shards * a.trigger_bytes(),
        memory=lambda a: _pass_memory(a) + 3 * a.trigger_bytes(),
        loads=lambda a: a.weights,
    ),
    "merge_triggers": Rule(
        lambda a: a.settings.shards * a.trigger_bytes(),
        disk=Amounts.trigger_bytes,
        memory=lambda a: 5 * a.trigger_bytes(),
    ),
    "sampled_prefixes": Rule(
        lambda a: a.prefixes * a.shape.body,
        libraries="model",
        disk=Amounts.prefix_bytes,
        memory=lambda a: (
            _pass_memory(a)
            + a.prefix_bytes() / a.prefixes * min(a.prefixes, a.settings.activations.block_sentences)
        ),
        loads=lambda a: a.weights,
    ),
    "merge_sampled_prefixes": Rule(Amounts.prefix_bytes),
    "keys_patterns": Rule(
        lambda a: a.keys * a.settings.keys.pattern_triggers,
        libraries="keys",
        rows=lambda a: a.keys,
        memory=lambda a: a.trigger_bytes() + 24 * a.train.sentences + 5000 * a.settings.keys.background_prefixes,
        repeats=lambda a: a.background,
    ),
    "keys_removal": Rule(
        _removal,
        libraries="model",
        rows=lambda a: a.keys,
        memory=lambda a: _pass_memory(a) + a.trigger_bytes(),
        loads=lambda a: a.weights,
    ),
    "keys_precision": Rule(
        lambda a: _keys_pass(a) * a.settings.triggers.per_key,
        libraries="model",
        memory=lambda a: _pass_memory(a) + a.trigger_bytes() + 4 * a.shape.parameters,
        loads=lambda a: a.weights,
    ),
    "keys_summarize": Rule(libraries="keys", memory=Amounts.trigger_bytes),
    "values_project": Rule(
        lambda a: a.shape.all_memories * a.shape.vocabulary * a.shape.width,
        libraries="model",
        disk=Amounts.projection_bytes,
        rows=lambda a: a.shape.all_memories,
        memory=lambda a: _head_memory(a) + a.group * 8 * a.shape.width + a.trigger_bytes() + a.projection_bytes(),
        loads=lambda a: a.head,
    ),
    "values_summarize": Rule(memory=lambda a: a.trigger_bytes() + 150 * a.shape.all_memories),
    "composition_measure": Rule(
        _vectors,
        libraries="model",
        rows=lambda a: a.prefixes * a.shape.layers,
        memory=lambda a: (
            _head_memory(a) + a.prefixes * (7 * max(a.shape.memories) + 8 * a.shape.width) + a.projection_bytes()
        ),
        loads=lambda a: a.head,
    ),
    "composition_summarize": Rule(memory=lambda a: 200 * a.prefixes * a.shape.layers),
    "refinement_measure": Rule(
        _vectors,
        libraries="model",
        rows=lambda a: a.prefixes * a.shape.layers,
        memory=lambda a: _head_memory(a) + 16 * a.prefixes * a.shape.width,
        loads=lambda a: a.head,
    ),
    "refinement_summarize": Rule(
        libraries="model",
        memory=lambda a: 12 * a.shape.vocabulary * a.shape.width + 100 * a.prefixes * a.shape.layers,
        loads=lambda a: 3 * a.head,
    ),
    "report": Rule(libraries="keys", rows=lambda a: a.settings.report.cards),
}
