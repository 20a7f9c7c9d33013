"""Local files that a run reads: the checkpoint and the corpus that its settings name. `settings` are those of one run."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from ffkv.base.dependencies import code_hash
from ffkv.base.doors import CORE, entries, is_own, load, locate
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import write_text
from ffkv.base.hub.commit import find_move, is_local, may_be_on_hub, read_commit
from ffkv.base.lookup import exists, files_in, is_file, read_json
from ffkv.base.options import command_line
from ffkv.base.settings import EMBEDDED
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import Settings
from ffkv.corpus.sources import check_files, find_files
from ffkv.model.checkpoint.readers import reader_named
from ffkv.run.annotation_tables import MACHINE_FILES

PLANNING = "FFKV_PLANNING"  # environment variable of the Snakemake that `ffkv plan` asks
NOTES = Path(".snakemake/ffkv_contents.json")  # path: size, time and inode of a file, and the hash of its content


def checkpoint_files(settings: Settings) -> list[str]:
    """Returns the files of a local checkpoint, sorted; none if the run trains its own model, or the checkpoint is a hub id.

    Raises OSError or ValueError if its folder cannot be read.
    """
    model = settings.model.located()
    adapter_files = [str(path) for path in files_in(model.adapter)] if model.adapter else []
    files = [] if model.checkpoint == EMBEDDED else files_in(model.checkpoint)
    return [str(path) for path in files if model.gguf in ("", path.name)] + adapter_files


def dictionary_files(settings: Settings) -> list[str]:
    """Returns the files of the dictionaries of a run, sorted; none without any. Raises OSError if the folder cannot be read."""
    path = settings.dictionary.located().path
    return [str(file) for file in sorted([Path(path), *Path(path).rglob("*")]) if is_file(file)] if path else []


def code_beside(what: str, settings: Settings) -> str:
    """Returns a hash over the code of another package than ffkv that reads the checkpoint, or brings the text; "" if none does."""
    if what == "corpus":
        entry = entries("corpora").get(settings.corpus.dataset)
    elif what == "dictionary" and settings.dictionary.is_asked:
        read_by = [*entries("dictionaries").values(), *entries("dictionary_forms").values()]
        return "".join(sorted({code_hash(each.value) for each in read_by}))
    elif what == "checkpoint" and settings.model.gguf:
        entry = entries("files").get("gguf")
    elif what == "checkpoint":
        entry = entries("readers").get(reader_named(settings.model.located().checkpoint))
    else:
        return ""
    return "" if entry is None or is_own(entry, CORE) else code_hash(entry.value)


def check_packages(settings: Settings) -> None:
    """Makes sure that the packages are installed whose text a run reads, or that train its model. Raises UserError if one is missing."""
    corpus = settings.corpus
    if EMBEDDED in (settings.model.checkpoint, corpus.dataset):
        load("rules", EMBEDDED)
    if settings.model.gguf:
        load("rules", "gguf")
    for address in (corpus.train + corpus.validation) * (corpus.dataset == "files") + settings.embedded.text:
        locate(address)


def unreadable_inputs(settings: Settings) -> list[str]:
    """Says what cannot be read of the local files of a run, in one sentence each. Of text it reads the beginnings of files."""
    splits = () if settings.corpus.contradictions() else ("train", "validation")[: 1 + bool(settings.corpus.validation)]
    checks: list[Callable] = [partial(check_files, settings.corpus, split) for split in splits]
    checks += [partial(find_files, settings.embedded.text)] if settings.model.checkpoint == EMBEDDED else []
    for branch in BRANCHES.values():
        checks += [partial(branch.find_files, its, read=True) for its in branch.sections(settings)]
    folder = settings.dictionary.located().path
    problems = [f"There is no {folder}. Set dictionary.path to another folder."] * bool(folder and not exists(folder))
    for check in checks:
        try:
            check()
        except UserError as error:
            problems.append(str(error))
    return problems


def tuning_files(settings: Settings, trained_here: bool) -> list[str]:
    """Returns the local files that the training of a run's own model reads. Raises: see `checkpoint_files` and `find_files`.

    `trained_here`: whether the workflow trains the model that the training goes on from, too: then it is no local file.
    """
    start = settings.embedded.tuned_from
    files = [] if trained_here or not start else files_in(start)
    return [*map(str, files), *find_files(settings.embedded.text)]


def annotation_files(settings: Settings, run: str) -> list[str]:
    """Returns the files with what people and machines said about a run, and the secret keys of its sheets; or none.

    Of a machine that explained memories these are its tables; its answers, which the tables come from, are not read. Raises
    OSError if a folder cannot be read.
    """
    folder, names = Path(settings.annotation.folder) / run, {"settings.json", *MACHINE_FILES}
    records = [str(path) for path in files_in(folder / "records") if path.suffix == ".jsonl"]
    keys = [str(path) for path in files_in(folder / "secret") if path.suffix == ".json"]
    machines = [str(path) for path in sorted((folder / "machine").glob("*/*.*")) if path.name in names]
    return records + keys + machines if records or machines else []


def hub_repositories(settings: Settings) -> dict[str, str]:
    """Returns the repositories on the hub that a run reads, as options of `ffkv resolve-commit`: "model", "dataset".

    Raises UserError if the checkpoint is in a Python package that is not installed.
    """
    checkpoint, given, found = settings.model.located().checkpoint, settings.model_dump(), {}
    if checkpoint != EMBEDDED and not is_local(checkpoint) and may_be_on_hub(checkpoint):
        names = ("checkpoint", "revision", "adapter", "adapter_revision", "trust_remote_code")
        found["model"] = command_line(given, *(f"model/{name}" for name in names))
    if settings.corpus.on_hub and not is_local(settings.corpus.dataset):
        found["dataset"] = command_line(given, "corpus/dataset", "corpus/revision")
    return found


def moves(results: Path) -> list[str]:
    """Sentences on the branches that are at another commit by now than the one that a run, by its folder, reads."""
    sentences = []
    for path in sorted((results / "commits").glob("*.json")):
        with contextlib.suppress(UserError):  # whoever reads it says what is wrong
            commit = read_commit(path)
            if now := find_move(commit):
                sentences.append(
                    f"{commit.repository}: {commit.revision} is at commit {now} by now. {results} reads commit"
                    f" {commit.commit} throughout. To read the new one, delete {path} and start again."
                )
    return sentences


def contents(paths: Iterable[str]) -> str:
    """Returns a hash over the names and the contents of files. As a parameter of the rule, a change of them repeats the rule.

    Times alone do not tell: a file that `cp -p`, `tar` or `rsync -t` brings is older than what was made from its
    predecessor, and one that was only touched is the same. A file is read again only if its size, time or inode
    changed; for `ffkv plan`, which has to answer soon, it is then taken for changed.
    """
    try:
        read = read_json(NOTES, 2**28)
        notes = {path: note for path, note in read.items() if isinstance(note, list) and len(note) == 4}
    except (OSError, ValueError, AttributeError):  # none yet, or damaged: every file is read again
        notes = {}
    known = dict(notes)
    digest = hashlib.sha256()
    for path in paths:
        try:
            entry = Path(path).stat()
            state = [entry.st_size, entry.st_mtime_ns, entry.st_ino]
            if known.get(path, [])[:3] != state:
                if PLANNING in os.environ:
                    return "changed"
                with Path(path).open("rb") as file:
                    known[path] = [*state, hashlib.file_digest(file, "sha256").hexdigest()]
            digest.update(f"{path}\0{known[path][3]}\n".encode(errors="surrogateescape"))
        except OSError:  # the step that reads it says why
            digest.update(f"{path}\0unreadable\n".encode(errors="surrogateescape"))
    if known != notes:
        with contextlib.suppress(UserError, OSError):  # they only save time
            write_text(NOTES, json.dumps(known))
    return digest.hexdigest()[:16]
