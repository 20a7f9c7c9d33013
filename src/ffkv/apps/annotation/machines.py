"""What machines said about memories: the files of `ffkv annotate machine`, as tables of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.bounded import read_json
from ffkv.base.files.provenance import check_identities
from ffkv.run.annotation_tables import MACHINE_FILES

# `machine/<model>/settings.json` in `annotations/<run>`; tables beside it.
FOLDER, SETTINGS = "machine", "settings.json"


def read_machines(folder: Path, belongs_to: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Reads the labels and scores of all machines.

    Args:
        folder: `annotations/<run>`.
        belongs_to: the identity of the run, as `Run.identity("train")`.
    Returns:
        The tables by their names, sorted by machine. They have no rows if no machine explained memories.
    Raises:
        UserError: a file is damaged or missing, or belongs to another model, tokenizer or corpus.
    """
    places = sorted((_model_of(path, belongs_to), path.parent) for path in (folder / FOLDER).glob(f"*/{SETTINGS}"))
    found = {}
    for file, described in MACHINE_FILES.items():
        rows: list[list[Any]] = []
        for model, place in places:
            table = tables.read(place / file, texts=[*described.foreign, "label"])
            rows += table.assign(annotator=f"machine:{model}")[described.names].to_numpy(object).tolist()
        found[described.name] = described.frame(rows)
    return found


def _model_of(path: Path, belongs_to: Mapping[str, Any]) -> str:
    """Returns the name of the model whose folder has these settings."""
    try:
        about = read_json(path)
        model = about["model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read. Run `ffkv annotate machine` again with --replay.") from error
    check_identities(path, about, belongs_to)
    return str(model)
