"""Values beside triggers: the detector's answers by hand."""

from dataclasses import replace

import pytest
from support import WORDS

from ffkv.branches.values.compare import compare


def test_predictions_of_values_beside_the_tokens_that_follow_their_triggers(worked):
    """First triggers: a is followed by b (agrees), b by p, c by p, d by e (agrees with the first, not the second), e by a."""
    table = worked.table
    next_words = [WORDS[token] if token >= 0 else None for token in table["next_token"]]
    assert next_words == ["b", "p", "p", None, "e", "e", "a", None]
    assert table["agrees"].tolist() == [True, False, False, False, True, False, True, False]
    # b's triggers go on with p and d; c's with p and c (one prefix a sentence: the first c of "p c c p"); d's with e, e and f
    assert table["matching"].tolist() == [1, 0, 1, 0, 2, 1, 1, 0]
    assert table["first_match"].tolist() == [0, -1, 1, -1, 0, 2, 0, -1]
    assert table["triggers"].tolist() == [2, 2, 2, 0, 3, 3, 2, 0]
    assert table["tied"].tolist() == [False] * 3 + [True] + [False] * 3 + [True]
    # rank: 0 where the value agrees; else one token (the one it writes) is strictly greater; no trigger, no rank
    assert table["rank"].tolist() == [0, 1, 1, -1, 0, 1, 0, -1]
    assert not [name for name in table if name.startswith("negative")]
    lists = zip(worked.projections.norm, worked.triggers.coefficient, worked.triggers.count, strict=True)
    contributions = [norm * (coefficients[:count].mean() if count else 0) for norm, coefficients, count in lists]
    assert table["contribution"].tolist() == pytest.approx(contributions) and max(contributions) > 0


def test_the_bottom_of_values_beside_the_tokens_that_follow_their_negative_triggers(worked, negative_triggers):
    """Every value of the detector is flat but for one token, so that its bottom is BOS, id 0, the lowest of equals."""
    bottom = worked.projections.bottom.copy()
    bottom[[0, 1, 2, 3, 4]] = [WORDS.index(word) for word in "bcbcp"]
    table = compare(replace(worked.projections, bottom=bottom), worked.ranks, negative_triggers)
    # after "a" of the first sentence follows b, after "d" of "d e p" e, after "p" of "p c c p" c, after "a b" p
    next_words = [WORDS[token] if token >= 0 else None for token in table["negative_next_token"]]
    assert next_words == ["b", "e", None, "c", "p", None, None, None]
    assert table["negative_triggers"].tolist() == [2, 1, 0, 1, 1, 0, 0, 0]
    assert table["negative_agrees"].tolist() == [True, False, False, True, True, False, False, False]
    assert table["bottom_token"].tolist() == bottom.tolist()
