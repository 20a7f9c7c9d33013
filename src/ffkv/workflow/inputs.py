"""Local files that a run reads: the checkpoint and the corpus that its settings name."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from snakemake.io import contains_wildcard

from ffkv.corpus.sources import find_files
from ffkv.errors import UserError
from ffkv.settings import EMBEDDED, Corpus, corpus_sources, section


def checkpoint_files(settings: dict[str, Any]) -> list[str]:
    """The files of a local checkpoint, sorted.

    Args:
        settings: the settings of one run.
    Returns:
        No files if the run trains its own model, or if the checkpoint is a hub id.
    """
    folder = Path(settings["model"]["checkpoint"])
    if str(folder) == EMBEDDED or not folder.is_dir():
        return []
    return sorted(str(path) for path in folder.iterdir() if path.is_file())


def corpus_files(settings: dict[str, Any], split: str) -> list[str]:
    """The files behind a split of a local corpus.

    Args:
        settings: the settings of one run.
        split: `train` or `validation`.
    Returns:
        No files if the corpus is embedded or comes from the hub, or if a file is missing: then `ffkv corpus` says which.
    """
    if settings["corpus"]["dataset"] != "files":
        return []
    try:
        return find_files(corpus_sources(section(Corpus, **settings["corpus"]), split)[0])
    except UserError:
        return []


def tracked(paths: Iterable[str]) -> list[str]:
    """The paths that can be inputs of a rule. Snakemake takes braces in a path for wildcards."""
    return [path for path in paths if not contains_wildcard(path)]


def states(paths: Iterable[str]) -> list[str]:
    """Size and time of each file that cannot be an input. As a parameter of the rule, a change of them repeats the rule."""
    return [
        f"{path}: {Path(path).stat().st_size} bytes of {Path(path).stat().st_mtime}"
        for path in paths
        if contains_wildcard(path)
    ]


def training_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run as the training of its own model sees them.

    The model is always trained on the embedded corpus. If the run reads another corpus, the corpus settings of the
    training are the defaults.
    """
    if settings["corpus"]["dataset"] == EMBEDDED:
        return settings
    return settings | {"corpus": Corpus().model_dump()}
