"""The files of all shards, put together. No model is needed for that, and no torch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ffkv.activations.prefix_file import allocate, copy
from ffkv.activations.trigger_file import EXAMPLES, TriggerExamples, Triggers
from ffkv.errors import UserError
from ffkv.files import hdf5
from ffkv.model.anatomy import Anatomy


def check_shards(shards: Sequence[tuple[int | None, int | None]]) -> None:
    """Refuses shards that do not make a whole.

    Args:
        shards: number of each shard, and of how many.
    Raises:
        UserError: one is missing or there twice, or a file is none.
    """
    wanted = [(number, shards[0][1]) for number in range(shards[0][1] or 0)]
    if sorted(shards, key=str) != sorted(wanted, key=str):
        given = ", ".join(f"{number} of {count}" for number, count in shards)
        raise UserError(f"The shards do not make a whole ({given}; they count from 0): give every shard once.")


def merge_triggers(shards: Sequence[Triggers]) -> Triggers:
    """The triggers of the whole corpus from those of its shards, in whatever order and grouping.

    Order within a key: the coefficient furthest from zero, then sentence, then position.

    Raises:
        UserError: the shards were made with different settings.
    """
    first = shards[0]
    if any(shard.attributes.get("settings") != first.attributes.get("settings") for shard in shards):
        raise UserError("The shards of triggers were made with different settings: make them all again with the same.")
    negative = first.negative and replace(
        first.negative,
        **_merge_examples([shard.negative for shard in shards]),
        minimum=np.min([shard.negative.minimum for shard in shards], 0),
    )
    return replace(
        first,
        **_merge_examples(shards),
        total=sum(shard.total for shard in shards),
        histogram=sum(shard.histogram for shard in shards),
        maximum=np.max([shard.maximum for shard in shards], 0),
        prefixes=sum(shard.prefixes for shard in shards),
        negative=negative,
    )


def _merge_examples(shards: Sequence[TriggerExamples]) -> dict[str, np.ndarray]:
    per_key = shards[0].coefficient.shape[1]
    together = {
        name: np.concatenate([getattr(shard, name) for shard in shards], 1)
        for name, (dimensions, *_) in EXAMPLES.items()
        if "rank" in dimensions
    }
    order = np.lexsort((together["position"], together["sentence"], -np.abs(together["coefficient"])), axis=1)
    return {
        **{name: np.take_along_axis(values, order[:, :per_key], 1) for name, values in together.items()},
        "count": np.minimum(sum(shard.count for shard in shards), per_key).astype(np.int32),
        "fires": sum(shard.fires for shard in shards),
    }


def merge_prefixes(path: Path, shards: Sequence[Path], anatomy: Anatomy) -> None:
    """Puts the shards' prefixes one behind the other.

    Raises:
        UserError: the shards are not parts of one sample.
    """
    with hdf5.open(shards[0], "prefixes", anatomy.identity) as first:
        attributes = {name: first.attrs[name] for name in first.attrs if name not in ("format", "kind", "versions")}
    with hdf5.create(path, "prefixes", attributes) as file:
        allocate(file, anatomy, int(attributes["sampled"]))
        start, total = 0, int(attributes["sampled"])
        for shard in shards:
            with hdf5.open(shard, "prefixes", attributes) as source:
                count = len(source["sentence"])
                if start + count <= total:
                    copy(source, file, slice(start, start + count))
                start += count
        place = file["sentence"][...].astype(np.int64) * 2**31 + file["position"][...]
        if start != total or (np.diff(place) <= 0).any():  # a sample is in order, none twice
            raise UserError(
                f"The shards hold {start:,} prefixes of {total:,}, or not in order: give every shard once, from the first to the last."
            )
