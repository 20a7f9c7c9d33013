"""The codes of languages that spaCy knows. It has rules and lists for them that need no downloaded model."""

import functools
import importlib.util
from pathlib import Path

ENGLISH, ANY = "en", "xx"  # ANY: spaCy's code for a language without rules of its own


@functools.cache
def known_languages() -> frozenset[str]:
    """Returns the codes that spaCy knows, `xx` for any other language among them. spaCy is not imported."""
    spacy = importlib.util.find_spec("spacy")
    folders = spacy.submodule_search_locations or [] if spacy else []
    return frozenset(path.parent.name for folder in folders for path in Path(folder, "lang").glob("*/__init__.py"))
