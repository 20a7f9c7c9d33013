"""All settings of a run. Each section is a class of `ffkv.base.settings.inputs` or `ffkv.base.settings.analyses`.

There, a setting has its name, type, default, limits and meaning, which is the docstring below it. No other code knows
defaults. `ffkv settings` writes the default settings file, its JSON schema and `docs/settings.md` from these classes.
The command line takes its options from them.
"""

from pydantic import Field

from ffkv.base.settings.analyses import (
    Annotation,
    Batches,
    Composition,
    Intervention,
    Keys,
    Prefixes,
    Refinement,
    Report,
    Triggers,
    Values,
)
from ffkv.base.settings.inputs import Corpus, Embedded, Model
from ffkv.base.settings.section import Section, Seed


class Settings(Section):
    """All settings of one run."""

    model: Model = Model()
    embedded: Embedded = Embedded()
    corpus: Corpus = Corpus()
    batches: Batches = Batches()
    triggers: Triggers = Triggers()
    prefixes: Prefixes = Prefixes()
    keys: Keys = Keys()
    values: Values = Values()
    composition: Composition = Composition()
    refinement: Refinement = Refinement()
    intervention: Intervention = Intervention()
    annotation: Annotation = Annotation()
    report: Report = Report()
    seed: Seed = 0
    """Seed of all random choices."""
    shards: int = Field(1, ge=1, le=10_000)
    """Number of parts into which the corpus is cut. Each part is a job. This setting changes no number in the
    results."""
    corpus_processes: int = Field(1, ge=1, le=256)
    """Number of processes that split and encode the documents of a split, all of them in one job. This setting changes no
    number in the results."""
    layer_groups: int = Field(1, ge=1, le=1000)
    """Number of parts into which the layers are cut. Each part is a job of each analysis. This setting changes no
    number in the results."""

    def contradictions(self) -> list[str]:
        """Returns the contradictions of all sections."""
        sections = [value for name in type(self).model_fields if isinstance(value := getattr(self, name), Section)]
        return [problem for part in sections for problem in part.contradictions()]
