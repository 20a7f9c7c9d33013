"""The run that is reported: its settings, model, corpus and tables, read from `results/<run>/`."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from ffkv.errors import UserError
from ffkv.files import hdf5, tables
from ffkv.files.checksums import verify_sum
from ffkv.model.anatomy import Anatomy, read_anatomy
from ffkv.settings import EMBEDDED, Settings

TABLES = (
    "keys/categories",
    "keys/patterns",
    "keys/removal",
    "keys/activity",
    "values/agreement",
    "values/rank",
    "values/probability",
    "values/predictive",
    "values/predictive_layers",
    "composition/active",
    "composition/agreement",
    "composition/cases",
    "composition/effective",
    "refinement/residual",
    "refinement/probability",
    "refinement/breakdown",
    "refinement/changes",
)
TEXTS = ("prefix", "text", "token", "next_token", "residual_token", "output_token", "related")
TRAINING = "checkpoint/training"
PRECISION = "keys/precision"  # where the weights' type may be a low one
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Results:
    """What a run left behind.

    folder: `results/<run>`. tables: by name, such as "keys/removal". corpora: what each split's file says of itself:
    `counts` of what was read and left out, `sentences`, `tokens`, `corpus_hash`, `settings`.
    """

    folder: Path
    settings: Settings
    anatomy: Anatomy
    tables: dict[str, pd.DataFrame]
    corpora: dict[str, dict[str, Any]]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.resolve().name

    @property
    def layers(self) -> int:
        """Number of the model's feed-forward layers."""
        return len(self.anatomy.layers)

    @property
    def signed_layers(self) -> int:
        """In how many layers coefficients can be negative."""
        return sum(layer.signed for layer in self.anatomy.layers)

    def csv(self, name: str) -> bytes:
        """A table's file, as it stands on disk."""
        return (self.folder / f"{name}.csv").read_bytes()

    def groups(self, name: str, ending: str = "parquet") -> list[Path]:
        """The files of a stage that writes one for each group of layers; others may stand there from another run.

        Raises:
            UserError: one is missing.
        """
        paths = [self.folder / name / f"{group}.{ending}" for group in range(self.settings.layer_groups)]
        for path in paths:
            if not path.exists():
                raise UserError(f"{path} does not exist: run the step that makes it first.")
        return paths


def read_results(folder: Path, settings: Path) -> Results:
    """Reads a run's small tables.

    Args:
        folder: `results/<run>`.
        settings: JSON file with the run's complete settings.
    Raises:
        UserError: something is missing or unreadable; names the file.
    """
    resolved = _settings(settings)
    others = [TRAINING] if resolved.model.checkpoint == EMBEDDED else []
    others += [PRECISION] if resolved.model.dtype != "float32" else []
    return Results(
        folder=folder,
        settings=resolved,
        anatomy=read_anatomy(folder / "model"),
        tables={name: _table(folder / f"{name}.csv") for name in (*TABLES, *others)},
        corpora={split: _about(folder / "corpus" / f"{split}.h5") for split in SPLITS},
    )


def _table(path: Path) -> pd.DataFrame:
    """A table whose empty columns have a type, which a CSV file cannot say where no row has a value."""
    frame = tables.read(path, texts=TEXTS)
    empty = frame.columns[frame.isna().all()]
    return frame.assign(**{column: float("nan") for column in empty if column not in TEXTS})


def _settings(path: Path) -> Settings:
    verify_sum(path)
    try:
        return Settings.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: run the step that makes it first.") from error
    except ValidationError as error:
        raise UserError(f"{path} does not hold the complete settings of a run: {error}") from error


def _about(path: Path) -> dict[str, Any]:
    with hdf5.open(path, "corpus") as file:
        about = {name: file.attrs[name] for name in ("counts", "settings", "tokens", "sentences", "corpus_hash")}
    return {**about, "counts": json.loads(about["counts"]), "settings": json.loads(about["settings"])}


@cache
def paper_figures() -> dict[str, Any]:
    """The numbers of the paper's own figures, by figure."""
    return json.loads(files("ffkv.report").joinpath("paper_figures.json").read_text())


def benchmarks(folder: Path, settings: Settings) -> pd.DataFrame:
    """What each rule cost, from the benchmark files that Snakemake wrote; without those of earlier runs.

    Returns:
        rule, jobs, seconds (of all jobs together), longest (seconds), memory (largest peak, MiB); empty without files.
    """
    paths = sorted(path for path in (folder / "benchmarks").rglob("*.tsv") if _of_this_run(path, settings))
    jobs = pd.DataFrame(list(_jobs(folder / "benchmarks", paths)), columns=["rule", "s", "max_rss"])
    grouped = jobs.groupby("rule", sort=False)
    return pd.DataFrame(
        {
            "jobs": grouped.size(),
            "seconds": grouped["s"].sum(),
            "longest": grouped["s"].max(),
            "memory": grouped["max_rss"].max(),
        }
    ).reset_index()


def _of_this_run(path: Path, settings: Settings) -> bool:
    """Whether a benchmark file can be of these settings: not the report's own, nor one of a part that is no more."""
    if path.stem.isdigit():
        parts = settings.shards if path.parent.name in ("triggers", "prefixes") else settings.layer_groups
        return int(path.stem) < parts
    return path.name != "report.tsv" and (path.name != "train.tsv" or settings.model.checkpoint == EMBEDDED)


def _jobs(folder: Path, paths: Iterable[Path]) -> Iterable[tuple[str, float, float]]:
    for path in paths:
        rule = path.relative_to(folder).with_suffix("").parts[0]
        try:
            measured = pd.read_csv(path, sep="\t").apply(pd.to_numeric, errors="coerce")[["s", "max_rss"]]
        except (OSError, ValueError, KeyError):  # Snakemake's own file, half-written when the power went
            continue
        yield rule, measured["s"].sum(), measured["max_rss"].max()
