"""Changes memory coefficients while the model runs, and summarizes what follows."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.activations.trigger_file import read_triggers
from ffkv.base.files import hdf5, tables
from ffkv.base.process.progress import progress
from ffkv.base.settings import Intervention
from ffkv.base.steps import Work
from ffkv.base.streams import Purpose, random_stream
from ffkv.base.terminal import say
from ffkv.branches.intervention import summaries
from ffkv.branches.intervention.significance import add_q_values
from ffkv.branches.intervention.tables import BY_MEMORY, BY_PREFIX, KEPT
from ffkv.branches.values.projections import read_projections
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.vocabulary import read_vocabulary

DEFAULTS = Intervention()


class Measured(NamedTuple):
    """What interventions in a group of layers did. docs/formats.md lists the columns."""

    by_prefix: pd.DataFrame  # one row per memory, side, prefix, change and reach
    by_memory: pd.DataFrame  # one row per memory, side and reach
    kept: pd.DataFrame  # one row per prefix, choice and number of kept memories


def measure_interventions(
    model: Path | str,
    triggers: Path | str,
    projections: Path | str,
    prefixes: Path | str,
    train: Path | str,
    validation: Path | str,
    settings: Intervention = DEFAULTS,
    seed: int = 0,
    work: Work = Work(),
) -> Measured:
    """Changes the coefficients of random memories of a group of layers, with controls (docs/interventions.md).

    The model computes in float32, whatever the type of its weights, because a contribution is small beside the
    residual.

    Args:
        model: folder of the model step.
        triggers: file `triggers.h5`.
        projections: file `values/projections/<group>.h5` of the same layer group.
        prefixes: file `sampled_prefixes.h5`.
        train: file `corpus/train.h5`.
        validation: file `corpus/validation.h5`.
        settings: how many memories, prefixes and controls.
        seed: the run's seed.
        work: device, tokens per pass, and the layers to measure.
    Raises:
        UserError: a file is missing or damaged, or the files belong to different models or corpora; the checkpoint has
            changed; there is no such layer group or device; the model cannot be changed while it runs.
    Examples:
        >>> few = ffkv.settings.Intervention(
        ...     memories=1, examples=1, controls=3, directions=0, similar=0, top_k_prefixes=1
        ... )
        >>> run = "results/tiny"
        >>> measured = ffkv.measure_interventions(
        ...     f"{run}/model",
        ...     f"{run}/triggers.h5",
        ...     f"{run}/values/projections/0.h5",
        ...     f"{run}/sampled_prefixes.h5",
        ...     f"{run}/corpus/train.h5",
        ...     f"{run}/corpus/validation.h5",
        ...     few,
        ...     work=ffkv.Work(part=ffkv.Part(0, 2)),  # the first of two groups of layers
        ... )
        >>> sorted(measured.by_memory["reach"].unique())
        ['direct', 'total']
    """
    from ffkv.branches.intervention.by_layer import Inputs, intervene, keep
    from ffkv.model.effects.running import running

    anatomy = read_anatomy(model)
    layers = work.part.of(len(anatomy.layers))
    examples = read_triggers(triggers, anatomy.identity)
    top = read_projections(projections, anatomy.identity, layers)
    sentences = read_corpus(Path(train), examples.attributes)
    with hdf5.open(prefixes, "sampled prefixes", anatomy.identity) as file:
        sampled, of_sample = (file["sentence"][...], file["position"][...]), dict(file.attrs)
    kept = _drawn_prefixes(read_corpus(Path(validation), of_sample), *sampled, settings.top_k_prefixes, seed)
    with running(model, work) as its:
        if not its.keeps:
            say("Prefixes are run again as a whole: this model keeps no keys and values as others do.")
        inputs = Inputs(
            its.loaded,
            its.head,
            examples,
            top,
            sentences,
            kept,
            its.keeps,
            its.reruns,
            settings,
            its.batch_tokens,
            seed,
        )
        by_prefix, by_memory = [], []
        with progress(len(layers), "layers", "interventions") as bar:
            for number in layers:
                prefix_rows, memory_rows = intervene(inputs, number)
                by_prefix += prefix_rows
                by_memory += memory_rows
                bar.update()
        with progress(len(kept), "prefixes", "kept memories") as bar:
            of_kept = keep(inputs, layers, bar.update)
    return Measured(
        tables.identify(BY_PREFIX.frame(by_prefix), examples.attributes),
        tables.identify(add_q_values(BY_MEMORY.frame(by_memory)), examples.attributes),
        tables.identify(KEPT.frame(of_kept), of_sample),
    )


def _drawn_prefixes(
    corpus: Corpus, sentence: np.ndarray, position: np.ndarray, count: int, seed: int
) -> list[tuple[int, np.ndarray]]:
    """Number and token ids of some of the sampled prefixes, the same ones for every layer."""
    drawn = random_stream(seed, Purpose.KEPT_PREFIXES).choice(len(sentence), min(count, len(sentence)), replace=False)
    return [(n, corpus.prefix_ids(sentence[n], position[n])) for n in np.sort(drawn).tolist()]


def summarize_interventions(
    by_prefix: Iterable[Path | str],
    by_memory: Iterable[Path | str],
    kept: Iterable[Path | str],
    model: Path | str,
    projections: Iterable[Path | str],
) -> dict[str, pd.DataFrame]:
    """Summarizes the tables of all layer groups for the report's section of interventions.

    Args:
        by_prefix: the tables `intervention/by_prefix/<group>.parquet`, each once.
        by_memory: the tables `intervention/by_memory/<group>.parquet`, each once.
        kept: the tables `intervention/kept/<group>.parquet`, each once.
        model: folder of the model step.
        projections: the files `values/projections/<group>.h5`, each once.
    Returns:
        The tables by the stem of their file.
    Raises:
        UserError: a file is missing or damaged, or belongs to another model; a layer is missing or repeated.
    Examples:
        >>> def files(name):
        ...     return [f"results/tiny/{name}/{group}" for group in ("0.parquet", "1.parquet")]
        >>> tables = ffkv.summarize_interventions(
        ...     *[files(f"intervention/{name}") for name in ("by_prefix", "by_memory", "kept")],
        ...     "results/tiny/model",
        ...     ["results/tiny/values/projections/0.h5", "results/tiny/values/projections/1.h5"],
        ... )
        >>> sorted(tables)
        ['intervention_doses', 'intervention_memories', 'interventions_by_layer', 'kept_memories']
    """
    anatomy = read_anatomy(Path(model))
    prefix_table, memory_table, kept_table = (
        tables.read_all(paths, anatomy.identity) for paths in (by_prefix, by_memory, kept)
    )
    every_layer = {*range(len(anatomy.layers))}
    tables.check_layers(kept_table, ["layer", "prefix", "choice", "kept"], every_layer, "--kept")
    tables.check_layers(memory_table, ["layer", "memory", "side", "reach"], {*memory_table["layer"]}, "--by-memory")
    read = [read_projections(path, anatomy.identity) for path in projections]
    top_token = {
        (layer, memory): int(token)
        for each in read
        for layer, memory, token in zip(each.layer.tolist(), each.memory.tolist(), each.top.tolist())
    }
    vocabulary = read_vocabulary(Path(model))
    return {
        "interventions_by_layer": summaries.summarize_sources(memory_table),
        "intervention_doses": summaries.summarize_doses(prefix_table),
        "kept_memories": summaries.summarize_kept(kept_table),
        "intervention_memories": summaries.describe_memories(memory_table, top_token, vocabulary),
    }
