"""Finds patterns, removes tokens, measures the effect of low precision, summarizes.

The two steps that run the model import torch themselves: it takes a second, and the other two steps do without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import Triggers, read_triggers
from ffkv.base.files import tables
from ffkv.base.process.progress import progress
from ffkv.base.settings import Keys
from ffkv.base.steps import Work
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.keys import summaries
from ffkv.branches.keys.key_sample import sample_examples, sample_keys, trigger_prefixes
from ffkv.branches.keys.patterns import detect_patterns, pattern_rows, prefix_rows, prepare_detector
from ffkv.branches.keys.precision import precision_row, rescore
from ffkv.branches.keys.removal import Coefficients, relative_changes, removal_rows
from ffkv.branches.keys.tables import BY_PREFIX, PATTERNS, PRECISION, PRECISION_KEYS, REMOVAL
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.model.anatomy import read_anatomy

if TYPE_CHECKING:
    from ffkv.model.checkpoint.load import LoadedModel

DEFAULTS = Keys()


def find_patterns(
    triggers: Path | str, train: Path | str, settings: Keys = DEFAULTS, seed: int = 0, work: Work = Work()
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Finds patterns in the trigger examples of random keys, and in as many random keys (paper section 3.2).

    Args:
        triggers: file `triggers.h5`.
        train: file `corpus/train.h5`.
        settings: all but `removal_triggers` are used.
        seed: the run's seed.
        work: the layers to read.
    Returns:
        The tables `PATTERNS` and `BY_PREFIX` of `ffkv.branches.keys.tables`. Their `attrs` hold the identities of
        model, tokenizer and corpus.
    Raises:
        UserError: a file is missing or damaged, or the files belong to different corpora; there is no such layer group.
    Examples:
        >>> few = ffkv.settings.Keys(per_layer=2, pattern_triggers=20, background_prefixes=100)
        >>> patterns, by_prefix = ffkv.find_patterns("results/tiny/triggers.h5", "results/tiny/corpus/train.h5", few)
        >>> sorted(by_prefix["sample"].unique())  # random keys are the control
        ['random', 'trigger']
    """
    sentences = read_corpus(Path(train))
    examples = read_triggers(Path(triggers), sentences.attributes)
    layers = work.part.of(examples.layers)
    patterns, prefixes = [], []
    competing = CompetingPrefixes(sentences, examples.settings.shared_prefixes_compete == "once")
    with progress(1, "corpora", "what is frequent by chance") as bar:
        detector = prepare_detector(competing, settings, seed)
        bar.update()
    with progress(len(layers), "layers", "patterns") as bar:
        for layer in layers:
            keys = sample_examples(examples, competing, layer, settings.per_layer, settings.pattern_triggers, seed)
            patterns_of_keys = detect_patterns([key.prefixes for key in keys], detector)
            patterns += pattern_rows(layer, keys, patterns_of_keys)
            prefixes += prefix_rows(layer, keys, patterns_of_keys)
            bar.update()
    return (
        tables.identify(PATTERNS.frame(patterns), examples.attributes),
        tables.identify(BY_PREFIX.frame(prefixes), examples.attributes),
    )


def remove_tokens(
    model: Path | str,
    triggers: Path | str,
    train: Path | str,
    settings: Keys = DEFAULTS,
    seed: int = 0,
    work: Work = Work(),
) -> pd.DataFrame:
    """Removes the first, the last or a random token from trigger examples of random keys (paper section 3.2, figure 3).

    Args:
        model: folder of the model step.
        triggers: file `triggers.h5`.
        train: file `corpus/train.h5`.
        settings: `per_layer` and `removal_triggers` are used.
        seed: the run's seed.
        work: device, batches, and the layers to read.
    Returns:
        The table `REMOVAL` of `ffkv.branches.keys.tables`. Its `attrs` hold the identities of model,
        tokenizer and corpus.
    Raises:
        UserError: a file is missing or damaged, or the files belong to different models or corpora; the checkpoint has
            changed; there is no such layer group or device.
    Examples:
        >>> few = ffkv.settings.Keys(per_layer=2, removal_triggers=3)
        >>> files = ["results/tiny/model", "results/tiny/triggers.h5", "results/tiny/corpus/train.h5"]
        >>> sorted(ffkv.remove_tokens(*files, few)["removed"].unique())
        ['first', 'last', 'random']
    """
    from ffkv.activations.last_token import branches

    loaded, examples, sentences = _read_inputs(model, triggers, train, work)
    layers, rows = work.part.of(examples.layers), []
    longest = sentences.ids(int(sentences.lengths.argmax()))
    branching = bool(layers) and branches(loaded, np.concatenate([sentences.bos, longest]))
    if layers and not branching:
        say(
            "Prefixes without a middle token are read whole: this model gives something else where it reads their beginning once."
        )
    with progress(len(layers), "layers", "token removal") as bar:
        for layer in layers:
            keys = sample_keys(examples, layer, settings.per_layer, seed)
            memories, _, prefixes = trigger_prefixes(examples, sentences, layer, keys, settings.removal_triggers)
            coefficients = _coefficients(loaded, layer, work.batch_tokens, branching)
            changes = relative_changes(
                prefixes, memories, sentences.bos, coefficients, random_stream(seed, Purpose.REMOVED_TOKENS, layer)
            )
            rows += removal_rows(layer, keys, memories, changes)
            bar.update()
    return tables.identify(REMOVAL.frame(rows), examples.attributes)


def measure_precision(
    model: Path | str,
    triggers: Path | str,
    train: Path | str,
    settings: Keys = DEFAULTS,
    seed: int = 0,
    work: Work = Work(),
) -> pd.DataFrame:
    """Computes the coefficients of trigger examples of random keys again in float32, and compares them.

    Args:
        model: folder of the model step.
        triggers: file `triggers.h5`.
        train: file `corpus/train.h5`.
        settings: `per_layer` is used, if it is at most 25.
        seed: the run's seed.
        work: device and batches.
    Returns:
        The table `PRECISION` of `ffkv.branches.keys.tables`.
    Raises:
        UserError: as `remove_tokens`.
    Examples:
        >>> few = ffkv.settings.Keys(per_layer=2)
        >>> files = ["results/tiny/model", "results/tiny/triggers.h5", "results/tiny/corpus/train.h5"]
        >>> len(ffkv.measure_precision(*files, few))  # one row per layer
        2
    """
    loaded, examples, sentences = _read_inputs(model, triggers, train, work)
    from ffkv.model.placement.precision import running_in_float32

    rows, most = [], min(settings.per_layer, PRECISION_KEYS)
    with running_in_float32(loaded.model), progress(examples.layers, "layers", "float32") as bar:
        for layer in range(examples.layers):
            keys = sample_keys(examples, layer, most, seed)
            coefficients = _coefficients(loaded, layer, work.batch_tokens)
            rows.append(precision_row(layer, *rescore(examples, sentences, layer, keys, coefficients)))
            bar.update()
    return PRECISION.frame(rows)


def summarize_keys(
    triggers: Path | str,
    patterns: Iterable[Path | str],
    by_prefix: Iterable[Path | str],
    removal: Iterable[Path | str],
) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups, per layer.

    Args:
        triggers: file `triggers.h5`.
        patterns: the tables `keys/patterns/<group>.parquet`, each once.
        by_prefix: the tables `keys/by_prefix/<group>.parquet`, each once.
        removal: the tables `keys/removal/<group>.parquet`, each once.
    Returns:
        The tables by the stem of their file.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model, tokenizer or corpus than the triggers; a
            layer is missing or repeated.
    Examples:
        >>> of_groups = [
        ...     [f"results/tiny/keys/{name}/{group}.parquet" for group in (0, 1)]
        ...     for name in ("patterns", "by_prefix", "removal")
        ... ]
        >>> sorted(ffkv.summarize_keys("results/tiny/triggers.h5", *of_groups))
        ['activity', 'figure_2_categories', 'figure_2_pattern_counts', 'figure_3_removal']
    """
    examples = read_triggers(Path(triggers))
    pattern_table, prefix_table, removal_table = (
        tables.read_all(paths, examples.attributes) for paths in (patterns, by_prefix, removal)
    )
    living = summaries.living_layers(examples)
    tables.check_layers(prefix_table, ["sample", "layer", "memory", "rank"], living, "--by-prefix")
    tables.check_layers(removal_table, ["layer", "memory", "removed"], living, "--removal")
    return {
        "figure_2_categories": summaries.count_categories(prefix_table, examples.layers),
        "figure_2_pattern_counts": summaries.count_patterns(pattern_table, prefix_table, examples.layers),
        "figure_3_removal": summaries.average_removals(removal_table, examples.layers),
        "activity": summaries.measure_activity(examples),
    }


def _read_inputs(
    model: Path | str, triggers: Path | str, train: Path | str, work: Work
) -> tuple[LoadedModel, Triggers, Corpus]:
    """Loads the model, and reads both files, which must belong to the model and to each other."""
    from ffkv.model.checkpoint.load import load

    identity = read_anatomy(Path(model)).identity
    sentences = read_corpus(Path(train), identity)
    examples = read_triggers(Path(triggers), {**sentences.attributes, **identity})
    return load(Path(model), work.device, work.max_memory), examples, sentences


def _coefficients(model: LoadedModel, layer: int, batch_tokens: int, branching: bool = False) -> Coefficients:
    from ffkv.activations.last_token import last_coefficients

    return lambda rows, memories: last_coefficients(model, layer, rows, memories, batch_tokens, branching)
