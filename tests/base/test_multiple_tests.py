"""How many controls it takes that a test can be significant."""

import re

import numpy as np
import pytest

from ffkv.base.multiple_tests import SIGNIFICANT, fewest_significant, q_values, tell_floor


def smallest_q(tests: int, controls: int, together: int = 1) -> float:
    """The q-value of some tests with the smallest p-value, where all others have 1."""
    found = q_values(np.repeat([1 / (controls + 1), 1], [together, tests - together]), tests).min()
    return round(float(found), 12)


@pytest.mark.parametrize("tests", [1, 2, 7, 30, 40, 333])
@pytest.mark.parametrize("controls", [1, 18, 19, 39, 99, 1000])
def test_what_is_told_is_what_benjamini_and_hochberg_allow(tests, controls):
    said = tell_floor(tests, controls)
    if smallest_q(tests, controls) <= SIGNIFICANT:
        assert said == ""
        return
    needed = int(re.search(r"With (\d+) controls,", said)[1])
    assert smallest_q(tests, needed) <= SIGNIFICANT < smallest_q(tests, needed - 1)
    if "none of them can be" in said:
        assert smallest_q(tests, controls, tests) > SIGNIFICANT
    else:
        least = fewest_significant(tests, controls)
        assert f"so {least} or more" in said
        assert smallest_q(tests, controls, least) <= SIGNIFICANT < smallest_q(tests, controls, least - 1)


def test_two_cases_by_hand():
    assert tell_floor(1, 19) == tell_floor(0, 1) == ""
    assert tell_floor(2, 9) == (
        "A p-value is at least 1/10: so none of them can be significant. With 39 controls, one alone can be."
    )
