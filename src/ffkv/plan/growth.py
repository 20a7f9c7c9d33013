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
        model: whether a job imports torch.
    """

    work: str = ""
    memory: str = ""
    stored: str = ""
    rows: str = ""
    once: str = ""
    model: bool = True


RULES = {
    "train": Growth("training", "trained", "checkpoint"),
    "model": Growth("proof", "loading", "model", "vocabulary"),
    "corpus": Growth("", "encoding", "corpus"),
    "triggers": Growth("pass", "passing", "trigger_shards"),
    "merge_triggers": Growth("trigger_shards", "merging", "triggers", model=False),
    "sampled_prefixes": Growth("prefix_pass", "passing", "sampled"),
    "merge_sampled_prefixes": Growth(model=False),
    "keys_patterns": Growth("keys", "triggers", rows="keys", once="passages", model=False),
    "keys_removal": Growth("removal", "passing", rows="keys"),
    "keys_precision": Growth("precision", "passing"),
    "keys_summarize": Growth(memory="triggers", model=False),
    "values_project": Growth("values_read", "reading", "projections", "memories"),
    "values_summarize": Growth(memory="triggers", model=False),
    "composition_measure": Growth("states_read", "reading", rows="states"),
    "composition_summarize": Growth(memory="states", model=False),
    "refinement_measure": Growth("states_read", "reading", rows="states"),
    "refinement_summarize": Growth(memory="reading"),
    "report": Growth(memory="triggers", rows="cards", model=False),
}


class Planned(NamedTuple):
    """What the costs of a run follow from.

    Attributes:
        settings: its settings.
        shape: the shape of its model.
        splits: the sizes of "train" and "validation".
    """

    settings: Settings
    shape: Shape
    splits: dict[str, Split]


def measure_amounts(run: Planned, signed: bool) -> dict[str, float]:
    """How much a run has to do: files and memory in bytes, work in operations, the rest in numbers of things.

    Args:
        run: the run.
        signed: whether coefficients can be negative.
    """
    settings, shape, splits = run
    train, validation, made, keys = splits["train"], splits["validation"], settings.embedded, settings.keys
    layers, memories, largest = len(shape.memories), sum(shape.memories), max(shape.memories)
    t, prefixes = settings.triggers.per_key, int(min(settings.prefixes.count, validation.tokens - validation.sentences))
    sizes = {"layer": layers, "memory": memories, "largest_layer": largest, "width": shape.width, "rank": t}
    sizes |= {"vocabulary": shape.vocabulary, "prefix": prefixes, "bin": len(HISTOGRAM_EDGES) - 1}
    top = sizes | {"rank": min(settings.values.top_tokens, shape.vocabulary)}
    triggers = stored_bytes(Triggers, sizes, () if signed and settings.triggers.negative else ("negative",))
    sampled = stored_bytes(SampledPrefixes, sizes, tuple({"x", "factor", "end"} - {*settings.prefixes.keep}))
    projections, itemsize = stored_bytes(Projections, top), getattr(torch, shape.dtype).itemsize
    corpus = 0
    for split in splits.values():
        sizes |= {"token": int(split.tokens), "sentence": int(split.sentences), "document": int(split.documents)}
        sizes |= {"text_byte": int(split.text_bytes), "document_name_byte": 40 * int(split.documents)}
        corpus += stored_bytes(Corpus, sizes)
    weights, head = shape.parameters * itemsize, shape.outside * itemsize
    batch = 4 * settings.activations.batch_tokens * (8 * largest + 12 * shape.width)
    block = sampled * min(1, settings.activations.block_sentences / max(prefixes, 1))
    logits, states = 3 * min(CHUNK_BYTES, 4 * shape.vocabulary * largest), prefixes * layers
    measured = (min(MEASUREMENTS, made.steps) - 1) * min(SAMPLE_TOKENS, validation.tokens) + validation.tokens
    chosen = sum(min(keys.per_layer, size) for size in shape.memories)
    key_pass = chosen * shape.body * (layers + 1) / layers  # a key's pass ends at its own layer
    return {
        "train tokens": made.steps * made.batch_tokens,
        "triggers tokens": train.tokens,
        "keys": chosen,
        "memories": memories,
        "vocabulary": shape.vocabulary,
        "states": states,
        "cards": settings.report.cards,
        "passages": min(train.sentences, PASSAGES * PASSAGE_SENTENCES),
        "training": (3 * made.steps * made.batch_tokens + measured) * (shape.body + shape.outside),
        "proof": sum(size * size * shape.width for size in shape.memories) + 40 * shape.body,
        "pass": train.tokens * shape.body,
        "prefix_pass": prefixes * shape.body,
        "removal": key_pass * min(keys.removal_triggers, t),
        "precision": key_pass * t,
        "values_read": memories * shape.vocabulary * shape.width,
        "states_read": states * shape.vocabulary * shape.width,
        "checkpoint": 4 * shape.parameters,
        "model": head + stored_bytes(ValuesFile, sizes),
        "corpus": corpus,
        "triggers": triggers,
        "trigger_shards": settings.shards * triggers,
        "sampled": sampled,
        "projections": projections,
        "trained": 16 * shape.parameters + 20 * train.text_bytes,
        "encoding": 20 * train.text_bytes,  # lists and arrays per sentence, beside the text
        "loading": 1.25 * weights + head + 16 * largest * shape.width,
        "passing": 1.25 * weights + batch + 24 * train.sentences + max(3 * triggers, block),
        "merging": 5 * triggers,
        "reading": head + logits + triggers + projections + 4 * prefixes * (2 * largest + 4 * shape.width),
    }
