"""What a machine annotation leaves on the disk, in a folder per model."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffkv.apps.machine.step import Annotation
from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic

ANSWERS, SETTINGS = "answers.jsonl", "settings.json"
TABLES = ("labels", "scores_by_memory", "scores")


def machine_folder(folder: Path | str, model: str) -> Path:
    """The folder of a model: `annotations/<run>/machine/<model>`, the model in letters that every file system takes.

    A sum keeps similar names apart.
    """
    plain = re.sub(r"[^A-Za-z0-9.-]+", "_", model).strip(".")[:60]
    return Path(folder) / "machine" / f"{plain}.{hashlib.sha256(model.encode()).hexdigest()[:8]}"


def write_annotation(folder: Path, annotation: Annotation, about: Mapping[str, Any]) -> None:
    """Writes `labels.csv`, `scores_by_memory.csv` and `scores.csv`, and `settings.json` beside them.

    Args:
        folder: see `machine_folder`.
        annotation: what `annotate` returned.
        about: what the numbers depend on: run, model, parameters, amounts, seed. It holds no secret.
    Raises:
        UserError: the folder cannot be written.
    """
    frames = (annotation.labels, annotation.by_memory, annotation.by_layer)
    for name, frame in zip(TABLES, frames, strict=True):
        tables.write(frame, folder / f"{name}.csv")
    with atomic(folder / SETTINGS) as temporary:
        temporary.write_text(json.dumps(dict(about), indent=1, sort_keys=True) + "\n")
