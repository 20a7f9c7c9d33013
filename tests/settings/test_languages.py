"""The codes of languages."""

import importlib.util
import subprocess
import sys

from ffkv.base.settings.languages import ANY, ENGLISH, known_languages


def test_codes_are_those_that_spacy_can_make():
    codes = known_languages()
    assert {ENGLISH, ANY, "de", "zh"} <= codes and "german" not in codes
    assert all(importlib.util.find_spec(f"spacy.lang.{code}") for code in codes)


def test_codes_are_known_without_spacy():
    """Settings are read by every command; the import of spaCy takes a second."""
    program = "import sys; from ffkv.base.settings import Settings; Settings(); sys.exit('spacy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
