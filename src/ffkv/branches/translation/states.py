"""Reads the block outputs of random train prefixes, on which maps are fitted."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ffkv.activations.step import sample_prefixes
from ffkv.base.settings import Batches, Prefixes
from ffkv.branches.given import Given
from ffkv.branches.translation.settings import Translation


def read_states(
    given: Given,
    settings: Translation = Translation(),
    prefixes: Prefixes = Prefixes(),
    batches: Batches = Batches(),
    seed: int = 0,
) -> Callable[[Path], None]:
    """Returns what writes the block outputs of one shard of random train prefixes, as `sample_prefixes` does.

    `settings`: `prefixes`, how many of all shards. `prefixes`: `sample`, how they are drawn. `batches`: how they are cut into batches.
    """
    chosen = Prefixes(count=settings.prefixes, sample=prefixes.sample)
    model, train = given.files["model"], given.files["train"]
    return partial(
        sample_prefixes, model, train, settings=chosen, batching=batches, seed=seed, work=given.work, states=()
    )


def write_states(path: Path, write: Callable[[Path], None]) -> None:
    """Writes what `read_states` or `read_jacobians` makes of a shard, and the folder of its blocks if it has one."""
    write(path)
