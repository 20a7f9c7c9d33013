"""The labels and scores of machines as tables of a run: what `ffkv annotate machine` left beside the results."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ffkv.apps.machine.files import SETTINGS, TABLES
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.provenance import check_identities

PLACE = {"annotator": "str", "layer": "int64", "memory": "int64"}
COUNTS = {"asked": "Int64", "answered": "Int64", "refused": "Int64"}
# Columns of each table: their types. Those of the files of `ffkv annotate machine`, with the annotator in front.
LABELS = PLACE | {"label": "str", "refusal": "str", "shown": "int64", "held_out": "int64", "silent": "int64"}
LABELS |= {"threshold": "float64"}
SCORES = PLACE | {"score": "str", "label": "str"} | COUNTS | {"texts": "int64", "value": "float64"}
SCORES |= {"sensitivity": "float64", "specificity": "float64", "chance": "float64"}
BY_LAYER = {"annotator": "str", "layer": "int64", "score": "str", "label": "str", "memories": "int64"} | COUNTS
BY_LAYER |= {"mean": "float64", "low": "float64", "high": "float64", "chance": "float64"}
COLUMNS = {"machine_labels": LABELS, "machine_scores": SCORES, "machine_scores_by_layer": BY_LAYER}


def read_machines(folder: Path, belongs_to: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Reads the labels and scores of all machines.

    Args:
        folder: `annotations/<run>`.
        belongs_to: the identity of the run, as `Run.identity("train")`.
    Returns:
        The tables by their names in `COLUMNS`, in the order of the machines' names. They have no rows if no machine explained memories.
    Raises:
        UserError: a file is damaged or missing, or belongs to another model, tokenizer or corpus.
    """
    found: dict[str, list[pd.DataFrame]] = {name: [] for name in COLUMNS}
    for path in sorted((folder / "machine").glob(f"*/{SETTINGS}")):
        annotator = f"machine:{_model_of(path, belongs_to)}"
        for name, file in zip(COLUMNS, TABLES, strict=True):
            table = tables.read(path.parent / f"{file}.csv", texts=("label", "refusal", "score"))
            found[name].append(table.assign(annotator=annotator)[list(COLUMNS[name])].astype(COLUMNS[name]))
    return {name: _together(own, COLUMNS[name]) for name, own in found.items()}


def _model_of(path: Path, belongs_to: Mapping[str, Any]) -> str:
    """The name of the model whose folder has these settings."""
    try:
        about = json.loads(path.read_bytes())
        model = about["model"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read. Run `ffkv annotate machine` again with --replay.") from error
    check_identities(path, about, belongs_to)
    return str(model)


def _together(found: list[pd.DataFrame], columns: Mapping[str, str]) -> pd.DataFrame:
    empty = pd.DataFrame(columns=list(columns)).astype(dict(columns))
    return (
        pd.concat(found, ignore_index=True).sort_values("annotator", kind="stable", ignore_index=True)
        if found
        else empty
    )
