"""What the seconds, the files and the memory of each rule grow with: amounts of a run, per rule."""

from collections.abc import Callable
from dataclasses import dataclass

from ffkv.activations.prefix_file import SampledPrefixes
from ffkv.activations.trigger_file import HISTOGRAM_EDGES, Triggers
from ffkv.corpus.corpus_file import Corpus
from ffkv.embedded.training import MEASUREMENTS, SAMPLE_TOKENS
from ffkv.files.datasets import stored_bytes
from ffkv.keys.topics import PASSAGE_SENTENCES, PASSAGES
from ffkv.model.head.head import CHUNK_BYTES
from ffkv.model.values_file import ValuesFile
from ffkv.plan.shape import Shape
from ffkv.plan.text import Split
from ffkv.settings import Settings
from ffkv.values.projections import Projections


class Amounts:
    """How much a run has to do.

    Attributes:
        settings: the settings of the run.
        shape: the shape of its model.
        splits: the sizes of its splits.
        signed: whether coefficients can be negative.
        layers: number of feed-forward layers.
        memories: number of memories of all layers.
        largest: number of memories of the largest layer.
        prefixes: number of sampled prefixes.
        keys: number of keys that are analysed, of all layers.
        weights: bytes of all weights.
        head: bytes of the weights outside of the blocks.
    """

    def __init__(self, settings: Settings, shape: Shape, splits: dict[str, Split], signed: bool = True):
        self.settings, self.shape, self.splits, self.signed = settings, shape, splits, signed
        self.layers, self.memories, self.largest = len(shape.memories), sum(shape.memories), max(shape.memories)
        validation = splits["validation"]
        self.prefixes = int(max(min(settings.prefixes.count, validation.tokens - validation.sentences), 1))
        self.keys = sum(min(settings.keys.per_layer, memories) for memories in shape.memories)
        self.weights, self.head = shape.parameters * shape.itemsize, shape.outside * shape.itemsize

    def stored(self, record: type, rank: int = 0, without: tuple[str, ...] = (), split: str = "train") -> int:
        """Bytes of a described file of the run.

        Args:
            record: its description.
            rank: number of entries per memory.
            without: datasets that it lacks.
            split: the split that it is of.
        """
        size = self.splits[split]
        sizes = {"layer": self.layers, "memory": self.memories, "largest_layer": self.largest, "rank": rank}
        sizes |= {"width": self.shape.width, "vocabulary": self.shape.vocabulary, "prefix": self.prefixes}
        sizes |= {"bin": len(HISTOGRAM_EDGES) - 1, "token": int(size.tokens), "sentence": int(size.sentences)}
        sizes |= {"document": int(size.documents), "document_name_byte": 40 * int(size.documents)}
        return stored_bytes(record, {**sizes, "text_byte": int(size.text_bytes)}, without)

    @property
    def triggers(self) -> int:
        """Bytes of `triggers.h5`."""
        negative = self.signed and self.settings.triggers.negative
        return self.stored(Triggers, self.settings.triggers.per_key, () if negative else ("negative",))

    @property
    def sampled(self) -> int:
        """Bytes of the sampled prefixes."""
        return self.stored(SampledPrefixes, without=tuple({"x", "factor", "end"} - {*self.settings.prefixes.keep}))

    @property
    def projections(self) -> int:
        """Bytes of all files of projections."""
        return self.stored(Projections, min(self.settings.values.top_tokens, self.shape.vocabulary))

    @property
    def trained(self) -> float:
        """Tokens of the training, of its forward passes and, twice as much work, of its backward passes."""
        made, held_out = self.settings.embedded, self.splits["validation"].tokens
        measured = min(MEASUREMENTS, made.steps) - 1
        return 3 * made.steps * made.batch_tokens + measured * min(SAMPLE_TOKENS, held_out) + held_out

    @property
    def passing(self) -> float:
        """Bytes of a job that runs the model: its weights while they are loaded, a batch, and the lengths of sentences."""
        batch = 4 * self.settings.activations.batch_tokens * (8 * self.largest + 12 * self.shape.width)
        return 1.25 * self.weights + batch + 24 * self.splits["train"].sentences

    @property
    def reading_out(self) -> float:
        """Bytes of a job that holds the head: its weights, and the logits that are computed at a time."""
        return self.head + 3 * min(CHUNK_BYTES, 4 * self.shape.vocabulary * self.largest)

    @property
    def removal(self) -> float:
        """Work per row and key: each key's pass ends at its own layer."""
        return self.keys * self.shape.body * (self.layers + 1) / self.layers


Amount = Callable[[Amounts], float]


def nothing(amounts: Amounts) -> float:
    """The amount of what does not grow."""
    return 0.0


@dataclass(frozen=True)
class Growth:
    """What the costs of a rule grow with; of all its jobs together, but for the memory.

    Attributes:
        work: what its seconds grow with, but for a constant part.
        once: what the constant part of each job grows with.
        stored: bytes of its outputs, as far as their descriptions tell.
        rows: what the rest of its outputs grows with.
        memory: bytes of one job, as far as they grow.
        tokens: tokens that the model reads.
        libraries: which libraries a job imports, see `trial.LIBRARIES`.
    """

    work: Amount = nothing
    once: Amount = nothing
    stored: Amount = nothing
    rows: Amount = nothing
    memory: Amount = nothing
    tokens: Amount = nothing
    libraries: str = "model"


RULES = {
    "train": Growth(
        work=lambda a: a.trained * (a.shape.body + a.shape.outside),
        stored=lambda a: 4 * a.shape.parameters,
        memory=lambda a: 16 * a.shape.parameters + 20 * a.splits["train"].text_bytes,
        tokens=lambda a: a.settings.embedded.steps * a.settings.embedded.batch_tokens,
    ),
    "model": Growth(
        work=lambda a: sum(memories**2 * a.shape.width for memories in a.shape.memories) + 40 * a.shape.body,
        stored=lambda a: a.head + a.stored(ValuesFile),
        rows=lambda a: a.shape.vocabulary,
        memory=lambda a: 1.25 * a.weights + a.head + 16 * a.largest * a.shape.width,
    ),
    "corpus": Growth(
        stored=lambda a: sum(a.stored(Corpus, split=split) for split in a.splits),
        memory=lambda a: 20 * a.splits["train"].text_bytes,  # lists and arrays per sentence, beside the text
    ),
    "triggers": Growth(
        work=lambda a: a.splits["train"].tokens * a.shape.body,
        stored=lambda a: a.settings.shards * a.triggers,
        memory=lambda a: a.passing + 3 * a.triggers,
        tokens=lambda a: a.splits["train"].tokens,
    ),
    "merge_triggers": Growth(
        work=lambda a: a.settings.shards * a.triggers,
        stored=lambda a: a.triggers,
        memory=lambda a: 5 * a.triggers,
        libraries="tables",
    ),
    "sampled_prefixes": Growth(
        work=lambda a: a.prefixes * a.shape.body,
        stored=lambda a: a.sampled,
        memory=lambda a: a.passing + a.sampled * min(1, a.settings.activations.block_sentences / a.prefixes),
    ),
    "merge_sampled_prefixes": Growth(libraries="tables"),
    "keys_patterns": Growth(
        work=lambda a: a.keys,
        once=lambda a: min(a.splits["train"].sentences, PASSAGES * PASSAGE_SENTENCES),
        rows=lambda a: a.keys,
        memory=lambda a: a.triggers + 5000 * a.settings.keys.background_prefixes,
        libraries="tables",
    ),
    "keys_removal": Growth(
        work=lambda a: a.removal * min(a.settings.keys.removal_triggers, a.settings.triggers.per_key),
        rows=lambda a: a.keys,
        memory=lambda a: a.passing + a.triggers,
    ),
    "keys_precision": Growth(
        work=lambda a: a.removal * a.settings.triggers.per_key,
        memory=lambda a: a.passing + a.triggers + 4 * a.shape.parameters,
    ),
    "keys_summarize": Growth(memory=lambda a: a.triggers, libraries="tables"),
    "values_project": Growth(
        work=lambda a: a.memories * a.shape.vocabulary * a.shape.width,
        stored=lambda a: a.projections,
        rows=lambda a: a.memories,
        memory=lambda a: a.reading_out + a.triggers + a.projections + 8 * a.largest * a.shape.width,
    ),
    "values_summarize": Growth(memory=lambda a: a.triggers + 150 * a.memories, libraries="tables"),
    "composition_measure": Growth(
        work=lambda a: a.prefixes * a.layers * a.shape.vocabulary * a.shape.width,
        rows=lambda a: a.prefixes * a.layers,
        memory=lambda a: a.reading_out + a.projections + a.prefixes * (7 * a.largest + 8 * a.shape.width),
    ),
    "composition_summarize": Growth(memory=lambda a: 200 * a.prefixes * a.layers, libraries="tables"),
    "refinement_measure": Growth(
        work=lambda a: a.prefixes * a.layers * a.shape.vocabulary * a.shape.width,
        rows=lambda a: a.prefixes * a.layers,
        memory=lambda a: a.reading_out + 16 * a.prefixes * a.shape.width,
    ),
    "refinement_summarize": Growth(memory=lambda a: 3 * a.head + 100 * a.prefixes * a.layers),
    "write_settings": Growth(libraries=""),
    "report": Growth(rows=lambda a: a.settings.report.cards, libraries="tables"),
}
