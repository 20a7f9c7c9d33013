"""What each rule has to do, store and hold: the amounts that its seconds, files and memory grow with."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ffkv.activations.prefix_file import SampledPrefixes, storage
from ffkv.activations.trigger_file import HISTOGRAM_EDGES, PART_BYTES, Triggers
from ffkv.base.files.datasets import datasets_of, stored_bytes
from ffkv.base.settings import Comparison
from ffkv.branches.keys.topics import PASSAGE_SENTENCES, PASSAGES
from ffkv.branches.values.projections import Projections
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.embedded.training import MEASUREMENTS, SAMPLE_TOKENS
from ffkv.model.head.head import CHUNK_BYTES
from ffkv.model.values_file import ValuesFile
from ffkv.plan.known import Known
from ffkv.plan.text import Split
from ffkv.run.comparison.compared import find_memories_by
from ffkv.run.comparison.same_memories import BY_CHANCE


class Amounts(NamedTuple):
    """How much a rule has to do. 0 is what does not grow with the run.

    What counts of `work`, `once` and `stored` is how many times as much the run has as its trial, so a factor that both have is
    left out.

    Attributes:
        work: operations or things, for all jobs. Their seconds come on top of a constant part of each job.
        once: things that each job goes through with an open bar, whatever its layers are.
        memory: bytes of one job, as far as they grow.
        stored: bytes of all outputs by their descriptions, or rows of those that have none.
        tokens: tokens that the model reads.
        text: seconds to read, split and tokenize text, for all jobs.
    """

    work: float = 0.0
    once: float = 0.0
    memory: float = 0.0
    stored: float = 0.0
    tokens: float = 0.0
    text: float = 0.0


def measure_amounts(run: Known) -> dict[str, Amounts]:
    """How much each rule of a run has to do."""
    settings, shape, train, validation = run.settings, run.shape, run.text["train"], run.text["validation"]
    made, keys, per_key, prefixes = settings.embedded, settings.keys, settings.triggers.per_key, run.sampled
    layers, memories, largest = len(shape.memories), sum(shape.memories), max(shape.memories)
    states, text = prefixes * layers, train.seconds + validation.seconds

    # Bytes of files, by their descriptions.
    sizes = {"layer": layers, "memory": memories, "width": shape.width, "rank": per_key}
    sizes |= {"vocabulary": shape.vocabulary, "prefix": prefixes, "bin": len(HISTOGRAM_EDGES) - 1}
    triggers = stored_bytes(Triggers, sizes, () if shape.signed and settings.triggers.negative else ("negative",))
    held, sampled = _measure_sample(run)
    values = stored_bytes(ValuesFile, sizes)
    projections = stored_bytes(Projections, sizes | {"rank": min(settings.values.top_tokens, shape.vocabulary)})
    corpus = sum(_corpus_bytes(split) for split in run.text.values())

    # Operations. A key's pass ends at its own layer.
    trained = 3 * made.steps * made.batch_tokens + validation.tokens
    trained += (min(MEASUREMENTS, made.steps) - 1) * min(SAMPLE_TOKENS, validation.tokens)
    chosen = sum(min(keys.per_layer, size) for size in shape.memories)
    key_pass = chosen * shape.body * (layers + 1) / layers
    # Of prefixes without the last or the first token, those that begin alike are read once; those without another one are not.
    removed = chosen * min(keys.removal_triggers, per_key)
    alone = removed * train.tokens / max(train.sentences, 1) / 2
    removal = (2 * layers * _tokens_read(removed // layers, train) + alone) * shape.body * (layers + 1) / layers
    through_head = shape.vocabulary * shape.width

    # Bytes of memory. Sentences that are encoded are lists and arrays, beside the text.
    itemsize = getattr(torch, shape.dtype).itemsize
    weights, head, encoding = shape.parameters * itemsize, shape.outside * itemsize, 20 * train.text_bytes
    passing = 1.25 * weights + shape.batch_bytes(settings) + 24 * train.sentences
    merged = min(triggers, PART_BYTES)
    # In float32 there is one block or one embedding at a time, beside the weights as they are.
    single = 4 * max(shape.body / layers, through_head)
    logits = 3 * min(CHUNK_BYTES, 4 * shape.vocabulary * largest) + 4 * prefixes * (2 * largest + 4 * shape.width)
    reading = head + logits + triggers + projections

    summing = Amounts(memory=triggers)
    measuring = Amounts(states * through_head, memory=reading, stored=states)
    return {
        "write_settings": Amounts(),
        "resolve_commit": Amounts(),
        "train": Amounts(
            trained * (shape.body + shape.outside),
            memory=16 * shape.parameters + encoding,
            stored=shape.parameters,
            tokens=made.steps * made.batch_tokens,
            text=text,
        ),
        "model": Amounts(  # values are columns of the weights
            shape.body,
            memory=1.25 * weights + head + 16 * largest * shape.width,
            stored=head + values,
        ),
        "corpus": Amounts(memory=encoding, stored=corpus, text=text),
        "triggers": Amounts(
            train.tokens * shape.body,
            memory=passing + 3 * triggers,
            stored=(settings.shards + (settings.shards > 1)) * triggers,
            tokens=train.tokens,
        ),
        # The merged file counts among those of `triggers`, whose shards stay until then. A single shard becomes this file.
        "merge_triggers": Amounts(settings.shards * triggers, memory=6 * merged),
        "sampled_prefixes": Amounts(
            _tokens_read(prefixes, validation) * shape.body, memory=passing + held, stored=sampled
        ),
        "merge_sampled_prefixes": Amounts(),
        "keys_patterns": Amounts(chosen, min(train.sentences, PASSAGES * PASSAGE_SENTENCES), triggers, stored=chosen),
        "keys_removal": Amounts(removal, memory=passing + triggers, stored=chosen),
        "keys_precision": Amounts(key_pass * per_key, memory=passing + triggers + single),
        "keys_summarize": summing,
        "values_project": Amounts(memories * through_head, memory=reading, stored=projections),
        "values_summarize": summing,
        "composition_measure": measuring,
        "composition_summarize": Amounts(memory=states),
        "refinement_measure": measuring,
        "refinement_summarize": Amounts(memory=reading),
        "intervention_measure": Amounts(
            _intervene(run),
            memory=passing + triggers + logits + head + single + 8 * largest * shape.width,
            stored=settings.intervention.memories * layers,
        ),
        "intervention_summarize": Amounts(memory=projections, stored=settings.intervention.memories * layers),
        "report": summing._replace(stored=settings.report.cards),
    }


def measure_comparison(comparison: Comparison, name: str, runs: Sequence[Known]) -> dict[str, Amounts]:
    """How much each rule of a comparison has to do, of `runs` in their order.

    Raises:
        UserError: the settings ask for memories by number, and the models have different shapes.
    """
    shape, *others = (run.shape for run in runs)
    memories, prefixes, per_key = sum(shape.memories), runs[0].sampled, runs[0].settings.triggers.per_key
    found_by = find_memories_by(comparison, [(run.shape.width, run.shape.memories) for run in runs], name)
    measured = Amounts()
    if found_by == "by_number":  # beside the first run and the last one, and beside permuted memories
        rows, held = 2 * len(runs) * memories, 24 * memories * (shape.width + per_key)  # of three runs
        chance = 2 * len(runs) * comparison.permutations * sum(min(BY_CHANCE, size) for size in shape.memories)
        measured = Amounts((rows + chance) * (per_key**2 + shape.width), memory=held, stored=rows)
    if found_by == "by_correlation":  # with each layer, and with a rotated one
        sizes = [size for other in others for size in other.memories]
        sampled = min(comparison.sampled_memories, memories)
        work = sum(prefixes * size * (2 * sampled + size) + size**3 for size in sizes)
        measured = Amounts(work, memory=max(16 * prefixes * size + 12 * size**2 for size in sizes))
    return {"comparison_measure": measured, "comparison_report": Amounts(memory=measured.memory / 10)}


def _tokens_read(prefixes: int, split: Split) -> float:
    """Tokens that the model reads of sampled prefixes: of each sentence the longest one, which the others begin.

    A sentence has k of them on average, in number as Poisson has it, and each length is as likely as any other. The longest one
    is then expected to have 1 - (1 - exp(-k)) / k of the sentence.
    """
    k = max(prefixes, 1) / max(split.sentences, 1)
    return split.tokens * (1 - (1 - math.exp(-k)) / k)


def _intervene(run: Known) -> float:
    """Operations of the interventions: of the passes over prefixes, of the blocks after each layer, and of the head.

    After the last layer no block runs, and the direct effect is the total one.
    """
    its, shape, train, layers = run.settings.intervention, run.shape, run.text["train"], len(run.shape.memories)
    tokens = train.tokens / max(train.sentences, 1) / 2  # of a prefix
    blocks, head = shape.body * (layers - 1) / 2, shape.vocabulary * shape.width  # after all layers; once
    prefixes = its.memories * its.examples * (1 + (shape.signed and run.settings.triggers.negative))
    changes = len(its.scales) + 1 + its.controls + its.directions + its.similar

    def on(prefixes: float, changes: int, read_out: int) -> float:
        passes = tokens * (layers * shape.body + blocks) + changes * blocks
        return prefixes * (passes + changes * head * read_out)

    kept = on(its.top_k_prefixes, 2 * len(its.top_k) + 1, layers)  # the total effect alone
    return on(prefixes, changes, 2 * layers - 1) + kept + its.top_k_prefixes * sum(shape.memories) * shape.width


def _corpus_bytes(split: Split) -> int:
    """Bytes of the file of a split."""
    sizes = {"token": split.tokens, "sentence": split.sentences, "document": split.documents}
    sizes |= {"text_byte": split.text_bytes, "document_name_byte": 40 * split.documents}
    sizes |= {"shared_prefix": 0, "next_token": 0}  # few; the trial has its share of them
    return stored_bytes(Corpus, {name: int(size) for name, size in sizes.items()})


def _measure_sample(run: Known) -> tuple[float, float]:
    """Bytes of the states that a job holds in memory, and of all files of the sample."""
    settings, shape = run.settings, run.shape
    without = [name for name in ("x", "factor", "end") if name not in settings.prefixes.extra_states]
    block = min(run.sampled, settings.batches.block_sentences)
    stored = storage(shape.memories, shape.width, shape.dtype, shape.active < 1, without, block)
    sizes = {**stored.sizes, "prefix": run.sampled}
    (m,) = datasets_of(SampledPrefixes, without)["m"]
    unused = (1 - shape.active) * m.stored_bytes(sizes)  # zeros, which compression leaves nothing of
    held = stored_bytes(SampledPrefixes, {**sizes, "prefix": block}, without) if stored.in_memory else 0.0
    return held, stored_bytes(SampledPrefixes, sizes, without) - unused
