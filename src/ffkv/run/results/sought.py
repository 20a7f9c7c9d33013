"""Patterns of keys that the run did not sample, sought on request."""

import pandas as pd

from ffkv.branches.keys.key_sample import Examples, first_of_each, prefix_words
from ffkv.branches.keys.patterns import Detector, detect_patterns, pattern_rows, prepare_detector
from ffkv.branches.keys.tables import PATTERNS
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.run.results.indexes import Index, sort_patterns
from ffkv.run.results.memory_columns import stored_examples
from ffkv.run.results.run_files import RunFiles


@Index
def detector(files: RunFiles) -> Detector:
    """Returns what the test for patterns needs besides the key: what random prefixes of the corpus show by chance."""
    once = files.settings.triggers.shared_prefixes_compete == "once"
    return prepare_detector(CompetingPrefixes(files.corpus("train"), once), files.settings.keys, files.settings.seed)


def seek_patterns(files: RunFiles, layer: int, memory: int) -> pd.DataFrame:
    """Seeks patterns in the trigger examples of one key as the run does for sampled keys (paper section 3.2).

    The key is tested alone: the false discovery rate holds for its own hypotheses, not for those of a layer's sample.

    Returns:
        The patterns, as `trigger_patterns` has them.
    """
    row = files.anatomy.layer_offset[layer] + memory
    stored = stored_examples(files, row, "positive", ["sentence", "position"])
    ranks = first_of_each(stored["sentence"])[: files.settings.keys.pattern_triggers]
    places = (stored[name][ranks].tolist() for name in ("sentence", "position"))
    key = Examples("trigger", memory, ranks.tolist(), prefix_words(files.corpus("train"), *places))
    found = detect_patterns([key.prefixes], detector(files))
    return sort_patterns(files, PATTERNS.frame(pattern_rows(layer, [key], found)))
