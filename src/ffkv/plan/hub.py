"""What a run reads of the hub: at which commits, and how much is downloaded before the run can go on without it."""

import shutil
from pathlib import Path
from typing import NamedTuple

from ffkv.base.hub.commit import Commit, read_commit, resolve_dataset, resolve_model
from ffkv.base.hub.fetch import choose_files_of, choose_model_files, measure_missing
from ffkv.base.settings import Settings, corpus_sources
from ffkv.base.terminal import in_bytes
from ffkv.corpus.hub_rows import describe_split
from ffkv.workflow.jobs import Job


class Download(NamedTuple):
    """What a run downloads of a repository.

    Attributes:
        repository: its id.
        commit: its commit.
        streamed: whether its files are read as far as the run needs them, and not kept.
        files: number of files that are not in the hub's cache; 0 if it is streamed.
        bytes: their bytes.
    """

    repository: str
    commit: str
    streamed: bool
    files: int
    bytes: int

    def __str__(self) -> str:
        """One line for a person."""
        if self.streamed:
            much = "streamed as far as corpus.limit needs it, and not kept"
        elif self.files:
            much = f"{in_bytes(self.bytes)} in {self.files} {'file' if self.files == 1 else 'files'} to download"
        else:
            much = "in the hub's cache"
        return f"{self.repository}, commit {self.commit}: {much}"


def resolve_commits(settings: Settings, jobs: list[Job]) -> dict[str, Commit]:
    """The commits that a run reads, by "model" and "dataset"; only of what is on the hub.

    Args:
        settings: the settings of the run.
        jobs: its jobs of the rule `resolve_commit`. What is resolved already is read from their files.
    Raises:
        UserError: there is no such repository or revision, it may not be read, or the hub cannot be reached.
    """
    commits = {}
    for job in jobs:
        kind = Path(job.outputs[0]).stem
        if job.done:
            commits[kind] = read_commit(job.outputs[0])
        else:
            commits[kind] = resolve_model(settings.model) if kind == "model" else resolve_dataset(settings.corpus)
    return commits


def find_downloads(settings: Settings, commits: dict[str, Commit], written: dict[str, Path]) -> list[Download]:
    """What a run downloads of each repository.

    Args:
        settings: the settings of the run.
        commits: see `resolve_commits`.
        written: files of splits that are up to date, for which nothing is read any more.
    Raises:
        UserError: see `resolve_commits`.
    """
    found = []
    if model := commits.get("model"):
        chosen = choose_files_of(settings.model.gguf, settings.model.weights != "random")
        found.append(_measure(model, measure_missing(model, chosen)))
        if model.adapter_commit:
            found.append(_measure(model.of_adapter, measure_missing(model.of_adapter, choose_model_files)))
    if (dataset := commits.get("dataset")) and len(written) < 2:
        corpus, streamed = settings.corpus, settings.corpus.limit > 0
        sources = {} if streamed else {corpus_sources(corpus, split)[0][0] for split in ("train", "validation")}
        files = {name for split in sources for name in describe_split(dataset, corpus.config, split).files}
        missing = measure_missing(dataset, lambda names: [name for name in names if name in files])
        found.append(_measure(dataset, missing, streamed))
    return found


def _measure(commit: Commit, missing: dict[str, int], streamed: bool = False) -> Download:
    return Download(commit.repository, commit.commit, streamed, len(missing), sum(missing.values()))


def warn_of_cache(downloads: list[Download]) -> list[str]:
    """Says where the hub's cache has too little room for what will be downloaded."""
    from huggingface_hub import constants

    size = sum({(one.repository, one.commit): one.bytes for one in downloads}.values())  # runs share the cache
    folder = Path(constants.HF_HUB_CACHE)
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    short = f"{in_bytes(size)} will be downloaded, but only {in_bytes(free)} is free in {folder}"
    remedy = "Free some, or set HF_HOME to a folder on a larger disk."
    return [f"Not enough disk space: {short}. {remedy}"] if size > free else []
