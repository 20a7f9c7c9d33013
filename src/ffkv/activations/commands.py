"""`ffkv triggers`, `merge-triggers`, `sampled-prefixes` and `merge-sampled-prefixes`."""

from pathlib import Path
from typing import Any

import click

from ffkv.base.options import CORPUS, MODEL, READABLE, output_option, part_options, seed_option, setting, threads_option
from ffkv.base.settings import Activations, Model, Prefixes, Triggers, section

OUTPUT = output_option("The file to write.")
SAVE_EVERY = click.option(
    "--save-every",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds between two savings of an unfinished shard. The same command continues from the last one.",
)
SHARDS = click.argument("shards", nargs=-1, required=True, type=READABLE)


@click.command()
@MODEL
@CORPUS
@setting(Triggers, *Triggers.model_fields)
@setting(Activations, *Activations.model_fields)
@setting(Model, "device", "max_memory")
@part_options("shard")
@threads_option
@SAVE_EVERY
@OUTPUT
def triggers(
    model_folder: Path,
    corpus_file: Path,
    shard: int,
    shards: int,
    device: str,
    max_memory: dict[str, str],
    threads: int,
    save_every: float,
    output: Path,
    **options: Any,
) -> None:
    """Find the trigger examples of every key in one shard of the corpus."""
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.activations.resume import discard_progress, progress_path
    from ffkv.activations.step import find_triggers
    from ffkv.activations.trigger_file import write_triggers
    from ffkv.base.parts import Part

    settings, batching = _settings(Triggers, options)
    part = Part(shard, shards)
    saved = progress_path(output)
    files, saving = (model_folder, corpus_file), (saved, save_every)
    found = find_triggers(*files, settings, batching, device, part, *saving, max_memory=max_memory)
    write_triggers(output, found)
    discard_progress(output)


@click.command()
@SHARDS
@OUTPUT
def merge_triggers(shards: tuple[Path, ...], output: Path) -> None:
    """Merge the trigger examples of SHARDS. Afterwards they are no longer needed."""
    from ffkv.activations import merge

    merge.merge_triggers(shards, output)


@click.command()
@MODEL
@CORPUS
@setting(Prefixes, *Prefixes.model_fields)
@setting(Activations, *Activations.model_fields)
@setting(Model, "device", "max_memory")
@seed_option
@part_options("shard")
@threads_option
@OUTPUT
def sampled_prefixes(
    model_folder: Path,
    corpus_file: Path,
    shard: int,
    shards: int,
    device: str,
    max_memory: dict[str, str],
    seed: int,
    threads: int,
    output: Path,
    **options: Any,
) -> None:
    """Store y, o and m of the sampled prefixes in one shard: FF outputs, block outputs and coefficients."""
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.activations.step import sample_prefixes
    from ffkv.base.parts import Part

    settings, batching = _settings(Prefixes, options)
    part = Part(shard, shards)
    sample_prefixes(model_folder, corpus_file, output, settings, batching, seed, device, part, max_memory)


@click.command()
@SHARDS
@MODEL
@OUTPUT
def merge_sampled_prefixes(shards: tuple[Path, ...], model_folder: Path, output: Path) -> None:
    """Merge the sampled prefixes of SHARDS. The new file reads from the files of SHARDS: keep them."""
    from ffkv.activations import merge

    merge.merge_sampled_prefixes(shards, model_folder, output)


def _settings(model: type, options: dict[str, Any]) -> tuple[Any, Activations]:
    """Returns the settings of a command, and how its sentences are cut into batches, from its options."""
    batching = {name: options.pop(name) for name in Activations.model_fields}
    return section(model, **options), section(Activations, **batching)
