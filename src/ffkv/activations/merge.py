"""Merges the files of all shards. This needs no model and no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.activations.prefix_file import KIND, write_linked
from ffkv.activations.trigger_file import (
    Negative,
    TriggerExamples,
    Triggers,
    read_triggers,
    rough,
    row_ranges,
    write_parts,
)
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.files.atomic import link
from ffkv.base.files.datasets import datasets_of
from ffkv.base.steps import WHOLE
from ffkv.model.anatomy import read_anatomy


def merge_triggers(shards: Sequence[Path | str], output: Path | str) -> None:
    """Merges the trigger examples of all shards, some memories of all layers at a time.

    The only shard of a corpus has the bytes of the merged file, so it gets a second name and takes no second place.

    Args:
        shards: their files, in any order.
        output: the merged file.
    Raises:
        UserError: a shard is missing or there twice, or they do not belong together; or the file cannot be written.
    Examples:
        >>> ffkv.merge_triggers(["results/tiny/triggers.h5"], "merged.h5")  # one shard is already the whole
        >>> ffkv.read_triggers("merged.h5").layers
        2
    """
    found: list[dict[str, Any]] = []
    for path in shards:  # one at a time: there may be more than a process can open
        with hdf5.open(path, "triggers", found[0] if found else None) as file:
            found.append({name: file.attrs[name] for name in file.attrs if name not in hdf5.OWN})
            memories, per_key = file["coefficient"].shape
            absent = [] if "negative" in file else ["negative"]
    given = [(attributes.get("shard"), attributes.get("shards")) for attributes in found]
    wanted = [(number, given[0][1]) for number in range(given[0][1] or 0)]
    if sorted(given, key=str) != sorted(wanted, key=str):
        told = ", ".join(f"{number} of {count}" for number, count in given)
        raise UserError(f"The shards do not make a whole ({told}; they count from 0): give every shard once.")
    if len(shards) == 1:
        hdf5.verify(shards[0])
        link(shards[0], output)
        return
    prefixes = sum(int(attributes["prefixes"]) for attributes in found)
    parts = (_merge_rows(shards, found[0], rows) for rows in row_ranges(memories, per_key, absent))
    write_parts(output, {**found[0], "shard": WHOLE.index, "shards": WHOLE.count}, prefixes, parts)


def _merge_rows(shards: Sequence[Path | str], belongs_to: dict[str, Any], rows: slice) -> Triggers:
    merged = read_triggers(shards[0], belongs_to, rows)
    for path in shards[1:]:
        merged = combine_triggers([merged, read_triggers(path, belongs_to, rows)])
    return merged


def combine_triggers(shards: Sequence[Triggers]) -> Triggers:
    """Combines the triggers of parts of one corpus, in whatever order and grouping. Attributes are those of the first.

    Order within a key: the coefficient furthest from zero first, tied ones (see `trigger_file`) by sentence and position. Raises
    UserError if the shards were made with different settings.
    """
    first = shards[0]
    if any(shard.attributes.get("settings") != first.attributes.get("settings") for shard in shards):
        raise UserError("The shards of triggers were made with different settings: make them all again with the same.")
    negative = None
    if sides := [shard.negative for shard in shards if shard.negative is not None]:
        negative = Negative(**_merge_examples(sides), minimum=np.min([side.minimum for side in sides], 0))
    return Triggers(
        **_merge_examples(shards),
        layer_offset=first.layer_offset,
        total=np.sum([shard.total for shard in shards], 0),
        maximum=np.max([shard.maximum for shard in shards], 0),
        histogram=np.sum([shard.histogram for shard in shards], 0),
        prefixes=sum(shard.prefixes for shard in shards),
        attributes=first.attributes,
        negative=negative,
    )


def _merge_examples(shards: Sequence[TriggerExamples]) -> dict[str, np.ndarray]:
    """Returns the fields of `TriggerExamples`."""
    per_key = shards[0].coefficient.shape[1]
    ranked = [name for name, (part,) in datasets_of(TriggerExamples).items() if "rank" in part.dimensions]
    together = {name: np.concatenate([getattr(shard, name) for shard in shards], 1) for name in ranked}
    order = np.lexsort((together["position"], together["sentence"], -rough(together["coefficient"])), axis=1)
    return {
        **{name: np.take_along_axis(values, order[:, :per_key], 1) for name, values in together.items()},
        "count": np.minimum(sum(shard.count for shard in shards), per_key).astype(np.int32),
        "fires": np.sum([shard.fires for shard in shards], 0),
    }


def merge_sampled_prefixes(shards: Sequence[Path | str], model: Path | str, output: Path | str) -> None:
    """Writes the file of the whole sample. It reads the shards' files, which must stay.

    Args:
        shards: the shards' files, in order.
        model: the model's folder, `results/<run>/model`.
        output: the file of the whole sample.
    Raises:
        UserError: the shards are not the parts of one sample of this model.
    Examples:
        >>> shards = ["results/tiny/sampled_prefixes/0.h5", "results/tiny/sampled_prefixes/1.h5"]
        >>> ffkv.merge_sampled_prefixes(shards, "results/tiny/model", "merged.h5")
    """
    with hdf5.open(shards[0], KIND, read_anatomy(Path(model)).identity) as first:
        attributes: dict[str, Any] = {name: first.attrs[name] for name in first.attrs if name not in hdf5.OWN}
    sentences, positions = [], []
    for shard in shards:
        with hdf5.open(shard, KIND, attributes) as file:
            if any(file.attrs.get(name) != attributes[name] for name in ("settings", "sample_hash")):
                raise UserError(
                    f"{shard} is of another sample than {shards[0]}: make them all again with the same settings."
                )
            sentences.append(file["sentence"][...].astype(np.int64))
            positions.append(file["position"][...])
    place = np.concatenate(sentences) * 2**31 + np.concatenate(positions)
    if len(place) != attributes["sampled"] or (np.diff(place) <= 0).any():  # a sample is in order, without repetition
        raise UserError(
            f"The shards hold {len(place):,} prefixes of {int(attributes['sampled']):,}, or not in order:"
            " give every shard once, from the first to the last."
        )
    write_linked(output, [Path(shard) for shard in shards], attributes)
