"""`ffkv keys`: `patterns`, `removal`, `precision`, `summarize`."""

from pathlib import Path
from typing import Any

import click

from ffkv.base.options import (
    CORPUS,
    MODEL,
    READABLE,
    TRIGGERS,
    measures_layers,
    output_option,
    part_options,
    seed_option,
    setting,
    threads_option,
)
from ffkv.base.parts import Part
from ffkv.base.settings import Activations, Keys, Model, section


@click.group()
def keys() -> None:
    """What keys detect: patterns in their trigger examples, token removal, activity (paper section 3)."""


@keys.command()
@TRIGGERS
@CORPUS
@setting(Keys, *(name for name in Keys.model_fields if name not in ("removal_triggers", "precision")))
@seed_option
@part_options("layer_group")
@threads_option
@output_option("Table to write, keys/patterns/<group>.parquet.", "--output-patterns")
@output_option("Table to write, keys/by_prefix/<group>.parquet.", "--output-by-prefix")
def patterns(
    triggers_file: Path,
    corpus_file: Path,
    seed: int,
    layer_group: int,
    layer_groups: int,
    threads: int,
    output_patterns: Path,
    output_by_prefix: Path,
    **options: Any,
) -> None:
    """Find patterns in the trigger examples of random keys. Random prefixes are searched in the same way, as a control."""
    from ffkv.base.files import tables
    from ffkv.branches.keys.step import find_patterns

    settings, group = section(Keys, **options), Part(layer_group, layer_groups)
    pattern_table, prefix_table = find_patterns(triggers_file, corpus_file, settings, seed, group)
    tables.write(pattern_table, output_patterns)
    tables.write(prefix_table, output_by_prefix)


@keys.command()
@MODEL
@TRIGGERS
@CORPUS
@setting(Keys, "per_layer", "removal_triggers")
@setting(Activations, "batch_tokens")
@setting(Model, "max_memory")
@seed_option
@measures_layers
@output_option("Table to write, keys/removal/<group>.parquet.")
def removal(
    model_folder: Path,
    triggers_file: Path,
    corpus_file: Path,
    batch_tokens: int,
    seed: int,
    device: str,
    max_memory: dict[str, str],
    layer_group: Part,
    output: Path,
    **options: Any,
) -> None:
    """Measure how coefficients change when a token is removed: the first, the last or a random one."""
    from ffkv.base.files import tables
    from ffkv.branches.keys.step import remove_tokens

    files, settings = (model_folder, triggers_file, corpus_file), section(Keys, **options)
    tables.write(remove_tokens(*files, settings, batch_tokens, device, seed, layer_group, max_memory), output)


@keys.command()
@MODEL
@TRIGGERS
@CORPUS
@setting(Keys, "per_layer")
@setting(Model, "device", "max_memory")
@setting(Activations, "batch_tokens")
@seed_option
@threads_option
@output_option("Table to write, keys/precision.csv.")
def precision(
    model_folder: Path,
    triggers_file: Path,
    corpus_file: Path,
    device: str,
    max_memory: dict[str, str],
    batch_tokens: int,
    seed: int,
    threads: int,
    output: Path,
    **options: Any,
) -> None:
    """Measure how low precision changes trigger examples. Their coefficients are computed again in float32."""
    from ffkv.base.process.runtime import torch_with

    torch_with(threads)
    from ffkv.base.files import tables
    from ffkv.branches.keys.step import measure_precision

    files, settings = (model_folder, triggers_file, corpus_file), section(Keys, **options)
    tables.write(measure_precision(*files, settings, batch_tokens, device, seed, max_memory), output)


def _tables_option(flag: str) -> Any:
    name = flag.strip("-").replace("-", "_")
    about = f"Table keys/{name}/<group>.parquet; repeat it."
    return click.option(flag, type=READABLE, multiple=True, required=True, help=about)


@keys.command()
@TRIGGERS
@_tables_option("--patterns")
@_tables_option("--by-prefix")
@_tables_option("--removal")
@seed_option
@output_option("Folder to write into, keys/.")
def summarize(
    triggers_file: Path,
    patterns: tuple[Path, ...],
    by_prefix: tuple[Path, ...],
    removal: tuple[Path, ...],
    seed: int,
    output: Path,
) -> None:
    """Write the tables of figures 2 and 3, and activity.csv.

    The input is the tables of all layer groups. Give --patterns, --by-prefix and --removal once for each group.
    """
    from ffkv.base.files import tables
    from ffkv.branches.keys.step import summarize_keys

    tables.write_all(summarize_keys(triggers_file, patterns, by_prefix, removal, seed), output)
