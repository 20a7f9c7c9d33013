"""`ffkv triggers`, `merge-triggers`, `prefixes` and `merge-prefixes`."""

from pathlib import Path

import click

from ffkv.options import MODEL, READABLE, WRITABLE, part_options, seed_option, setting, threads_option
from ffkv.settings import Activations, Model, Prefixes, Triggers, section

CORPUS = click.option(
    "--corpus", "corpus_file", type=READABLE, required=True, help="The split to read, corpus/<split>.h5."
)
OUTPUT = click.option("--output", type=WRITABLE, required=True, help="The file to write.")
SAVE_EVERY = click.option(
    "--save-every",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds between two savings of an unfinished shard, which the same command goes on from.",
)
SHARDS = click.argument("shards", nargs=-1, required=True, type=READABLE)


@click.command()
@MODEL
@CORPUS
@setting(Triggers, *Triggers.model_fields)
@setting(Activations, *Activations.model_fields)
@setting(Model, "device")
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
    threads: int,
    save_every: float,
    output: Path,
    batch_tokens: int,
    block_sentences: int,
    **values,
) -> None:
    """Find the trigger examples of every key in one shard of the corpus."""
    from dataclasses import replace

    from ffkv.process.runtime import torch_with

    torch_with(threads)
    from ffkv.activations.resume import Saved, beside, forget, identity
    from ffkv.activations.trigger_file import write_triggers
    from ffkv.activations.triggers import find_triggers
    from ffkv.corpus.corpus_file import read_corpus
    from ffkv.model.checkpoint.load import load

    settings, batching = (
        section(Triggers, **values),
        section(Activations, batch_tokens=batch_tokens, block_sentences=block_sentences),
    )
    loaded = load(model_folder, device)
    corpus = read_corpus(corpus_file, {"tokenizer_hash": loaded.anatomy.tokenizer_hash})
    attributes = {
        **loaded.anatomy.identity,
        "corpus_hash": corpus.attributes["corpus_hash"],
        "settings": settings.model_dump(),
        "activations": batching.model_dump(),
        "shard": shard,
        "shards": shards,
    }
    saved = Saved(beside(output), identity(attributes, loaded.device), save_every)
    found = find_triggers(loaded, corpus, settings, batching, shard, shards, saved)
    write_triggers(output, replace(found, attributes=attributes))
    forget(output)


@click.command()
@SHARDS
@OUTPUT
def merge_triggers(shards: tuple[Path, ...], output: Path) -> None:
    """Merge the trigger examples of SHARDS."""
    from dataclasses import replace

    from ffkv.activations import merge
    from ffkv.activations.trigger_file import read_triggers, write_triggers

    merged, parts = None, []
    for shard in shards:  # one at a time: all together would fill the memory
        found = read_triggers(shard, merged and merged.attributes)
        parts.append((found.attributes.get("shard"), found.attributes.get("shards")))
        merged = merge.merge_triggers([merged, found]) if merged else found
    merge.check_shards(parts)
    whole = {name: value for name, value in merged.attributes.items() if name not in ("shard", "shards")}
    write_triggers(output, replace(merged, attributes=whole))


@click.command()
@MODEL
@CORPUS
@setting(Prefixes, *Prefixes.model_fields)
@setting(Activations, *Activations.model_fields)
@setting(Model, "device")
@seed_option
@part_options("shard")
@threads_option
@OUTPUT
def prefixes(
    model_folder: Path,
    corpus_file: Path,
    shard: int,
    shards: int,
    device: str,
    seed: int,
    threads: int,
    output: Path,
    batch_tokens: int,
    block_sentences: int,
    **values,
) -> None:
    """Store r, x, y, o and m of one shard of the sampled prefixes."""
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    from ffkv.activations.prefix_sample import sample_prefixes
    from ffkv.activations.sampled_states import write_prefixes
    from ffkv.corpus.corpus_file import read_corpus
    from ffkv.model.checkpoint.load import load

    settings, batching = (
        section(Prefixes, **values),
        section(Activations, batch_tokens=batch_tokens, block_sentences=block_sentences),
    )
    loaded = load(model_folder, device)
    corpus = read_corpus(corpus_file, {"tokenizer_hash": loaded.anatomy.tokenizer_hash})
    sample = sample_prefixes(corpus.lengths, settings.count, settings.sample, seed)
    attributes = {
        **loaded.anatomy.identity,
        "corpus_hash": corpus.attributes["corpus_hash"],
        "settings": settings.model_dump(),
        "activations": batching.model_dump(),
        "seed": seed,
    }
    write_prefixes(output, loaded, corpus, sample, batching, shard, shards, attributes)


@click.command()
@SHARDS
@MODEL
@OUTPUT
def merge_prefixes(shards: tuple[Path, ...], model_folder: Path, output: Path) -> None:
    """Put the prefixes of SHARDS one behind the other."""
    from ffkv.activations import merge
    from ffkv.model.anatomy import read_anatomy

    merge.merge_prefixes(output, shards, read_anatomy(model_folder))
