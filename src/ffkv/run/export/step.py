"""Exports memories of a finished run into the format of another tool, with `ffkv-export.json` beside them.

This file says of which run the export is, how it was made, and what its numbers mean.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ffkv.base.doors import load
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.stored import versions
from ffkv.base.lookup import exists, find, is_dir, read_json
from ffkv.base.process.progress import progress
from ffkv.run.export.job import Format, Job, Unit, definitions, public_name, write_json
from ffkv.run.export.records import Record, reader
from ffkv.run.export.selection import NONE, Selection, select
from ffkv.run.export.settings import ELSEWHERE, FORMATS, Export
from ffkv.run.export.store import Store, fill
from ffkv.run.results.collections import choose_memories
from ffkv.run.results.run import Run, open

FILE = "ffkv-export.json"
WORK = ".ffkv-export"  # folder of the coefficients, until the export is finished
COMMON = definitions(__package__, "common")
DENSE_TOKENS = 500_000  # of a text on which every coefficient is kept


def export(run: Run, format_name: str, output: Path, wanted: Export = Export(), device: str = "auto") -> list[str]:
    """Writes memories in the format of another tool, one of `FORMATS`. Returns the names of those that it cannot hold.

    The same call after a kill goes on where it was, in the same folder. `device`: as the setting `model.device`. Raises UserError
    if there is no such format, memory or file, the folder holds something else, the disk has no room, or the model cannot be loaded.
    """
    chosen = find_format(format_name)
    examples = chosen.examples if wanted.examples is None else wanted.examples
    sentences = chosen.sentences if wanted.sentences is None else wanted.sentences
    name = re.sub(r"[^a-z0-9._-]+", "-", public_name(run).rpartition("/")[2].lower()).strip("-._") or "model"
    names = {"model_id": wanted.model_id or name, "set": wanted.set}
    selection = _select(run, chosen, wanted.memories, examples, sentences)
    own = identity(run, format_name, selection, {"examples": examples, **names})
    found = read_facts(output, own)
    work = output / WORK
    if found and found["finished"]:
        shutil.rmtree(work, ignore_errors=True)  # a kill may have come before its end
        return found["left_out"]
    store = Store(work, selection, run.corpus("train").lengths)
    held = open(run.folder, keep_open=True, trust_remote_code=run.trust_remote_code)  # for many small readings
    job = Job(held, store, names["model_id"], names["set"])
    # Before the model runs: a run that lacks what is shown is refused.
    units, read = chosen.units(job), reader(held, store, device if chosen.logits else None)
    fill(run, store, json.dumps(own, sort_keys=True), device)
    write_facts(output, run, chosen, own, wanted.memories, None)
    left_out = _write_units(job, chosen, units, read, output)
    if chosen.finish:
        chosen.finish(job, output)
    write_facts(output, run, chosen, own, wanted.memories, left_out)
    shutil.rmtree(work, ignore_errors=True)
    return left_out


def find_format(name: str) -> Format:
    """Returns the format of a name in `FORMATS`. Raises UserError if it has no such name, or its package is broken or not installed."""
    if name not in FORMATS:
        raise UserError(f"There is no format {name!r}. Choose one of: {', '.join(FORMATS)}.{ELSEWHERE}")
    return load("formats", name)


def _select(run: Run, chosen: Format, names: Sequence[str], examples: int, sentences: int) -> Selection:
    """Returns the selection. Where a format needs every coefficient on every sentence, all sentences are shared."""
    selection = select(run, *choose_memories(run.files, names), examples, sentences)
    if not chosen.dense:
        return selection
    none = {side: own[:, :0] for side, own in selection.sentence.items()}
    shared = replace(selection, sentence=none, position=none, sample=selection.sentences)
    tokens = int(run.corpus("train").lengths[shared.sample].sum())
    if tokens > DENSE_TOKENS:
        raise UserError(
            f"The text has {tokens:,} tokens, and this format takes every coefficient on every token, so at most"
            f" {DENSE_TOKENS:,} are allowed. Name fewer memories with --memories, or ask for fewer --examples or"
            " --sentences."
        )
    return shared


def _write_units(job: Job, chosen: Format, units: Sequence[Unit], read: Callable, output: Path) -> list[str]:
    """Writes the files that are not there yet. Returns the memories that the format cannot hold."""
    missing = [unit for unit in units if not exists(output / unit.path)]
    total, left = (sum(len(unit.places) for unit in some) for some in (units, missing))
    done = total - left
    counted = "memories" if total == len(job.selection) else "memories x files"  # each memory may be in several files
    with progress(total, counted, "export", done) as bar:
        for unit in missing:
            with atomic(output / unit.path, summed=False) as temporary:
                unit.write(temporary, _counted(read(unit.places), bar.update))
            done += len(unit.places)
            bar.update(done - bar.n)  # a format that reads coefficients alone has counted no memory
    if not chosen.left_out:
        return []
    without = np.all(job.selection.sentence["positive"] == NONE, axis=1)
    return [job.selection.name(place) for place in np.flatnonzero(without).tolist()]


def _counted(records: Iterator[Record], update: Callable[[int], object]) -> Iterator[Record]:
    for record in records:
        yield record
        update(1)


def identity(run: Run, format_name: str, selection: Selection, options: dict[str, Any]) -> dict[str, Any]:
    """Returns what an export is made of. Files of another identity are not mixed with it."""
    digest = hashlib.sha256()
    for array in (selection.layer, selection.memory, selection.sample, *selection.sentence.values()):
        digest.update(str(array.shape).encode() + array.astype("<i8").tobytes())
    return {
        "format": format_name,
        **{name: value for name, value in run.files.identity("train").items() if name != "model"},  # may be a path
        "memories": len(selection),
        "sentences": len(selection.sentences),
        "selection_hash": digest.hexdigest()[:16],
        **options,
        "ffkv": versions(commit=False)["ffkv"],
    }


def write_facts(
    folder: Path, run: Run, chosen: Format, own: dict[str, Any], names: list[str], left_out: list[str] | None
) -> None:
    """Writes `ffkv-export.json`. `own`: the identity of the export; `names`: the memories that were asked for; none: all.

    `left_out`: the memories that the format cannot hold; None while the export is not finished.
    """
    content = {
        "finished": left_out is not None,
        "identity": own,
        "run": run.name,
        "model": {"checkpoint": public_name(run), "revision": run.anatomy.revision, "dtype": run.anatomy.dtype},
        "corpus": {"dataset": run.settings.corpus.dataset, "beginning": str(run.files.corpora["train"]["beginning"])},
        "asked_for": names or "all memories",
        "left_out": left_out or [],
        "definitions": COMMON | chosen.definitions,
        "versions": versions(),
    }
    with atomic(folder / FILE, summed=False) as temporary:
        write_json(temporary, content)


def read_facts(folder: Path, own: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the content of `ffkv-export.json`; None if the folder is new or empty.

    Raises UserError if the folder holds another export, or other files.
    """
    if exists(folder) and not is_dir(folder):
        raise UserError(f"{folder} is a file. Name a folder for the export.")
    path = folder / FILE
    if not exists(path):
        if others := [entry.name for entry in find(folder, "[!.]*")]:
            raise UserError(f"{folder} holds other files ({', '.join(others[:3])}). Name a new folder for the export.")
        return None
    try:
        found = read_json(path)
        theirs = found["identity"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}). Name a new folder for the export, or delete this one."
        ) from error
    for name in {**own, **theirs}:
        if own.get(name) != theirs.get(name):
            raise UserError(
                f"{folder} holds another export: its {name.replace('_', ' ')} is {theirs.get(name)}, and that of this"
                f" one is {own.get(name)}. Name another folder, or delete this one."
            )
    return found
