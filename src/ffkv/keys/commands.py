"""`ffkv keys`: patterns, token removal, the effect of low precision, and what the report draws of them."""

from pathlib import Path

import click

from ffkv.options import MODEL, READABLE, TRIGGERS, WRITABLE, part_options, seed_option, setting, threads_option
from ffkv.parts import Part
from ffkv.settings import Activations, Keys, Model

CORPUS = click.option("--corpus", "corpus_file", type=READABLE, required=True, help="corpus/train.h5.")


@click.group()
def keys() -> None:
    """What keys detect: patterns in their trigger examples, token removal, activity (paper section 3)."""


@keys.command()
@TRIGGERS
@CORPUS
@setting(Keys, *(name for name in Keys.model_fields if name != "removal_triggers"))
@seed_option
@part_options("layer_group")
@threads_option
@click.option("--patterns", "patterns_file", type=WRITABLE, required=True, help="The table of patterns to write.")
@click.option("--prefixes", "prefixes_file", type=WRITABLE, required=True, help="The table of prefixes to write.")
def patterns(
    triggers_file: Path,
    corpus_file: Path,
    seed: int,
    layer_group: int,
    layer_groups: int,
    threads: int,
    patterns_file: Path,
    prefixes_file: Path,
    **values,
) -> None:
    """Find what recurs in the trigger examples of sampled keys, and in random prefixes beside them."""
    from ffkv.activations.trigger_file import read_triggers
    from ffkv.corpus.corpus_file import read_corpus
    from ffkv.errors import UserError
    from ffkv.files import tables
    from ffkv.keys.key_sample import sampled_examples
    from ffkv.keys.patterns import find_patterns, prepare
    from ffkv.keys.tables import PATTERNS, PREFIXES, pattern_rows, prefix_rows, typed
    from ffkv.process.progress import progress
    from ffkv.settings import section

    settings = section(Keys, **values)
    if settings.minimum_prefixes > settings.pattern_triggers:
        raise UserError(
            f"keys.minimum_prefixes is {settings.minimum_prefixes}: at most keys.pattern_triggers, "
            f"{settings.pattern_triggers}, or there can be no pattern."
        )
    corpus = read_corpus(corpus_file)
    triggers = read_triggers(triggers_file, corpus.attributes)
    layers = Part(layer_group, layer_groups).of(triggers.layers)
    found_patterns, found_prefixes = [], []
    detector = prepare(corpus, settings, seed)
    with progress(len(layers), "layers", "patterns") as bar:
        for layer in layers:
            examples = sampled_examples(triggers, corpus, layer, settings.per_layer, settings.pattern_triggers, seed)
            found = find_patterns([key.prefixes for key in examples], detector)
            found_patterns += pattern_rows(layer, examples, found)
            found_prefixes += prefix_rows(layer, examples, found)
            bar.update()
    tables.write(typed(found_patterns, PATTERNS), patterns_file)
    tables.write(typed(found_prefixes, PREFIXES), prefixes_file)


@keys.command()
@MODEL
@TRIGGERS
@CORPUS
@setting(Keys, "per_layer", "removal_triggers")
@setting(Model, "device")
@setting(Activations, "batch_tokens")
@seed_option
@part_options("layer_group")
@threads_option
@click.option("--output", type=WRITABLE, required=True, help="The table to write.")
def removal(
    model_folder: Path,
    triggers_file: Path,
    corpus_file: Path,
    per_layer: int,
    removal_triggers: int,
    device: str,
    batch_tokens: int,
    seed: int,
    layer_group: int,
    layer_groups: int,
    threads: int,
    output: Path,
) -> None:
    """Remove the first, the last or another token from trigger examples, and see how coefficients change."""
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    from ffkv.activations.last_token import last_coefficients
    from ffkv.files import tables
    from ffkv.keys.key_sample import removal_stream, sampled_keys, trigger_prefixes
    from ffkv.keys.removal import relative_changes
    from ffkv.keys.tables import REMOVAL, removal_rows, typed
    from ffkv.process.progress import progress

    model, triggers, corpus = _read(model_folder, triggers_file, corpus_file, device)
    layers, rows = Part(layer_group, layer_groups).of(triggers.layers), []
    with progress(len(layers), "layers", "token removal") as bar:
        for layer in layers:
            sampled = sampled_keys(triggers, layer, per_layer, seed)
            memories, _, prefixes = trigger_prefixes(triggers, corpus, layer, sampled, removal_triggers)

            def coefficients(shortened, of_memories, layer=layer):
                return last_coefficients(model, layer, shortened, of_memories, batch_tokens)

            changes = relative_changes(prefixes, memories, corpus.bos, coefficients, removal_stream(seed, layer))
            rows += removal_rows(layer, sampled, memories, changes)
            bar.update()
    tables.write(typed(rows, REMOVAL), output)


@keys.command()
@MODEL
@TRIGGERS
@CORPUS
@setting(Keys, "per_layer")
@setting(Model, "device")
@setting(Activations, "batch_tokens")
@seed_option
@threads_option
@click.option("--output", type=WRITABLE, required=True, help="The table to write, keys/precision.csv.")
def precision(
    model_folder: Path,
    triggers_file: Path,
    corpus_file: Path,
    per_layer: int,
    device: str,
    batch_tokens: int,
    seed: int,
    threads: int,
    output: Path,
) -> None:
    """Work the coefficients of trigger examples out again in float32, and see what the weights' type does to them."""
    from ffkv.process.runtime import torch_with

    torch_with(threads)
    from ffkv.files import tables
    from ffkv.keys.key_sample import sampled_keys
    from ffkv.keys.precision import COLUMNS, precision_row, rescored
    from ffkv.keys.tables import typed
    from ffkv.process.progress import progress

    (model, triggers, corpus), rows = _read(model_folder, triggers_file, corpus_file, device), []
    model.model.float()
    with progress(triggers.layers, "layers", "float32") as bar:
        for layer in range(triggers.layers):
            sampled = sampled_keys(triggers, layer, per_layer, seed)
            rows.append(precision_row(layer, *rescored(model, triggers, corpus, layer, sampled, batch_tokens)))
            bar.update()
    tables.write(typed(rows, COLUMNS), output)


def _read(model_folder: Path, triggers_file: Path, corpus_file: Path, device: str):
    """The model, its triggers and the corpus that they come from; refused where they do not belong together."""
    from ffkv.activations.trigger_file import read_triggers
    from ffkv.corpus.corpus_file import read_corpus
    from ffkv.model.anatomy import read_anatomy
    from ffkv.model.checkpoint.load import load

    identity = read_anatomy(model_folder).identity
    corpus = read_corpus(corpus_file, identity)
    triggers = read_triggers(triggers_file, {**corpus.attributes, **identity})
    return load(model_folder, device), triggers, corpus


@keys.command()
@TRIGGERS
@click.option(
    "--patterns", "pattern_files", type=READABLE, multiple=True, required=True, help="A layer group's patterns."
)
@click.option("--prefixes", "prefix_files", type=READABLE, multiple=True, required=True, help="Its prefixes.")
@click.option("--removal", "removal_files", type=READABLE, multiple=True, required=True, help="Its token removals.")
@seed_option
@click.option("--output", type=WRITABLE, required=True, help="The folder to write the four tables into.")
def summarize(triggers_file: Path, pattern_files, prefix_files, removal_files, seed: int, output: Path) -> None:
    """Put the layer groups together: categories.csv, patterns.csv, removal.csv and activity.csv.

    Repeat --patterns, --prefixes and --removal for each group.
    """
    from ffkv.activations.trigger_file import read_triggers
    from ffkv.files import tables
    from ffkv.keys.tables import activity, category_shares, living_layers, pattern_summary, removal_summary

    triggers = read_triggers(triggers_file)
    found, prefixes, removed = (tables.read_all(files) for files in (pattern_files, prefix_files, removal_files))
    alive = living_layers(triggers)
    tables.check_layers(prefixes, ["sample", "layer", "memory", "rank"], alive, "--prefixes")
    tables.check_layers(removed, ["layer", "memory", "removed"], alive, "--removal")
    tables.write(category_shares(prefixes, triggers.layers), output / "categories.csv")
    tables.write(pattern_summary(found, prefixes, triggers.layers), output / "patterns.csv")
    tables.write(removal_summary(removed, triggers.layers, seed), output / "removal.csv")
    tables.write(activity(triggers), output / "activity.csv")
