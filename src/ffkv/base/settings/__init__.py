"""Settings: how they are described, those that every run has, and what is wrong with them.

A setting is a field with type, default, limits and description. `common` has all that no branch brings. A branch describes its own,
and `ffkv.branches.settings` has all of a run. `section` has what all sections share. `yaml_file` reads YAML and names the line of an
error, `messages` says what is wrong with a value, and what an old name is called now.
"""

from ffkv.base.settings.common import (
    BROUGHT,
    EMBEDDED,
    Batches,
    Comparison,
    Corpus,
    Dictionary,
    Embedded,
    Inputs,
    Jobs,
    Model,
    Prefixes,
    Triggers,
    corpus_sources,
)
from ffkv.base.settings.section import LARGEST, Names, Section, Seed, Whole, documents, section
