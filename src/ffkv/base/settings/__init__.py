"""Settings: what can be set, files that set it, and what is wrong with them.

A setting is a field with type, default, limits and description: in `inputs` (model, corpus), `analyses` (what is done
with them), `behaviour` (a set of prompts) or `comparison` (several runs). `section` has what all sections share, `analyses` puts them together as the
settings of a run, `runs` reads a file with several runs, and adds their controls. `yaml_file` reads YAML and names the
line of an error, `messages` says what is wrong with a value, and what an old name is called now. `reference` writes the
default settings file, its JSON schema and the reference page (`ffkv settings`, in `commands`). `languages` has the codes of languages.
"""

from typing import Any

from ffkv.base.settings.analyses import Annotation as Annotation
from ffkv.base.settings.analyses import Batches as Batches
from ffkv.base.settings.analyses import Composition as Composition
from ffkv.base.settings.analyses import Intervention as Intervention
from ffkv.base.settings.analyses import Keys as Keys
from ffkv.base.settings.analyses import Prefixes as Prefixes
from ffkv.base.settings.analyses import Refinement as Refinement
from ffkv.base.settings.analyses import Report as Report
from ffkv.base.settings.analyses import Roles as Roles
from ffkv.base.settings.analyses import Settings as Settings
from ffkv.base.settings.analyses import Translation as Translation
from ffkv.base.settings.analyses import Triggers as Triggers
from ffkv.base.settings.analyses import Values as Values
from ffkv.base.settings.behaviour import Behaviour as Behaviour
from ffkv.base.settings.comparison import Comparison as Comparison
from ffkv.base.settings.inputs import EMBEDDED as EMBEDDED
from ffkv.base.settings.inputs import Corpus as Corpus
from ffkv.base.settings.inputs import Embedded as Embedded
from ffkv.base.settings.inputs import Model as Model
from ffkv.base.settings.inputs import corpus_sources as corpus_sources
from ffkv.base.settings.section import LARGEST as LARGEST
from ffkv.base.settings.section import Names as Names
from ffkv.base.settings.section import Section as Section
from ffkv.base.settings.section import Seed as Seed
from ffkv.base.settings.section import Whole as Whole
from ffkv.base.settings.section import documents as documents
from ffkv.base.settings.section import section as section


def __getattr__(name: str) -> Any:
    """Says what a class of settings is called now, if its old name is used."""
    if name == "Activations":
        raise AttributeError("ffkv.settings.Activations is called ffkv.settings.Batches now.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
