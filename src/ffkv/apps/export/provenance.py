"""`ffkv-export.json`, beside an export: of which run it is, how it was made, and what its numbers mean."""

import hashlib
from pathlib import Path
from typing import Any

from ffkv.apps.export.job import Format, public_name, write_json
from ffkv.apps.export.selection import Selection
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.files.bounded import read_json
from ffkv.base.files.provenance import versions
from ffkv.base.lookup import exists, find, is_dir
from ffkv.run.results.run import Run

FILE = "ffkv-export.json"
WORK = ".ffkv-export"  # folder of the coefficients, until the export is finished
COMMON = {
    "memory coefficient": "m_i, the input of the layer's second matrix: f(x k_i + b_i); gated: act(x g_i) (x u_i);"
    " experts: times the router's weight. It has no unit",
    "value of a token": "the coefficient of the prefix that ends at the token: later tokens do not change it. It is"
    " computed in float32 from the model's own numbers, in one pass over the whole sentence",
    "texts": "sentences of the train split, each in a context of its own. What precedes every sentence is read, and"
    " not exported",
    "trigger examples": "the prefixes with the highest and the lowest coefficients. The last token of a sentence ends"
    " no prefix that competes, and a prefix that several sentences share competes in one of them: so a sentence can"
    " have a larger coefficient than its trigger example",
    "random sentences": "drawn once from the train split, the same for all memories",
    "counting": "layers, memories, tokens and sentences count from 0",
}


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
        "ffkv": versions()["ffkv"],
    }


def write(
    folder: Path, run: Run, chosen: Format, own: dict[str, Any], names: list[str], left_out: list[str] | None
) -> None:
    """Writes the file. `own`: the identity of the export; `names`: the memories that were asked for; none: all.

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


def read(folder: Path, own: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the content of the file; None if the folder is new or empty.

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
