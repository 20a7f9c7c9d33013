"""What each rule of a run costs, from the model's shape, the corpus and the settings. Pure; every formula with its reason is in docs/plan.md.

L layers, M memories in all, d width, V vocabulary, T tokens, t triggers a key, P sampled prefixes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ffkv.activations.prefix_data import READ_AT_ONCE
from ffkv.model.head import CHUNK_BYTES
from ffkv.plan.disk import (
    checkpoint_bytes,
    corpus_bytes,
    memories_bytes,
    model_bytes,
    prefixes_bytes,
    projections_bytes,
    report_bytes,
    table_bytes,
    triggers_bytes,
)
from ffkv.plan.shape import Shape
from ffkv.plan.text import Split
from ffkv.settings import EMBEDDED, Settings

PROOF_TOKENS = 80  # of a passage that the model is proven on
PROOF_PASSES = 30  # of the blocks over them: each block is run again with its parts switched off
# Seconds of one thread on the machine where this was fitted, of what no short measurement stands for.
KEY_SECONDS = 0.011  # patterns in the trigger examples of a key and in its random prefixes: 4,000 draws
BACKGROUND_SECONDS = 5e-5  # the features of a random prefix
PASSAGE_SECONDS = 4e-4  # of a passage of ten sentences that topics are learnt from
SORTED_SECONDS = 6e-8  # of a coefficient that composition sorts
DESCRIBED_SECONDS = 6e-5  # of the words of a sampled prefix
LEARNT_SECONDS = 4e-7  # of a byte of the text that the embedded vocabulary is learnt from
REPORT_SECONDS, CARD_SECONDS = 1.2, 0.01
LOADED = 1.25  # peak of loading weights, over the weights
DATASETS_MEMORY = 5e7  # bytes of the library that reads files and hub data sets
SPLIT_MEMORY = 40  # bytes beside a byte of text, while it is split and tokenized: lists and arrays of small things
PATTERN_MEMORY = 9000  # bytes a background prefix leaves in counters and features
DRAWN_MEMORY = 2**26  # the draws that keys are compared with


@dataclass(frozen=True)
class Cost:
    """What all jobs of a rule cost together, and one of them at its peak.

    threads: that a job asks for. tokens: that the model runs. work: amount of each kind of work, see `machine.Rates`.
    written: bytes of files that stay. memory: bytes of one job, above what its libraries hold.
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
    def groups(self) -> int:
        """Groups of layers that hold any."""
        return min(self.settings.layer_groups, self.shape.layers)

    @property
    def group_memories(self) -> float:
        """Memories of one group of layers."""
        return max(self.shape.memories) * math.ceil(self.shape.layers / self.settings.layer_groups)

    def logits(self, vectors: float) -> float:
        """Bytes of the logits of so many vectors that stand at a time, with what is made of them and those before them."""
        return 4 * min(CHUNK_BYTES, 4 * self.shape.vocabulary * vectors)

    @property
    def head_weights(self) -> float:
        """Bytes of the model without its blocks."""
        return self.shape.outside * self.shape.itemsize

    def corpus_memory(self, split: Split) -> float:
        """Bytes of a split that has been read from its file."""
        return corpus_bytes(split, self.shape)

    @property
    def triggers_memory(self) -> float:
        """Bytes of `triggers.h5` in memory."""
        return triggers_bytes(self.shape, self.settings.triggers.per_key, self.sides)


def costs(run: Run) -> list[Cost]:
    """One row a rule, in the order of the workflow. `corpus` has one for each split."""
    made = [cost(run) for cost in RULES if cost is not train or run.settings.model.checkpoint == EMBEDDED]
    return [row for rows in made for row in (rows if isinstance(rows, list) else [rows])]


def body_operations(shape: Shape, tokens: float, length: float) -> float:
    """Of the blocks: two a matrix entry and token, and attention's scores and mixing with the tokens before it."""
    return tokens * (2 * shape.body + 4 * (length / 2) * shape.width * shape.layers)


def head_operations(shape: Shape, vectors: float) -> float:
    """Of reading vectors out: two an entry of the output matrices."""
    return 2 * shape.head * vectors


def loading(run: Run, jobs: int) -> dict[str, float]:
    """Each job that runs the model reads its weights, checks them and takes their hash."""
    return {"bytes": jobs * run.weights}


def train(run: Run) -> Cost:
    """The embedded model: forward and backward take three times a forward pass; AdamW keeps four copies of the weights."""
    made, shape = run.settings.embedded, run.shape
    tokens = made.steps * made.batch_tokens
    text = run.train.size + run.validation.size
    activations = (
        4 * made.batch_tokens * (20 * shape.width * shape.layers + 3 * sum(shape.memories) + 4 * shape.vocabulary)
    )
    work = {
        "training": 3 * (body_operations(shape, tokens, run.train.length) + head_operations(shape, tokens)),
        "seconds": run.train.seconds + run.validation.seconds + text * LEARNT_SECONDS,
        "documents": 2.0,
    }
    memory = 4 * 4 * shape.parameters + activations + SPLIT_MEMORY * text
    return Cost("train", 1, 4, tokens, work, checkpoint_bytes(shape), memory, "all")


def model(run: Run) -> Cost:
    """Proof, hash, values, head. Values are asked for with unit vectors, twice: for the proof and for the file."""
    shape = run.shape
    values = sum(2 * d_m * d_m * shape.width for d_m in shape.memories)
    work = {
        "body": 2 * values + PROOF_PASSES * body_operations(shape, PROOF_TOKENS, PROOF_TOKENS / 2),
        "head": head_operations(shape, 3 * PROOF_TOKENS),
        "bytes": 2 * run.weights,
    }
    largest = max(shape.memories)
    layer = 4 * (4 * largest * shape.width + 1024 * largest)
    states = 4 * PROOF_TOKENS * (shape.all_memories * 2 + 12 * shape.width * shape.layers + 4 * shape.vocabulary)
    written = model_bytes(shape) + memories_bytes(shape)
    return Cost(
        "model", 1, 4, PROOF_TOKENS, work, written, LOADED * run.weights + layer + states + run.head_weights, "model"
    )


def corpus(run: Run) -> list[Cost]:
    """Splitting and tokenizing, timed on the sample; every sentence stands in memory until the file is written."""
    rows = []
    for name, split in (("train", run.train), ("validation", run.validation)):
        documents = 1.0 if run.settings.corpus.dataset == EMBEDDED else 0.0
        work = {"seconds": split.seconds, "documents": documents}
        memory = SPLIT_MEMORY * split.size + (0 if documents else DATASETS_MEMORY)
        rows.append(Cost(f"corpus ({name})", 1, 1, 0, work, corpus_bytes(split, run.shape), memory, "model"))
    return rows


def triggers(run: Run) -> Cost:
    """One pass of the blocks over the train split, without the head; each coefficient is counted and competes."""
    shape, text, t = run.shape, run.train, run.settings.triggers.per_key
    candidates = shape.all_memories * t * (1 + math.log(max(text.sentences / t, 1))) * run.sides
    if not run.settings.triggers.one_prefix_per_sentence:
        candidates = shape.all_memories * t * (1 + math.log(max(text.tokens / t, 1))) * run.sides
    shards = run.settings.shards
    work = {
        "body": body_operations(shape, text.tokens, text.square / max(text.length, 1)),
        "coefficients": text.tokens * shape.all_memories * (1 + 0.4 * (run.sides - 1)),
        "candidates": candidates * shards,
        **loading(run, shards),
    }
    written = shards * run.triggers_memory
    batch = 4 * batch_tokens(run) * (8 * max(shape.memories) + 12 * shape.width)
    state = shape.all_memories * (run.sides * t * 8 + 13 * 8 + 60)
    found = shape.all_memories * t * 60 + run.triggers_memory  # the winners, while they are unpacked and written
    memory = LOADED * run.weights + batch + state + found + run.corpus_memory(text)
    return Cost("triggers", shards, 4, text.tokens, work, written, memory, "model")


def merge_triggers(run: Run) -> Cost:
    """All shards are read, set side by side and sorted: they stand in memory twice, with the order beside them."""
    shards, size = run.settings.shards, run.triggers_memory
    places = run.shape.all_memories * run.settings.triggers.per_key * shards
    work = {"bytes": size * (shards + 1), "seconds": places * run.sides * 1e-7}
    return Cost("merge_triggers", 1, 1, 0, work, size, (2 * shards + 1) * size + 16 * places, "store")


def prefixes(run: Run) -> Cost:
    """A forward pass of each sampled prefix alone; a block of them is gathered before it is written."""
    shape, shards = run.shape, run.settings.shards
    length = run.validation.length / 2 if run.settings.prefixes.sample == "sentence" else run.validation.prefix_length
    tokens = run.prefixes * (length + 1)
    size = prefixes_bytes(shape, run.prefixes)
    work = {
        "body": body_operations(shape, tokens, length),
        **loading(run, shards),
        "bytes": shards * run.weights + size,
    }
    block = (
        min(run.settings.activations.block_sentences, run.prefixes)
        * 4
        * (shape.all_memories + 4 * shape.width * shape.layers)
    )
    batch = 4 * batch_tokens(run) * (6 * max(shape.memories) + 12 * shape.width)
    memory = LOADED * run.weights + block + batch + run.corpus_memory(run.validation)
    return Cost("prefixes", shards, 4, tokens, work, size, memory, "model")


def merge_prefixes(run: Run) -> Cost:
    """A copy of the shards, some rows at a time."""
    size = prefixes_bytes(run.shape, run.prefixes)
    shard = run.prefixes / run.settings.shards
    memory = 4 * (1.4 * READ_AT_ONCE * run.shape.all_memories + shard * run.shape.width)
    return Cost("merge_prefixes", 1, 1, 0, {"bytes": 2 * size}, size, memory, "store")


def key_patterns(run: Run) -> Cost:
    """Counting features in random prefixes, learning topics, then every key beside 4,000 random ones."""
    made, text = run.settings.keys, run.train
    keys = run.shape.layers * min(made.per_layer, min(run.shape.memories))
    background = min(made.background_prefixes, text.prefixes)
    once = background * BACKGROUND_SECONDS + min(20_000, text.sentences / 10) * PASSAGE_SECONDS
    work = {"seconds": run.groups * once + keys * KEY_SECONDS * made.pattern_triggers / 25}
    memory = run.corpus_memory(text) + run.triggers_memory + background * PATTERN_MEMORY + DRAWN_MEMORY
    return Cost("key_patterns", run.settings.layer_groups, 1, 0, work, table_bytes("patterns", keys), memory, "keys")


def key_removal(run: Run) -> Cost:
    """Four rows a trigger (whole, without the first, the last, another token), up to the key's own layer: half of all."""
    shape, made = run.shape, run.settings.keys
    keys = shape.layers * min(made.per_layer, min(shape.memories))
    rows = 4 * keys * min(made.removal_triggers, run.settings.triggers.per_key, run.train.sentences)
    length = run.train.prefix_length
    tokens = rows * (length + 1)
    passed = (shape.layers + 1) / (2 * shape.layers)
    work = {"body": passed * body_operations(shape, tokens, length), **loading(run, run.settings.layer_groups)}
    work["seconds"] = rows * 2e-5
    batch = 4 * batch_tokens(run) * (6 * max(shape.memories) + 12 * shape.width)
    memory = LOADED * run.weights + batch + rows / shape.layers * (8 * length + 300)
    memory += run.corpus_memory(run.train) + run.triggers_memory
    return Cost(
        "key_removal",
        run.settings.layer_groups,
        4,
        tokens * passed,
        work,
        table_bytes("removal", 3 * keys),
        memory,
        "all",
    )


def keys(run: Run) -> Cost:
    """Tables to tables."""
    return Cost("keys", memory=run.triggers_memory, written=table_bytes("csv", 40 * run.shape.layers), libraries="keys")


def project_values(run: Run) -> Cost:
    """Every value through the head; of its logits the highest and the lowest are kept."""
    shape, k = run.shape, min(run.settings.values.top_tokens, run.shape.vocabulary)
    work = {
        "head": head_operations(shape, shape.all_memories),
        "kept": shape.all_memories * shape.vocabulary,
        "bytes": 4 * shape.all_memories * shape.width,
    }
    memory = run.head_weights + run.group_memories * (8 * shape.width + 32 * k) + run.logits(max(shape.memories))
    written = projections_bytes(shape, k, run.settings.layer_groups)
    return Cost("project_values", run.settings.layer_groups, 4, 0, work, written, memory, "model")


def compare_values(run: Run) -> Cost:
    """Every value through the head once more, for the rank of the token that follows its key's first trigger."""
    shape, k = run.shape, min(run.settings.values.top_tokens, run.shape.vocabulary)
    work = {
        "head": head_operations(shape, shape.all_memories),
        "read": shape.all_memories * shape.vocabulary,
        "bytes": 4 * shape.all_memories * shape.width + run.groups * run.triggers_memory,
    }
    memory = (
        run.head_weights
        + run.group_memories * (8 * shape.width + 16 * k)
        + run.logits(max(shape.memories))
        + 2.5 * run.triggers_memory
    )
    written = table_bytes("memories", shape.all_memories)
    return Cost("compare_values", run.settings.layer_groups, 4, 0, work, written, memory, "model and tables")


def values(run: Run) -> Cost:
    """Tables to tables; the prefixes of predictive values come from the train split."""
    memory = run.triggers_memory + run.corpus_memory(run.train) + 150 * run.shape.all_memories
    work = {"seconds": 1000 * run.shape.all_memories * 2e-8}
    return Cost("values", work=work, memory=memory, written=table_bytes("csv", 400))


def measure_composition(run: Run) -> Cost:
    """y of every prefix and layer through the head; the contributions of each prefix are sorted."""
    shape, vectors = run.shape, run.prefixes * run.shape.layers
    work = {
        "head": head_operations(shape, vectors),
        "read": vectors * shape.vocabulary,
        "bytes": 4 * run.prefixes * (shape.all_memories + shape.width * shape.layers),
        "seconds": run.prefixes * (shape.all_memories * SORTED_SECONDS + run.groups * DESCRIBED_SECONDS),
    }
    largest = max(shape.memories)
    layer = run.prefixes * (7 * largest + 8 * shape.width) + 512 * largest * 8 * 5
    memory = run.head_weights + run.logits(run.prefixes) + layer + run.corpus_memory(run.validation)
    written = table_bytes("composition", vectors)
    return Cost("measure_composition", run.settings.layer_groups, 4, 0, work, written, memory, "model and tables")


def composition(run: Run) -> Cost:
    """Tables to tables."""
    return Cost(
        "composition", memory=200 * run.prefixes * run.shape.layers, written=table_bytes("csv", 10 * run.shape.layers)
    )


def measure_refinement(run: Run) -> Cost:
    """r, y and o of every prefix and layer through the head, r once more for a probability, and o^L in each job."""
    shape, vectors = run.shape, run.prefixes * run.shape.layers
    final = run.groups * run.prefixes
    work = {
        "head": head_operations(shape, 4 * vectors + final),
        "read": (3 * vectors + final) * shape.vocabulary,
        "normalized": vectors * shape.vocabulary,
        "bytes": 12 * vectors * shape.width,
    }
    memory = run.head_weights + run.logits(run.prefixes) + 16 * run.prefixes * shape.width
    written = table_bytes("refinement", vectors)
    return Cost("measure_refinement", run.settings.layer_groups, 4, 0, work, written, memory, "model and tables")


def refinement(run: Run) -> Cost:
    """Tables to tables; closeness of tokens takes the output embedding, and it divided by its norms."""
    embedding = 4 * run.shape.head
    memory = 3 * embedding + 12 * 10_000 * run.shape.width + 100 * run.prefixes * run.shape.layers
    work = {"bytes": 3 * embedding}
    return Cost("refinement", work=work, memory=memory, written=table_bytes("csv", 250), libraries="model")


def write_settings(run: Run) -> Cost:
    """A line."""
    return Cost("write_settings", written=1400, libraries="")


def report(run: Run) -> Cost:
    """Figures, tables and cards."""
    work = {"seconds": REPORT_SECONDS + CARD_SECONDS * run.settings.report.cards}
    memory = run.triggers_memory + run.corpus_memory(run.train) + run.corpus_memory(run.validation)
    return Cost("report", work=work, memory=memory, written=report_bytes(run.settings.report.cards), libraries="keys")


def batch_tokens(run: Run) -> float:
    """Tokens of a batch: a sentence longer than a batch is one of its own."""
    return max(run.settings.activations.batch_tokens, 3 * run.train.length)


RULES: tuple[Callable[[Run], Cost | list[Cost]], ...] = (
    train,
    model,
    corpus,
    triggers,
    merge_triggers,
    prefixes,
    merge_prefixes,
    key_patterns,
    key_removal,
    keys,
    project_values,
    compare_values,
    values,
    measure_composition,
    composition,
    measure_refinement,
    refinement,
    write_settings,
    report,
)
