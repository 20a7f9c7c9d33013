"""How much each rule has to do, in a run as in its trial: what its seconds, files and memory grow with."""

from ffkv.activations.prefix_file import IN_MEMORY
from ffkv.corpus.embedded.training import MEASUREMENTS, SAMPLE_TOKENS
from ffkv.plan.facts import RunFacts
from ffkv.workflow.steps import STEPS


def measure_amounts(run: RunFacts) -> dict[str, tuple[float, float]]:
    """Returns how much each rule has to do and to write that grows, see `Step.amount`. Branches say it themselves."""
    settings, shape, train, validation = run.settings, run.shape, run.text["train"], run.text["validation"]
    made, numbers = settings.embedded, shape.active * shape.all_memories + 2 * shape.layers * shape.width
    trained = 3 * made.steps * made.batch_tokens + validation.tokens
    trained += (min(MEASUREMENTS, made.steps) - 1) * min(SAMPLE_TOKENS, validation.tokens)
    copies = settings.shards + (settings.shards > 1)  # of the triggers, until shards are merged
    return {rule: step.amount(run) for rule, step in STEPS.items() if step.amount} | {
        "train": (trained * (shape.body + shape.outside), shape.parameters * (1 + len(made.keep_steps))),
        "model": (shape.body, shape.head + shape.all_memories * shape.width),
        **dict.fromkeys(("corpus", "copy_corpus"), (0.0, train.tokens + validation.tokens)),
        "triggers": (train.tokens * shape.body, copies * run.trigger_bytes),
        "merge_triggers": (settings.shards * run.trigger_bytes, 1.0),
        # y, o and m of a prefix; the zeros of experts that it is not sent to are compressed.
        "sampled_prefixes": (validation.tokens_read(run.sampled) * shape.body, run.sampled * numbers),
    }


def device_bytes(run: RunFacts) -> dict[str, float]:
    """Returns the bytes that a job takes on a GPU: weights; and beside them batches, triggers and the driver.

    Beside them also what interventions hold in float32: the output embedding, and one block (of a model in float32, its
    values in float64).
    """
    shape, driver = run.shape, 5e8
    batch = 4 * run.settings.batches.tokens * (8 * max(shape.memories) + 12 * shape.width)
    exact = 4 * (shape.head + (shape.parameters - shape.outside) / shape.layers)
    return {
        "weights": float(shape.parameters * shape.itemsize),
        "working": driver + batch + run.trigger_bytes / 3 + exact,
    }


def measure_memory(run: RunFacts, rule: str, libraries: str, on_gpu: bool = False) -> float:
    """Returns the bytes that a job of a rule holds, as far as they grow: on a GPU, those that it holds beside it.

    `libraries`: see `libraries_of`.
    """
    shape, device = run.shape, device_bytes(run)
    model = 0.0 if on_gpu else 1.25 * device["weights"] + device["working"]  # a quarter more while weights are read
    passing = model + run.trigger_bytes * (rule != "model")
    states = shape.all_memories + 2 * shape.layers * shape.width  # of a prefix
    block = 4 * states * min(run.sampled, run.settings.batches.block_sentences)
    held = {
        "corpus": 20 * run.text["train"].text_bytes,  # lists and arrays beside the text
        "sampled_prefixes": passing + block * (block < IN_MEMORY),
        "model": passing,
        "head": shape.outside * shape.itemsize + 4 * run.sampled * (2 * max(shape.memories) + 4 * shape.width),
        "tables": run.trigger_bytes * rule.startswith(("keys", "report")),
    }
    return held[rule if rule in held else libraries]
