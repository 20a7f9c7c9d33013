"""What each rule has to do."""

import re
from pathlib import Path

import numpy as np
import pytest
from plan.hand import known

from ffkv.base.settings import Settings
from ffkv.plan.growth import _tokens_read, measure_amounts
from ffkv.plan.shape import Shape
from ffkv.plan.text import Split
from ffkv.workflow import SNAKEFILE

SPLIT = Split(100.0, 10.0, 1.0, 500.0, 1.0, "")
SHAPE = Shape("Hand", (8,), 4, 10, 400, 256, 80, "float32")


def test_every_rule_of_the_workflow_is_known():
    rules = Path(SNAKEFILE).parent / "rules"
    names = {name for path in rules.glob("*.smk") for name in re.findall(r"^rule (\w+):", path.read_text(), re.M)}
    names -= {"all", "annotate_agreement"}  # told as not estimated
    names -= {"comparison_measure", "comparison_report"}  # of no run: see `measure_comparison`
    assert names == measure_amounts(known(Settings(), SHAPE, {"train": SPLIT, "validation": SPLIT})).keys()


@pytest.mark.parametrize("prefixes", [1, 10, 40, 90])
def test_a_sentence_is_read_as_far_as_its_longest_sampled_prefix(prefixes):
    """Against drawn samples of 50 sentences with 40 prefixes each. Their mean is known to about 1 %.

    The formula takes lengths for real numbers and counts for independent of each other: 6 %.
    """
    sentences, length = 50, 40
    stream, read = np.random.default_rng(0), []
    for _ in range(200):
        drawn = np.sort(stream.choice(sentences * length, prefixes, replace=False))
        longest = np.zeros(sentences)
        np.maximum.at(longest, drawn // length, drawn % length + 1)
        read.append(longest.sum())
    split = SPLIT._replace(tokens=sentences * length, sentences=sentences)
    assert _tokens_read(prefixes, split) == pytest.approx(np.mean(read), rel=0.06)
