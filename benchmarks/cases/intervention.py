"""Direct and total effects of changes of one layer, beside the products and the forward passes that they need."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.inputs import GPT2, Shape, prepare_model
from benchmarks.measure import Comparison, Measurement, Work, same_work
from ffkv.activations.batches import Batching
from ffkv.branches.settings import Intervention
from ffkv.model.checkpoint.load import load
from ffkv.model.effects.changes import choose_kept, keep_few, measure_effects, predict
from ffkv.model.effects.rerun import rerunning, run_unchanged
from ffkv.model.head.head_file import load_head

TOKENS, CHANGES = 20, 125  # of a prefix; on a prefix by the default settings
KEPT = 2 * len(Intervention().top_k) + 1  # choices of kept memories on a prefix: the largest, random ones, all
LAYER = GPT2.layers // 2 - 1  # in the middle
FOLLOWING = (GPT2.layers - LAYER - 1) / GPT2.layers  # share of the blocks that come after the layer


def direct(scratch: Path, shape: list[int], prefixes: int) -> Work:
    """Reads out the direct effects of changes on ten tokens."""
    head, ends = load_head(prepare_model(scratch, shape), "cpu"), random_vectors(shape, prefixes)

    def work(count: int = prefixes) -> None:
        for vectors in ends[:count]:
            bases = predict(head, vectors[:1], Shape(*shape).layers - 1)
            measure_effects(head, [vectors[1:]], bases, [torch.arange(10)], Shape(*shape).layers - 1)

    work(1)
    return work


def product(scratch: Path, shape: list[int], prefixes: int) -> Work:
    """The products with the output embedding alone."""
    ends = random_vectors(shape, prefixes)
    embedding = load(prepare_model(scratch, shape), "cpu").model.get_output_embeddings().weight.detach()

    def work(count: int = prefixes) -> None:
        for vectors in ends[:count]:
            vectors @ embedding.T

    work(1)
    return work


def total(scratch: Path, shape: list[int], prefixes: int) -> Work:
    """Runs the blocks after a layer again for changes of it."""
    loaded, changes = load(prepare_model(scratch, shape), "cpu"), random_vectors(shape, prefixes)
    layer = loaded.anatomy.layers[min(LAYER, len(loaded.anatomy.layers) - 1)]
    ids = np.random.default_rng(0).integers(0, Shape(*shape).vocabulary, (prefixes, TOKENS))
    (bases,) = run_unchanged(loaded, [layer], ids, keep=True)
    rerun = rerunning(loaded, layer, Batching().tokens, keep=True)

    def work(count: int = prefixes) -> None:
        for base, vectors in zip(bases[:count], changes, strict=False):
            rerun([base], [vectors[1:]])

    work(1)
    return work


def keep(scratch: Path, shape: list[int], prefixes: int, changes: int = KEPT) -> Work:
    """Chooses the memories that are kept, and runs the blocks after the layer again for each choice."""
    loaded, sizes = load(prepare_model(scratch, shape), "cpu"), Shape(*shape)
    layer = loaded.anatomy.layers[min(LAYER, len(loaded.anatomy.layers) - 1)]
    generator = np.random.default_rng(0)
    ids = generator.integers(0, sizes.vocabulary, (prefixes, TOKENS))
    values = torch.from_numpy(generator.standard_normal((sizes.memories, sizes.width), np.float32))
    norms, mean = values.norm(dim=1).numpy(), torch.zeros(sizes.memories)
    (bases,) = run_unchanged(loaded, [layer], ids, keep=True)
    rerun = rerunning(loaded, layer, Batching().tokens, keep=True)

    def work(count: int = prefixes) -> None:
        m, factor = torch.stack([base.m for base in bases[:count]]), torch.ones(count, 1)
        kept = choose_kept(m.numpy(), norms, Intervention().top_k, [generator] * count)[:, :changes]
        rerun(bases[:count], [*keep_few(m, mean, values, factor, torch.from_numpy(kept))])

    work(1)
    return work


def forward(scratch: Path, shape: list[int], prefixes: int, changes: int = CHANGES) -> Work:
    """The bare body over a token per change."""
    body = load(prepare_model(scratch, shape), "cpu").model.base_model
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, Shape(*shape).vocabulary, (prefixes, changes)))

    def work(count: int = prefixes) -> None:
        for rows in ids[:count].split(Batching().tokens // changes):
            with torch.inference_mode():
                body(input_ids=rows, use_cache=False)

    work(1)
    return work


def random_vectors(shape: list[int], prefixes: int) -> torch.Tensor:
    """For each prefix a vector, and one per change [prefix, change + 1, d]."""
    generator = np.random.default_rng(1)
    return torch.from_numpy(generator.standard_normal((prefixes, CHANGES + 1, Shape(*shape).width), np.float32))


def _ratio(contender: str, reference: str, share: float) -> Callable[[dict[str, Measurement]], float]:
    return lambda measurements: measurements[contender].cpu / (share * measurements[reference].cpu)


COMPARISONS = [
    Comparison(
        "direct effects",
        f"{GPT2}, 8 prefixes, {CHANGES} changes each",
        same_work(__name__, ("product", "direct"), shape=GPT2, prefixes=8),
        _ratio("direct", "product", 1),
        1.5,
        "times the CPU time of the plain matrix products",
        rounds=3,
    ),
    Comparison(
        "total effects",
        f"{GPT2}, 16 prefixes of {TOKENS} tokens, {CHANGES} changes each, layer {LAYER}",
        same_work(__name__, ("forward", "total"), shape=GPT2, prefixes=16),
        _ratio("total", "forward", FOLLOWING),
        1.3,
        "times the CPU time of bare forward passes over the changed tokens, times the share of the blocks after the layer",
        rounds=3,
    ),
    Comparison(
        "kept memories",
        f"{GPT2}, 16 prefixes of {TOKENS} tokens, {KEPT} choices each, layer {LAYER}",
        same_work(__name__, ("forward", "keep"), shape=GPT2, prefixes=16, changes=KEPT),
        _ratio("keep", "forward", FOLLOWING),
        1.3,
        "times the CPU time of bare forward passes over the changed tokens, times the share of the blocks after the layer",
        rounds=3,
    ),
]
