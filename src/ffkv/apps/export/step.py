"""Exports memories of a finished run into the format of another tool."""

import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ffkv.apps.export import provenance
from ffkv.apps.export.job import Format, Job, public_name
from ffkv.apps.export.records import Record, reader
from ffkv.apps.export.selection import NONE, Selection, select
from ffkv.apps.export.settings import FORMATS, Export
from ffkv.apps.export.store import Store, fill
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.lookup import exists
from ffkv.base.process.progress import progress
from ffkv.run.results.collections import choose_memories
from ffkv.run.results.run import Run, open

DENSE_TOKENS = 500_000  # of a text on which every coefficient is kept


def export(run: Run, format_name: str, output: Path, wanted: Export = Export(), device: str = "auto") -> list[str]:
    """Writes memories in the format of another tool, one of `FORMATS`. Returns the names of those that it cannot hold.

    The same call after a kill goes on where it was, in the same folder. `device`: as the setting `model.device`. Raises
    UserError if there is no such format or memory, the folder holds something else, the disk has no room, or the model
    cannot be loaded.
    """
    chosen = find_format(format_name)
    examples = chosen.examples if wanted.examples is None else wanted.examples
    sentences = chosen.sentences if wanted.sentences is None else wanted.sentences
    names = {"model_id": wanted.model_id or default_model_id(run), "set": wanted.set}
    selection = _select(run, chosen, wanted.memories, examples, sentences)
    own = provenance.identity(run, format_name, selection, {"examples": examples, **names})
    found = provenance.read(output, own)
    work = output / provenance.WORK
    if found and found["finished"]:
        shutil.rmtree(work, ignore_errors=True)  # a kill may have come before its end
        return found["left_out"]
    store = Store(work, selection, run.corpus("train").lengths)
    job = Job(open(run.folder, keep_open=True), store, names["model_id"], names["set"])  # for many small readings
    fill(run, store, json.dumps(own, sort_keys=True), device)
    provenance.write(output, run, chosen, own, wanted.memories, None)
    left_out = _write_units(job, chosen, output, device)
    if chosen.finish:
        chosen.finish(job, output)
    provenance.write(output, run, chosen, own, wanted.memories, left_out)
    shutil.rmtree(work, ignore_errors=True)
    return left_out


def find_format(name: str) -> Format:
    """Returns the format of a name in `FORMATS`. Raises UserError if it has no such name."""
    if name not in FORMATS:
        raise UserError(f"There is no format {name!r}. There are {', '.join(FORMATS)}.")
    return importlib.import_module(FORMATS[name]).FORMAT


def default_model_id(run: Run) -> str:
    """Returns the last part of the checkpoint's name, in small letters."""
    last = public_name(run).rpartition("/")[2].lower()
    return re.sub(r"[^a-z0-9._-]+", "-", last).strip("-._") or "model"


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


def _write_units(job: Job, chosen: Format, output: Path, device: str) -> list[str]:
    """Writes the files that are not there yet. Returns the memories that the format cannot hold."""
    units = chosen.units(job)
    missing = [unit for unit in units if not exists(output / unit.path)]
    read = reader(job.run, job.store, device if chosen.logits else None)
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
