"""The passes over the corpus as functions on files: trigger examples, and activations of sampled prefixes."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ffkv.activations import triggers
from ffkv.activations.batches import Batching
from ffkv.activations.resume import ProgressFile, identity
from ffkv.activations.states import draw_prefixes, write_shard
from ffkv.activations.steps import TRIGGERS
from ffkv.activations.trigger_file import Triggers
from ffkv.base.settings import Batches, Prefixes, Section
from ffkv.base.settings import Triggers as TriggerSettings
from ffkv.base.steps import Work
from ffkv.corpus.corpus_file import Corpus, read_corpus
from ffkv.model.checkpoint.load import LoadedModel, load_for


@torch.no_grad()
def find_triggers(
    model: Path | str,
    corpus: Path | str,
    settings: TriggerSettings = TriggerSettings(),
    batching: Batches = Batches(),
    work: Work = Work(),
    progress_file: Path | str | None = None,
    save_every: float = 60.0,
) -> Triggers:
    """Finds the trigger examples of every key (paper section 3.1).

    Args:
        model: the model's folder, `results/<run>/model`.
        corpus: the train split, `corpus/train.h5`.
        settings: which prefixes compete, and how many are kept per key.
        batching: how sentences are cut into batches.
        work: the device, and which shard of the corpus.
        progress_file: where the state is saved from time to time; if it is there, the pass continues from it.
        save_every: seconds between two savings.
    Raises:
        UserError: the model and the corpus do not belong together; or see `triggers.find_triggers`.
    Examples:
        >>> one = ffkv.Work(part=ffkv.Part(0, 20))  # the first of 20 parts of the corpus
        >>> triggers = ffkv.find_triggers(
        ...     "results/tiny/model", "results/tiny/corpus/train.h5", ffkv.settings.Triggers(per_key=3), work=one
        ... )
        >>> triggers.coefficient.shape  # [memory, rank]
        (256, 3)
    """
    loaded, split, cut = _load(model, corpus, work, batching)
    attributes = {**_attributes(loaded, split, settings, batching), "shard": work.part.index, "shards": work.part.count}
    saved = None
    if progress_file is not None:
        known = identity(TRIGGERS.code, {**attributes, "batches": cut}, loaded.device)
        saved = ProgressFile(Path(progress_file), known, save_every)
    shard_triggers = triggers.find_triggers(loaded, split, settings, cut, work.part, saved)
    return replace(shard_triggers, attributes=attributes)


@torch.no_grad()
def sample_prefixes(
    model: Path | str,
    corpus: Path | str,
    output: Path | str,
    settings: Prefixes = Prefixes(),
    batching: Batches = Batches(),
    seed: int = 0,
    work: Work = Work(),
    states: Sequence[str] = ("y", "m"),
) -> None:
    """Writes y, o and m of one shard of the sampled prefixes.

    Args:
        model: the model's folder, `results/<run>/model`.
        corpus: the split that they are drawn from, such as `corpus/validation.h5`.
        output: the file; its states are in the folder `<name>.blocks` beside it, which must stay.
        settings: how many prefixes are drawn, how, and which further states are stored.
        batching: how prefixes are cut into batches.
        seed: seed of the sample.
        work: the device, and which shard of the sample.
        states: which states are stored beside o and `settings.extra_states`.
    Raises:
        UserError: the model and the corpus do not belong together, states overflow, or a file cannot be written.
    Examples:
        >>> ffkv.sample_prefixes(
        ...     "results/tiny/model", "results/tiny/corpus/validation.h5", "sample.h5", ffkv.settings.Prefixes(count=10)
        ... )
    """
    loaded, split, cut = _load(model, corpus, work, batching)
    sample = draw_prefixes(split.lengths, settings.count, settings.sample, seed)
    attributes = {
        **_attributes(loaded, split, settings, batching),
        "seed": seed,
        "sample_hash": hashlib.sha256(np.stack(sample).tobytes()).hexdigest()[:16],
        "sampled": len(sample[0]),
    }
    keep = [*states, *settings.extra_states]
    write_shard(Path(output), loaded, split, sample, keep, cut, work.part, attributes)


def _load(model: Path | str, corpus: Path | str, work: Work, batching: Batches) -> tuple[LoadedModel, Corpus, Batching]:
    loaded = load_for(model, replace(work, batch_tokens=batching.tokens))
    cut = Batching(loaded.batch_tokens, batching.block_sentences)
    return loaded, read_corpus(corpus, {"tokenizer_hash": loaded.anatomy.tokenizer_hash}), cut


def _attributes(loaded: LoadedModel, corpus: Corpus, settings: Section, batching: Batches) -> dict[str, Any]:
    source = ("corpus_hash", "dataset_revision", "dataset_commit")
    return {
        **loaded.anatomy.identity,
        **{name: corpus.attributes[name] for name in source if name in corpus.attributes},
        "settings": settings.model_dump(),
        "batches": batching.model_dump(),
    }
