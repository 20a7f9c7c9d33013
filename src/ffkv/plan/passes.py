"""Costs of the rules that make a model's and a corpus' files, and that run the model over the corpus."""

import math

from ffkv.activations.contest import WAITING
from ffkv.activations.prefix_file import READ_AT_ONCE
from ffkv.plan.disk import checkpoint_bytes, corpus_bytes, memories_bytes, model_bytes, prefixes_bytes
from ffkv.plan.work import LOADED, Cost, Run, batch_tokens, body_operations, head_operations, loading, running
from ffkv.settings import EMBEDDED

PROOF_TOKENS = 80  # of a passage that the model is proven on
PROOF_PASSES = 20  # of the blocks over them: each block is run again with its parts switched off
LEARNT_SECONDS = 4e-7  # of a byte of the text that the embedded vocabulary is learnt from
DATASETS_MEMORY = 5e7  # bytes of the library that reads hub data sets
SPLIT_MEMORY = 20  # bytes beside a byte of text, while it is split and tokenized: lists and arrays of small things


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
        "text": run.train.seconds + run.validation.seconds,
        "seconds": text * LEARNT_SECONDS,
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
    rows, source = [], run.settings.corpus.dataset
    for name, split in (("train", run.train), ("validation", run.validation)):
        work = {"text": split.seconds, "documents": float(source == EMBEDDED)}
        memory = SPLIT_MEMORY * split.size + (0 if source in (EMBEDDED, "files") else DATASETS_MEMORY)
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
        **running(run, text.tokens, text.square / max(text.length, 1)),
        "candidates": candidates * shards,
        **loading(run, shards),
    }
    written = shards * run.triggers_memory
    batch = 4 * batch_tokens(run) * (8 * max(shape.memories) + 12 * shape.width)
    state = shape.all_memories * (run.sides * t * 8 + 13 * 8 + 60)
    waiting = shape.all_memories * run.sides * WAITING * 12
    found = max(shape.memories) * t * 60 + 2 * run.triggers_memory  # the winners: a layer unpacked, and all together
    memory = LOADED * run.weights + batch + state + waiting + found + run.corpus_memory(text)
    return Cost("triggers", shards, 4, text.tokens, work, written, memory, "model", beside=state)


def merge_triggers(run: Run) -> Cost:
    """One shard after the other is set beside what is merged, and sorted: two stand in memory twice, with their order."""
    shards, size = run.settings.shards, run.triggers_memory
    places = 2 * run.shape.all_memories * run.settings.triggers.per_key
    work = {"bytes": size * (shards + 1), "seconds": shards * places * run.sides * 1e-7}
    return Cost("merge_triggers", 1, 1, 0, work, size, 5 * size + 16 * places, "store")


def prefixes(run: Run) -> Cost:
    """A forward pass of each sampled prefix alone; a block of them is gathered before it is written, beside its shard."""
    shape, shards = run.shape, run.settings.shards
    length = run.validation.length / 2 if run.settings.prefixes.sample == "sentence" else run.validation.prefix_length
    tokens = run.prefixes * (length + 1)
    size = prefixes_bytes(shape, run.prefixes)
    work = {
        **running(run, tokens, length),
        "bytes": shards * run.weights + 3 * size,  # blocks are written, read again, and written together
    }
    block = (
        min(run.settings.activations.block_sentences, run.prefixes)
        * 4
        * (shape.all_memories + 4 * shape.width * shape.layers)
    )
    batch = 4 * batch_tokens(run) * (6 * max(shape.memories) + 12 * shape.width)
    memory = LOADED * run.weights + block + batch + run.corpus_memory(run.validation)
    return Cost("prefixes", shards, 4, tokens, work, size, memory, "model", beside=size / shards)


def merge_prefixes(run: Run) -> Cost:
    """A copy of the shards, some rows at a time."""
    size = prefixes_bytes(run.shape, run.prefixes)
    shard = run.prefixes / run.settings.shards
    memory = 4 * (1.4 * READ_AT_ONCE * run.shape.all_memories + shard * run.shape.width)
    return Cost("merge_prefixes", 1, 1, 0, {"bytes": 2 * size}, size, memory, "store")
