"""All settings of a run: what is read, the section of each branch, and what is made of the results.

A setting has its name, type, default, limits and meaning, which is the docstring below it. No other code knows defaults. This module
is `ffkv.settings`, with the sections of model and corpus, too.
"""

import os
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, PrivateAttr, create_model

from ffkv.base.settings import EMBEDDED as EMBEDDED
from ffkv.base.settings import LARGEST as LARGEST
from ffkv.base.settings import Batches as Batches
from ffkv.base.settings import Comparison as Comparison
from ffkv.base.settings import Corpus as Corpus
from ffkv.base.settings import Dictionary as Dictionary
from ffkv.base.settings import Embedded as Embedded
from ffkv.base.settings import Inputs, Jobs
from ffkv.base.settings import Model as Model
from ffkv.base.settings import Names as Names
from ffkv.base.settings import Prefixes as Prefixes
from ffkv.base.settings import Section as Section
from ffkv.base.settings import Seed as Seed
from ffkv.base.settings import Triggers as Triggers
from ffkv.base.settings import Whole as Whole
from ffkv.base.settings import corpus_sources as corpus_sources
from ffkv.base.settings import documents as documents
from ffkv.base.settings import section as section
from ffkv.branches.behaviours.settings import Behaviour as Behaviour
from ffkv.branches.composition.settings import Composition as Composition
from ffkv.branches.concepts.settings import Concept as Concept
from ffkv.branches.intervention.settings import Intervention as Intervention
from ffkv.branches.keys.settings import Keys as Keys
from ffkv.branches.refinement.settings import Refinement as Refinement
from ffkv.branches.registry import BRANCHES
from ffkv.branches.roles.settings import Roles as Roles
from ffkv.branches.routing.settings import Routing as Routing
from ffkv.branches.translation.settings import Translation as Translation
from ffkv.branches.values.settings import Values as Values

AUTO, NONE = "auto", "none"  # values of `report.control` that name no run


def _own_folder(path: str) -> str:
    if path.startswith("~") or os.path.normpath(path) in (".", "results", "reports"):
        raise ValueError("must be a folder of its own: neither that of results or reports, nor one that starts with ~")
    return path


class Annotation(Section):
    """What people and machines say about keys, beside the tests."""

    folder: Annotated[str, AfterValidator(_own_folder)] = Field("annotations", min_length=1)
    """Folder with the annotations of all runs. It has one folder per run, with the name of the run. A relative path starts
    in the folder that also holds `results`. If a run has no annotations, its report leaves them out. Commands on a finished
    run take a folder elsewhere from `--annotations` alone."""


class Report(Section):
    """The HTML report."""

    title: str = Field("Feed-forward layers as key-value memories", min_length=1)
    """Title of the report."""
    cards: int = Field(24, ge=0, le=10_000)
    """Number of memories that the report shows in detail. They are spread over the layers."""
    card_triggers: int = Field(10, ge=1, le=10_000)
    """Number of trigger examples per memory that the report shows."""
    control: str = Field("auto", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")
    """What the report compares the run with. `auto`: an untrained model, which is the run `<run>-untrained`. It has random
    weights, and reads about a third of the text and of each sample. A model of random weights has none, nor has one with
    `model.max_memory`. `none`: nothing. Any other value is the name of a run whose model has the same number of layers."""
    paper_curves: bool = True
    """Draw the numbers of the paper beside those of the run."""


if TYPE_CHECKING:

    class OfBranches(Inputs):
        """Beside what is read: the section of each branch, by the name of the branch."""

        def __getattr__(self, name: str) -> Any: ...

else:
    OfBranches = create_model(
        "OfBranches", __base__=Inputs, **{name: its.field for name, its in BRANCHES.items() if its.settings}
    )


class OfResults(OfBranches):
    """Beside these: what is made of the results."""

    annotation: Annotation = Annotation()
    report: Report = Report()


class Settings(Jobs, OfResults):
    """All settings of one run."""

    _unknown_then: frozenset[str] = PrivateAttr(frozenset())  # see `of_file`

    @classmethod
    def of_file(cls, text: bytes | str) -> "Settings":
        """Reads the settings of a run as JSON. What an earlier ffkv did not write has its default.

        Raises ValidationError if a setting is unknown or impossible.
        """
        settings = cls.model_validate_json(text)
        settings._unknown_then = frozenset(cls.model_fields) - settings.model_fields_set
        return settings

    def knows(self, section: str) -> bool:
        """Tells whether the ffkv that wrote these settings had such a section; True if they were not read from a file."""
        return section not in self._unknown_then

    def contradictions(self) -> list[str]:
        """Returns the contradictions of all sections."""
        found = []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Section):
                found += value.contradictions()
            elif isinstance(value, dict):
                found += [f"{name}.{key}.{problem}" for key, own in value.items() for problem in own.contradictions()]
        return found


def __getattr__(name: str) -> Any:
    """Says what a class of settings is called now, if its old name is used."""
    if name == "Activations":
        raise AttributeError("ffkv.settings.Activations is called ffkv.settings.Batches now.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
