"""Costs of the four branches that read the passes' files, and of the report."""

from ffkv.plan.disk import memories_bytes, model_bytes, prefixes_bytes, projections_bytes, report_bytes, table_bytes
from ffkv.plan.work import LOADED, Cost, Run, batch_tokens, head_operations, reading, running

KEY_SECONDS = 0.011  # patterns in the trigger examples of a key and in its random prefixes: 4,000 draws
BACKGROUND_SECONDS = 5e-5  # the features of a random prefix
PASSAGE_SECONDS = 4e-4  # of a passage of ten sentences that topics are learnt from
SORTED_SECONDS = 6e-8  # of a coefficient that composition sorts
DESCRIBED_SECONDS = 6e-5  # of the words of a sampled prefix
REPORT_SECONDS, CARD_SECONDS = 1.2, 0.01
PATTERN_MEMORY = 5000  # bytes a background prefix leaves in counters and features
DRAWN_MEMORY = 2**26  # the draws that keys are compared with


def key_patterns(run: Run) -> Cost:
    """Counting features in random prefixes, learning topics, then every key beside 4,000 random ones."""
    made, text = run.settings.keys, run.train
    keys = _sampled_keys(run)
    background = min(made.background_prefixes, text.prefixes)
    once = background * BACKGROUND_SECONDS + min(20_000, text.sentences / 10) * PASSAGE_SECONDS
    work = reading(run, run.triggers_memory, run.corpus_file(text))
    work["seconds"] = run.groups * once + keys * KEY_SECONDS * made.pattern_triggers / 25
    memory = run.corpus_memory(text) + run.triggers_memory + background * PATTERN_MEMORY + DRAWN_MEMORY
    return Cost("key_patterns", run.settings.layer_groups, 1, 0, work, table_bytes("patterns", keys), memory, "keys")


def key_removal(run: Run) -> Cost:
    """Three rows a trigger: whole, which is also read without its last token; without the first; without another one."""
    made = run.settings.keys
    of_each = 3 * min(made.removal_triggers, run.settings.triggers.per_key, run.train.sentences)
    memory, removed = LOADED * run.weights, 3 * _sampled_keys(run)
    return _triggers_again(
        "key_removal", run, run.settings.layer_groups, of_each, -2 / 3, memory, table_bytes("removal", removed)
    )


def key_precision(run: Run) -> Cost:
    """A row a trigger, with all weights in float32."""
    of_each = min(run.settings.triggers.per_key, run.train.sentences)
    memory = LOADED * run.weights + 4 * run.shape.parameters
    return _triggers_again("key_precision", run, 1, of_each, 0, memory, table_bytes("csv", run.shape.layers))


def _triggers_again(
    rule: str, run: Run, jobs: int, of_each: float, longer: float, model: float, written: float
) -> Cost:
    """Rows of the sampled keys' triggers, up to the key's own layer: half of all.

    Args:
        of_each: rows of a key. longer: by how many tokens than the trigger, on average. model: bytes of it in memory.
    """
    shape = run.shape
    rows = _sampled_keys(run) * of_each
    length = run.train.prefix_length + longer
    tokens = rows * (length + 1)
    passed = (shape.layers + 1) / (2 * shape.layers)
    work = {kind: passed * amount for kind, amount in running(run, tokens, length).items()}
    work["bytes"] = jobs * (run.weights + run.triggers_memory + run.corpus_file(run.train))
    work["seconds"] = rows * 2e-5
    batch = 4 * batch_tokens(run) * (6 * max(shape.memories) + 12 * shape.width)
    memory = model + batch + rows / shape.layers * (8 * length + 300)
    memory += run.corpus_memory(run.train) + run.triggers_memory
    return Cost(rule, jobs, 4, tokens * passed, work, written, memory, "all")


def _sampled_keys(run: Run) -> int:
    return run.shape.layers * min(run.settings.keys.per_layer, min(run.shape.memories))


def keys(run: Run) -> Cost:
    """Tables to tables."""
    return Cost("keys", memory=run.triggers_memory, written=table_bytes("csv", 40 * run.shape.layers), libraries="keys")


def measure_values(run: Run) -> Cost:
    """Every value through the head; of its logits the highest, the lowest and the rank of one token are taken."""
    shape, k = run.shape, run.top_tokens
    work = {
        "head": head_operations(shape, shape.all_memories),
        "kept": shape.all_memories * shape.vocabulary,
        **reading(run, memories_bytes(shape), model_bytes(shape), run.triggers_memory),
    }
    memory = (
        run.head_weights
        + run.group_memories * (8 * shape.width + 32 * k)
        + run.logits(max(shape.memories))
        + 2.5 * run.triggers_memory
    )
    written = projections_bytes(shape, k, run.settings.layer_groups) + table_bytes("memories", shape.all_memories)
    return Cost("measure_values", run.settings.layer_groups, 4, 0, work, written, memory, "model and tables")


def values(run: Run) -> Cost:
    """Tables to tables; the prefixes of predictive values come from the train split."""
    memory = run.triggers_memory + run.corpus_memory(run.train) + 150 * run.shape.all_memories
    work = {"seconds": 1000 * run.shape.all_memories * 2e-8}
    return Cost("values", work=work, memory=memory, written=table_bytes("csv", 400))


def measure_composition(run: Run) -> Cost:
    """Every value, and y of every prefix and layer, through the head; the contributions of each prefix are sorted."""
    shape, vectors = run.shape, run.prefixes * run.shape.layers
    read_out = shape.all_memories + vectors
    work = {
        "head": head_operations(shape, read_out),
        "read": read_out * shape.vocabulary,
        "seconds": run.prefixes * (shape.all_memories * SORTED_SECONDS + run.groups * DESCRIBED_SECONDS),
        **reading(
            run,
            prefixes_bytes(shape, run.prefixes),
            memories_bytes(shape),
            model_bytes(shape),
            run.corpus_file(run.validation),
        ),
    }
    largest = max(shape.memories)
    layer = run.prefixes * (7 * largest + 8 * shape.width) + 512 * largest * 8 * 5
    values = 4 * shape.width * (run.group_memories + 2 * largest)
    memory = run.head_weights + run.logits(largest) + layer + values + run.corpus_memory(run.validation)
    written = table_bytes("composition", vectors)
    return Cost("measure_composition", run.settings.layer_groups, 4, 0, work, written, memory, "model and tables")


def composition(run: Run) -> Cost:
    """Tables to tables."""
    return Cost(
        "composition", memory=200 * run.prefixes * run.shape.layers, written=table_bytes("csv", 10 * run.shape.layers)
    )


def measure_refinement(run: Run) -> Cost:
    """r, y and o of every prefix and layer through the head, of r also a probability, and o^L in each job."""
    shape, vectors = run.shape, run.prefixes * run.shape.layers
    final = run.groups * run.prefixes
    work = {
        "head": head_operations(shape, 3 * vectors + final),
        "read": (3 * vectors + final) * shape.vocabulary,
        "normalized": vectors * shape.vocabulary,
        **reading(run, prefixes_bytes(shape, run.prefixes), model_bytes(shape)),
    }
    memory = run.head_weights + run.logits(run.prefixes) + 16 * run.prefixes * shape.width
    written = table_bytes("refinement", vectors)
    return Cost("measure_refinement", run.settings.layer_groups, 4, 0, work, written, memory, "model and tables")


def refinement(run: Run) -> Cost:
    """Tables to tables; closeness of tokens takes the output embedding, and it divided by its norms."""
    embedding = 4 * run.shape.head
    memory = 3 * embedding + 12 * 10_000 * run.shape.width + 100 * run.prefixes * run.shape.layers
    work = {"bytes": 3 * embedding + prefixes_bytes(run.shape, run.prefixes)}  # read whole, as by each group above
    return Cost("refinement", work=work, memory=memory, written=table_bytes("csv", 250), libraries="model")


def write_settings(run: Run) -> Cost:
    """A line."""
    return Cost("write_settings", written=1400, libraries="")


def report(run: Run) -> Cost:
    """Figures, tables and cards."""
    work = {"seconds": REPORT_SECONDS + CARD_SECONDS * run.settings.report.cards}
    memory = run.triggers_memory + run.corpus_memory(run.train) + run.corpus_memory(run.validation)
    return Cost("report", work=work, memory=memory, written=report_bytes(run.settings.report.cards), libraries="keys")
