"""What no table may do to a verdict, whatever its numbers are."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ffkv.run.report.verdicts import FAILS, HOLDS, UNKNOWN, UNTRAINED, Estimate, Rule, Shares, judge, level, trend
from ffkv.run.results.text import NO_BREAK_SPACE

PAPER = st.sampled_from([0.01, 0.236])  # differences of the paper's halves
UNITS = st.sampled_from([1, 3, 25, 400, 10_000, 10**7])


@st.composite
def curves(draw):
    """Shares by layer: any, or a step or a slope with a layer that is apart."""
    layers = draw(st.integers(4, 14))
    if draw(st.booleans()):
        return np.array(draw(st.lists(st.floats(0, 1), min_size=layers, max_size=layers)))
    ends = draw(st.tuples(st.floats(0, 1), st.floats(0, 1)))
    values = np.linspace(*ends, layers) if draw(st.booleans()) else np.repeat(ends, [layers // 2, layers - layers // 2])
    values[draw(st.integers(0, layers - 1))] = draw(st.floats(0, 1))
    return values


def of(values, units):
    return trend(Shares(values, np.full(len(values), units)))


def still(found, rule):
    """Whether a difference is on the claim's side, with its whole interval."""
    return min(rule.sign * found.low, rule.sign * found.high) > 0


@given(curves(), UNITS, PAPER, st.none() | curves())
def test_no_table_holds_with_its_mirror_image(values, units, paper, control):
    """The mirror images: the layers reversed, the claim turned, and all shares turned into the others."""
    rise, fall, its = Rule(1, paper=paper), Rule(-1, paper=-paper), control if control is None else of(control, units)
    mirrored = None if control is None else of(control[::-1], units)
    if judge(rise, of(values, units), its)[0] == HOLDS:
        turned = [(rise, values[::-1], mirrored), (fall, values, its), (rise, 1 - values, None)]
        assert all(judge(rule, of(each, units), other)[0] == FAILS for rule, each, other in turned)


@given(st.floats(0, 1), UNITS)
def test_no_level_of_half_holds_with_its_opposite(share, units):
    most = Rule(limit=0.5)
    found = [
        judge(most, level(Shares(np.array([each]), np.array([units])), np.arange(1)))[0] for each in (share, 1 - share)
    ]
    assert found.count(HOLDS) < 2 and (HOLDS not in found or FAILS in found)


@given(curves(), UNITS, PAPER)
def test_nothing_holds_by_one_layer(values, units, paper):
    """Without any layer the difference keeps its side, and its interval does not include 0."""
    rule = Rule(1, paper=paper)
    if judge(rule, of(values, units))[0] != HOLDS:
        return
    for layer in range(len(values)):
        counts = np.full(len(values), units)
        counts[layer] = 0
        without = trend(Shares(values, counts))
        assert without.problem or (still(without, rule) and without.value > rule.threshold)


@given(curves(), PAPER)
def test_more_keys_of_one_curve_never_turn_a_verdict_into_its_opposite(values, paper):
    """Flat stays flat. From few keys to many, "cannot say" goes to one of both, or stays."""
    found = [judge(Rule(1, paper=paper), of(values, units))[0] for units in (1, 10, 100, 1000, 10**5, 10**8)]
    assert not {HOLDS, FAILS} <= {*found}
    decided = [verdict != UNKNOWN for verdict in found]
    assert decided == sorted(decided)


NUMBERS = st.floats(-1, 1).map(lambda value: round(value, 3))


@given(
    st.lists(NUMBERS, min_size=3, max_size=3).map(sorted), st.sampled_from([1, -1]), st.sampled_from([0.1, 0.6, None])
)
def test_intervals_and_sentences_agree(ends, sign, paper):
    low, value, high = ends
    rule = Rule(sign, limit=0.5) if paper is None else Rule(sign, paper=sign * paper)
    verdict, reason = judge(rule, Estimate(value, low, high))
    reason, limit = reason.replace(NO_BREAK_SPACE, " "), rule.threshold
    said = {
        "interval is above": low > (0 if paper else limit),
        "interval is below": high < (0 if paper else limit),
        "includes 0": low <= 0 <= high,
        "includes 50 %": low <= 0.5 <= high,
        "includes a fifth": low <= limit <= high,
        "Flat": max(sign * low, sign * high) < abs(limit),
        "In these layers": min(sign * low, sign * high) > abs(limit),
    }
    told = [true for words, true in said.items() if words in reason]
    assert told == [True]
    on_its_side = min(sign * (low - limit), sign * (high - limit)) > 0
    beyond = max(sign * (low - limit), sign * (high - limit)) < 0
    assert verdict == (HOLDS if on_its_side else FAILS if beyond else UNKNOWN)
    if at_least := re.search(r"([\d.,]+) % at least", reason):
        assert float(at_least[1].replace(",", "")) >= 20 - 0.05  # a fifth, up to rounding


@given(*[st.lists(NUMBERS, min_size=3, max_size=3).map(sorted)] * 2, st.booleans())
def test_what_untrained_models_do_never_holds_without_one_that_differs(own, its, compared):
    found, control = (Estimate(value, low, high) for low, value, high in (own, its))
    verdict, reason = judge(Rule(), found, control if compared else None, "Untrained models do it, too.")
    if not compared:
        assert verdict in (FAILS, UNKNOWN)
    if verdict in (HOLDS, UNTRAINED):
        assert found.low > 0
        assert (found.value > control.value) if verdict == HOLDS else control.low > 0
    assert (verdict == HOLDS) == ("beyond the untrained model" in reason)
