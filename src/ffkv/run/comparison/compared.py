"""The runs of a comparison, and what they have in common."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.settings import Comparison
from ffkv.run.results.run import Run
from ffkv.run.results.run import open as open_run


@dataclass(frozen=True)
class Compared:
    """Finished runs that are compared."""

    name: str  # name of the comparison
    settings: Comparison
    runs: list[Run]  # the runs, in the order of the settings

    @functools.cached_property
    def labels(self) -> list[str]:
        """What each run is called in figures."""
        if self.settings.labels:
            return self.settings.labels
        return [f"{self.settings.axis} {value:g}" for value in self.settings.values] or [run.name for run in self.runs]

    @functools.cached_property
    def memories(self) -> str:
        """How memories are found in other runs: "by_number", "by_correlation" or "no".

        Raises:
            UserError: the settings ask for memories by number, and the models have different shapes.
        """
        models = [run.anatomy for run in self.runs]
        alike = len({(model.width, *model.layer_offset) for model in models}) == 1
        if self.settings.memories == "by_number" and not alike:
            shapes = [
                f"{run} has {len(model.layers)} layers, {model.layer_offset[-1]} memories and a width of {model.width}"
                for run, model in zip(self.settings.runs, models, strict=True)
            ]
            raise UserError(
                f"comparisons.{self.name}.memories is by_number, and the models have different shapes: "
                f"{'; '.join(shapes)}. Set it to by_correlation."
            )
        if self.settings.memories == "auto":
            return "by_number" if alike else "by_correlation"
        return self.settings.memories


def open_compared(folders: Sequence[Path | str], settings: Comparison, name: str = "comparison") -> Compared:
    """Opens the runs of a comparison. Their folders are in the order of `settings.runs`, whose names they have.

    Raises:
        UserError: a folder holds no finished run, or the folders are not those of the runs in the settings.
    """
    runs = [open_run(folder) for folder in folders]
    if (names := [run.name for run in runs]) != settings.runs:
        raise UserError(
            f"The folders are of the runs {', '.join(names)}, not of {', '.join(settings.runs)} as in the settings."
        )
    return Compared(name, settings, runs)


def same_text(a: Run, b: Run, split: str) -> bool:
    """Tells whether two runs read the same sentences of the same tokens in a split, which then have equal numbers."""
    names = ("tokenizer_hash", "corpus_hash")
    return all(a.files.identity(split)[name] == b.files.identity(split)[name] for name in names)


def same_prefixes(a: Run, b: Run) -> bool:
    """Tells whether two runs sampled the same validation prefixes, in the same order."""
    if not same_text(a, b, "validation"):
        return False
    with a.files.open_sampled_prefixes() as one, b.files.open_sampled_prefixes() as other:
        return all(np.array_equal(one[name][...], other[name][...]) for name in ("sentence", "position"))
