"""`ffkv triggers`, `merge-triggers`, `sampled-prefixes` and `merge-sampled-prefixes`."""

from pathlib import Path

import click

from ffkv.activations.steps import SAMPLED_PREFIXES, TRIGGERS
from ffkv.base.options import CORPUS, MODEL, READABLE, output_option, step_options
from ffkv.base.settings import Batches, Prefixes, Triggers
from ffkv.base.steps import Work

OUTPUT = output_option("The file to write.")
SHARDS = click.argument("shards", nargs=-1, required=True, type=READABLE)


@click.command()
@MODEL
@CORPUS
@step_options(TRIGGERS)
@click.option(
    "--save-every",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds between two savings of an unfinished shard. The same command continues from the last one.",
)
@OUTPUT
def triggers(
    model_folder: Path,
    corpus_file: Path,
    triggers: Triggers,
    batches: Batches,
    work: Work,
    save_every: float,
    output: Path,
) -> None:
    """Find the trigger examples of every key in one shard of the corpus."""
    from ffkv.activations.resume import discard_progress, progress_path
    from ffkv.activations.step import find_triggers
    from ffkv.activations.trigger_file import write_triggers

    found = find_triggers(model_folder, corpus_file, triggers, batches, work, progress_path(output), save_every)
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
@step_options(SAMPLED_PREFIXES)
@OUTPUT
def sampled_prefixes(
    model_folder: Path, corpus_file: Path, prefixes: Prefixes, batches: Batches, seed: int, work: Work, output: Path
) -> None:
    """Store y, o and m of the sampled prefixes in one shard: FF outputs, block outputs and coefficients."""
    from ffkv.activations.step import sample_prefixes

    sample_prefixes(model_folder, corpus_file, output, prefixes, batches, seed, work)


@click.command()
@SHARDS
@MODEL
@OUTPUT
def merge_sampled_prefixes(shards: tuple[Path, ...], model_folder: Path, output: Path) -> None:
    """Merge the sampled prefixes of SHARDS. The new file reads from the files of SHARDS: keep them."""
    from ffkv.activations import merge

    merge.merge_sampled_prefixes(shards, model_folder, output)
