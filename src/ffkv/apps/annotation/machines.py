"""What machines said about memories: the files of `ffkv annotate machine`, as tables of a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.provenance import check_identities

FOLDER, SETTINGS = (
    "machine",
    "settings.json",
)  # `machine/<model>/settings.json` in `annotations/<run>`, and tables beside it
PLACE = {"layer": "int64", "memory": "int64"}
COUNTS = {"asked": "Int64", "answered": "Int64", "refused": "Int64"}
# Columns of each table of a model: their types. A table of a run has the annotator in front.
LABELS = PLACE | {"label": "str", "refusal": "str", "shown": "int64", "held_out": "int64", "silent": "int64"}
LABELS |= {"threshold": "float64"}
SCORES = PLACE | {"score": "str", "label": "str"} | COUNTS | {"texts": "int64", "value": "float64"}
SCORES |= {"sensitivity": "float64", "specificity": "float64", "chance": "float64"}
BY_LAYER = {"layer": "int64", "score": "str", "label": "str", "memories": "int64"} | COUNTS
BY_LAYER |= {"mean": "float64", "low": "float64", "high": "float64", "chance": "float64"}
# Each table of a run: the file of a model that it comes from, and its columns.
TABLES = {
    "machine_labels": ("labels.csv", LABELS),
    "machine_scores": ("scores_by_memory.csv", SCORES),
    "machine_scores_by_layer": ("scores.csv", BY_LAYER),
}


def read_machines(folder: Path, belongs_to: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Reads the labels and scores of all machines.

    Args:
        folder: `annotations/<run>`.
        belongs_to: the identity of the run, as `Run.identity("train")`.
    Returns:
        The tables by their names in `TABLES`, in the order of the machines' names. They have no rows if no machine
        explained memories.
    Raises:
        UserError: a file is damaged or missing, or belongs to another model, tokenizer or corpus.
    """
    places = sorted((_model_of(path, belongs_to), path.parent) for path in (folder / FOLDER).glob(f"*/{SETTINGS}"))
    found = {}
    for name, (file, own) in TABLES.items():
        columns = {"annotator": "str"} | own
        parts = [pd.DataFrame(columns=[*columns])] if not places else []
        for model, place in places:
            table = tables.read(place / file, texts=("label", "refusal", "score"))
            parts.append(table.assign(annotator=f"machine:{model}")[[*columns]].astype(columns))
        found[name] = pd.concat(parts, ignore_index=True).astype(columns)
    return found


def _model_of(path: Path, belongs_to: Mapping[str, Any]) -> str:
    """The name of the model whose folder has these settings."""
    try:
        about = json.loads(path.read_bytes())
        model = about["model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read. Run `ffkv annotate machine` again with --replay.") from error
    check_identities(path, about, belongs_to)
    return str(model)
