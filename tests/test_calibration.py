"""The calibration, with few repetitions: intervals cover, and tests find what is not there no more often than they say."""

import sys

import numpy as np
import pytest
from support import FULL, ROOT

sys.path.insert(0, str(ROOT))

from benchmarks.calibration import BEGIN, END, PAGE, STUDIES, table
from benchmarks.known_truths import COVERAGE, FALSE, Case

MISSED = (
    "log-normal",
    "half 0",
    "of each sentence",
)  # truths that intervals are known to cover less often; the docs say so


@pytest.mark.slow
@pytest.mark.many
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: f"{study.__module__.split('.')[-1]}-{study.__name__}")
def test_what_is_stated_holds(study):
    """Beside exact binomial bounds, coverage may be 3 % lower: some intervals of few numbers are known to be."""
    cases = list(study(60 if FULL else 30, np.random.default_rng(11)))
    assert cases
    for case in cases:
        low, high = case.limits
        if not any(name in case.truth for name in MISSED):
            assert not case.misses(low - 0.03, 1.0 if case.limits == COVERAGE else high), case


def test_misses_by_hand():
    assert Case("", "", "", 82, 100).misses(*COVERAGE) == "below"  # at 93 %, 82 or fewer have a chance of 0.02 %
    assert Case("", "", "", 85, 100).misses(*COVERAGE) == ""  # and 85 or fewer one of 0.4 %
    assert Case("", "", "", 20, 100, FALSE).misses(*FALSE) == "above"
    assert Case("", "", "", 20, 100, FALSE, independent=10).misses(*FALSE) == ""  # as 2 of 10


def test_the_docs_show_every_case():
    page = PAGE.read_text()
    shown = page[page.index(BEGIN) : page.index(END)]
    assert table([], 0, 0).splitlines()[-2] in shown and shown.count("\n| ") > 80
    missed = [row for row in shown.splitlines() if "| no: " in row]
    assert all(any(name in row for name in MISSED) or "Longer than necessary" in row for row in missed), missed
