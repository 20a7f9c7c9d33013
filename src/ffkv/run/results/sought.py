"""Patterns of keys that the run did not sample, sought on request, and kept beside the run."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import write_text
from ffkv.base.lookup import read_json
from ffkv.base.version import RELEASE
from ffkv.branches.keys.key_sample import Examples, first_of_each, prefix_words
from ffkv.branches.keys.tables import PATTERNS
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.run.results.indexes import Index, sort_patterns
from ffkv.run.results.memory_columns import stored_examples
from ffkv.run.results.memory_name import memory_name
from ffkv.run.results.run_files import RunFiles

if TYPE_CHECKING:  # needs scipy, which takes a second to import
    from ffkv.branches.keys.patterns import Detector

UNKEPT = "unkept"  # attribute of a table: why its patterns could not be kept


@Index
def detector(files: RunFiles) -> "Detector":
    """Returns what the test for patterns needs besides the key: what random prefixes of the corpus show by chance."""
    from ffkv.branches.keys.patterns import prepare_detector

    once = files.settings.triggers.shared_prefixes_compete == "once"
    return prepare_detector(CompetingPrefixes(files.corpus("train"), once), files.settings.keys, files.settings.seed)


def seek_patterns(files: RunFiles, layer: int, memory: int) -> pd.DataFrame:
    """Seeks patterns in the trigger examples of one key as the run does for sampled keys (paper section 3.2).

    The key is tested alone: the false discovery rate holds for its own hypotheses, not for those of a layer's sample.
    What was kept is not sought again.

    Returns:
        The patterns, as `trigger_patterns` has them. If they could not be kept, `attrs["unkept"]` says why.
    """
    if (kept := kept_patterns(files, layer, memory)) is not None:
        return kept
    from ffkv.branches.keys.patterns import detect_patterns, pattern_rows

    key = _examples(files, layer, memory)
    rows = pattern_rows(layer, [key], detect_patterns([key.prefixes], detector(files)))
    patterns = sort_patterns(files, PATTERNS.frame(rows))
    try:
        content = json.dumps({"made_from": _made_from(files, key), "patterns": rows})
        write_text(kept_file(files, layer, memory), content)
    except UserError as error:
        patterns.attrs[UNKEPT] = str(error)
    return patterns


def kept_patterns(files: RunFiles, layer: int, memory: int) -> pd.DataFrame | None:
    """Returns what `seek_patterns` kept of a key; None if it kept nothing, or from other data, or the file is damaged."""
    try:
        kept: Any = read_json(kept_file(files, layer, memory))
        if kept["made_from"] != _made_from(files, _examples(files, layer, memory)):
            return None
        return sort_patterns(files, PATTERNS.frame(kept["patterns"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def kept_file(files: RunFiles, layer: int, memory: int) -> Path:
    """Returns the file for the patterns of a key: `results/.<run>.sought/L3.17.json`. Raises UserError if a link is there."""
    folder = files.folder.resolve()
    path = folder.with_name(f".{folder.name}.sought") / f"{memory_name(layer, memory)}.json"
    if path.parent.is_symlink() or path.is_symlink():
        raise UserError(f"{path} is a link, or lies in one. It is neither read nor written. Remove the link.")
    return path


def _examples(files: RunFiles, layer: int, memory: int) -> Examples:
    row = files.anatomy.layer_offset[layer] + memory
    stored = stored_examples(files, row, "positive", ["sentence", "position"])
    ranks = first_of_each(stored["sentence"])[: files.settings.keys.pattern_triggers]
    places = (stored[name][ranks].tolist() for name in ("sentence", "position"))
    return Examples("trigger", memory, ranks.tolist(), prefix_words(files.corpus("train"), *places))


def _made_from(files: RunFiles, key: Examples) -> str:
    """Returns the hash of all that the patterns of a key depend on."""
    data = [RELEASE, files.identity("train"), files.settings.model_dump(mode="json"), key.ranks, key.prefixes]
    return hashlib.sha256(json.dumps(data).encode()).hexdigest()
