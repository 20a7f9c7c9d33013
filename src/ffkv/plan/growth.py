"""How much a run has to do, and what the seconds, the files and the memory of each rule grow with."""

from typing import NamedTuple

import torch

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


class Growth(NamedTuple):
    """What the costs of a rule grow with: names of amounts, see `measure_amounts`. "" for what does not grow.

    Attributes:
        work: of the seconds of all jobs, but for a constant part of each job.
        memory: bytes of one job, as far as they grow.
        stored: bytes of all outputs, as far as their descriptions tell.
        rows: of the rest of the outputs.
        once: of the constant part of each job.
        libraries: what a job imports, see `jobs.LIBRARIES`.
    """

    work: str = ""
    memory: str = ""
    stored: str = ""
    rows: str = ""
    once: str = ""
    libraries: str = "model"


RULES = {
    "train": Growth("training", "trained", "checkpoint"),
    "model": Growth("proof", "loading", "model", "vocabulary"),
    "corpus": Growth("", "encoding", "corpus"),
    "triggers": Growth("pass", "passing", "trigger_shards"),
    "merge_triggers": Growth("trigger_shards", "merging", "triggers", libraries="tables"),
    "sampled_prefixes": Growth("prefix_pass", "passing", "sampled"),
    "merge_sampled_prefixes": Growth(libraries="tables"),
    "keys_patterns": Growth("keys", "triggers", rows="keys", once="passages", libraries="tables"),
    "keys_removal": Growth("removal", "passing", rows="keys"),
    "keys_precision": Growth("precision", "passing"),
    "keys_summarize": Growth(memory="triggers", libraries="tables"),
    "values_project": Growth("values_read", "reading", "projections", "memories", libraries="head"),
    "values_summarize": Growth(memory="triggers", libraries="tables"),
    "composition_measure": Growth("states_read", "reading", rows="states", libraries="head"),
    "composition_summarize": Growth(memory="states", libraries="tables"),
    "refinement_measure": Growth("states_read", "reading", rows="states", libraries="head"),
    "refinement_summarize": Growth(memory="reading", libraries="head"),
    "report": Growth(memory="triggers", rows="cards", libraries="tables"),
}


def measure_amounts(settings: Settings, shape: Shape, splits: dict[str, Split], signed: bool) -> dict[str, float]:
    """How much a run has to do: files and memory in bytes, work in operations, the rest in numbers of things.

    Args:
        settings: its settings.
        shape: the shape of its model.
        splits: the sizes of "train" and "validation".
        signed: whether coefficients can be negative.
    """
    train, validation, made, keys = splits["train"], splits["validation"], settings.embedded, settings.keys
    layers, memories, largest, t = (
        len(shape.memories),
        sum(shape.memories),
        max(shape.memories),
        settings.triggers.per_key,
    )
    prefixes = int(min(settings.prefixes.count, validation.tokens - validation.sentences))
    sizes = {"layer": layers, "memory": memories, "largest_layer": largest, "width": shape.width, "rank": t}
    sizes |= {"vocabulary": shape.vocabulary, "prefix": prefixes, "bin": len(HISTOGRAM_EDGES) - 1}
    triggers = stored_bytes(Triggers, sizes, () if signed and settings.triggers.negative else ("negative",))
    sampled = stored_bytes(SampledPrefixes, sizes, tuple({"x", "factor", "end"} - {*settings.prefixes.keep}))
    values, sizes["rank"] = stored_bytes(ValuesFile, sizes), min(settings.values.top_tokens, shape.vocabulary)
    projections, corpus, itemsize = stored_bytes(Projections, sizes), 0, getattr(torch, shape.dtype).itemsize
    for split in splits.values():
        sizes |= {"token": int(split.tokens), "sentence": int(split.sentences), "document": int(split.documents)}
        sizes |= {"text_byte": int(split.text_bytes), "document_name_byte": 40 * int(split.documents)}
        corpus += stored_bytes(Corpus, sizes)
    weights, head, states = shape.parameters * itemsize, shape.outside * itemsize, prefixes * layers
    amounts: dict[str, float] = {
        "vocabulary": shape.vocabulary,
        "memories": memories,
        "states": states,
        "cards": settings.report.cards,
    }
    amounts |= {
        "triggers": triggers,
        "trigger_shards": settings.shards * triggers,
        "sampled": sampled,
        "corpus": corpus,
    }
    amounts |= {"checkpoint": 4 * shape.parameters, "model": head + values, "projections": projections}
    # Tokens, and work.
    trained = made.steps * made.batch_tokens
    measured = (min(MEASUREMENTS, made.steps) - 1) * min(SAMPLE_TOKENS, validation.tokens) + validation.tokens
    chosen = sum(min(keys.per_layer, size) for size in shape.memories)
    key_pass = chosen * shape.body * (layers + 1) / layers  # a key's pass ends at its own layer
    read = shape.vocabulary * shape.width
    amounts |= {"train tokens": trained, "triggers tokens": train.tokens, "keys": chosen}
    amounts |= dict.fromkeys(("train text", "corpus text"), train.seconds + validation.seconds)
    amounts |= {"training": (3 * trained + measured) * (shape.body + shape.outside), "pass": train.tokens * shape.body}
    amounts |= {"prefix_pass": prefixes * shape.body, "passages": min(train.sentences, PASSAGES * PASSAGE_SENTENCES)}
    amounts |= {"removal": key_pass * min(keys.removal_triggers, t), "precision": key_pass * t}
    amounts |= {"values_read": memories * read, "states_read": states * read}
    amounts |= {"proof": sum(size * size * shape.width for size in shape.memories) + 40 * shape.body}
    # Memory of a job. Sentences that are encoded are lists and arrays, beside the text.
    encoding = 20 * train.text_bytes
    batch = 4 * settings.activations.batch_tokens * (8 * largest + 12 * shape.width) + 24 * train.sentences
    block = max(3 * triggers, sampled * min(1, settings.activations.block_sentences / max(prefixes, 1)))
    logits = 3 * min(CHUNK_BYTES, 4 * shape.vocabulary * largest) + 4 * prefixes * (2 * largest + 4 * shape.width)
    amounts |= {"trained": 16 * shape.parameters + encoding, "encoding": encoding, "merging": 5 * triggers}
    amounts |= {
        "loading": 1.25 * weights + head + 16 * largest * shape.width,
        "passing": 1.25 * weights + batch + block,
    }
    return amounts | {"reading": head + logits + triggers + projections}
