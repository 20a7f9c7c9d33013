"""Groups of prompts: who is in one, how they are halved and taken, and that tests and intervals hold where prompts are no draws."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT

import ffkv
from ffkv.base.intervals import drawn_again, interval_over_groups, mean_interval, without_each
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.behaviours import words
from ffkv.branches.behaviours.contrast import Drawn, p_values
from ffkv.branches.behaviours.encode import changed_words, draw, group_by_words, groups_of, halve, in_turn
from ffkv.branches.behaviours.prompt_file import Prompt, read_prompts
from tests.branches.behaviours.conftest import make
from tests.branches.behaviours.test_planted import PAIRS
from tests.branches.behaviours.test_prompts import PAIR, PROMPT, write


def generator(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("clean", "patch", "expected"),
    [
        ("The authors near the car", "The author near the car", ["author", "authors"]),
        ("When Mary and John went, John", "When John and Mary went, John", ["john", "mary"]),
        ("All such lists", "Every such list", ["all", "every", "list", "lists"]),
        ("A red car", "A car", ["red"]),
        ("法国的首都是", "德国的首都是", ["德", "法"]),
        ("The car.", "the car", []),
    ],
)
def test_the_words_in_which_two_prompts_differ(clean, patch, expected):
    assert changed_words(clean, patch) == expected == changed_words(patch, clean)


def test_pairs_that_share_a_changed_word_are_of_one_group():
    """Also in both directions, by way of others, or with the same prompt; a noun in singular and plural is one."""
    pairs = [("The authors are", "The author are"), ("An author is", "An authors is"), ("The dogs", "The dog")]
    pairs += [("in France now", "in Italy now"), ("in Spain", "in Italy"), ("Spain", "Greece")]
    pairs += [("a b", "a b"), ("a b", "a b"), ("c", "c")]  # no pairs
    found = group_by_words(*zip(*pairs))
    assert found == [*["author, authors"] * 2, "dog, dogs", *["france, greece, italy, spain"] * 3, "a b", "a b", "c"]


def test_a_long_name_is_shortened_and_says_which_group_it_is():
    clean = ["a b c", "x y z"]
    assert group_by_words(clean, ["d e f", "u v w"]) == ["a, b, c, d ...", "u, v, w, x ..."]


def prompts_of(*pairs, group="") -> list[Prompt]:
    return [Prompt("", clean, patch, "", "", "", True, group) for clean, patch in pairs]


def test_what_makes_groups():
    pairs = ("a x", "a y"), ("b x", "b y")
    assert groups_of(prompts_of(*pairs), np.array([True, True])) == (words.BY_WORDS, ["x, y"] * 2)
    assert groups_of(prompts_of(*pairs), np.array([True, False])) == (words.BY_WORDS, ["x, y", ""])
    assert groups_of(prompts_of(*pairs, group="g"), np.array([True, True])) == (words.BY_FIELD, ["g", "g"])
    alone = prompts_of(("a", None), ("b", None), ("a", None))
    assert groups_of(alone, np.ones(3, bool)) == (words.BY_PROMPT, ["a", "b", "a"])


def test_the_field_of_the_file(tmp_path):
    _, found = read_prompts(write(tmp_path / "p.jsonl", {**PAIR, "group": "x"}, {**PAIR, "group": 3}))
    assert [prompt.group for prompt in found] == ["x", "3"]
    _, both = read_prompts(write(tmp_path / "l.jsonl", {"positive": "a", "negative": "b", "group": "x"}))
    assert [prompt.group for prompt in both] == ["x", "x"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{**PROMPT, "group": "x"}, PROMPT], "p.jsonl, line 2: lacks the field 'group'"),
        ([PROMPT, {**PROMPT, "group": "x"}], "p.jsonl, line 1: lacks the field 'group'"),
        ([{**PROMPT, "group": "x"}, {**PROMPT, "group": ""}], "line 2: lacks the field 'group'"),
        ([{**PROMPT, "group": True}], "line 1: field 'group' is True. A group is text or a whole number."),
        ([{**PROMPT, "group": 1.5}], "field 'group' is 1.5"),
        ([{**PROMPT, "group": ["x"]}], "field 'group' is ['x']"),
    ],
)
def test_a_group_that_is_none_is_refused(tmp_path, rows, said):
    with pytest.raises(ffkv.UserError) as error:
        read_prompts(write(tmp_path / "p.jsonl", *rows))
    assert said in str(error.value)


GROUPED = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2), st.booleans()), min_size=1, max_size=40)


@given(GROUPED, st.integers(2, 30))
def test_halves_hold_different_groups_and_beginnings_are_spread(rows, count):
    groups, labels, positive = zip(*[(f"g{group}", f"l{label}", which) for group, label, which in rows])
    part, order = draw([""] * len(rows), np.array(positive), labels, groups, count, 0)
    used = np.flatnonzero(part != "")
    assert len(used) <= count and ((order >= 0) == (part != "")).all()
    halves = [{groups[n] for n in used if part[n] == half} for half in (words.CHOOSE, words.ESTIMATE)]
    lists = [{positive[n] for n in used if part[n] == half} for half in (words.CHOOSE, words.ESTIMATE)]
    assert (
        lists[0] == lists[1]
        or len(used) < 2 * len({*positive})
        or min(positive.count(which) for which in {*positive}) < 2
    )
    disjoint = not halves[0] & halves[1]
    if not disjoint:  # a list whose groups, in the order in which they are drawn, cannot be in both halves
        kinds, drawn = [*zip(positive, labels)], random_stream(0, Purpose.BEHAVIOUR_PROMPTS).permutation(len(rows))
        taken = [n for n in in_turn(drawn.tolist(), groups, kinds) if n in used]
        found = halve(taken, groups, kinds)
        assert any(len({found[n] for n in taken if positive[n] == which}) < 2 for which in {*positive})
    for half in (words.CHOOSE, words.ESTIMATE):
        own = sorted(np.flatnonzero(part == half), key=lambda n: order[n])
        assert [order[n] for n in own] == [*range(len(own))]
        several = len({groups[n] for n in own})
        assert len({groups[n] for n in own[:several]}) == several  # each group once before any comes again


def test_prompts_are_taken_over_groups_and_labels_in_turn():
    """Three groups with two labels each, and a fourth with both once."""
    groups, labels = [*"aaaabbbbccccdd"], [*"xxyyxxyyxxyyxy"]
    order = in_turn(range(14), groups, [(True, label) for label in labels])
    assert [groups[n] for n in order] == [*"abcdabcd", *"abc" * 2]
    for many in range(1, 8):  # while each group has both labels
        counts = [[labels[n] for n in order[:many]].count(label) for label in "xy"]
        assert abs(counts[0] - counts[1]) <= 1
    assert sorted(order) == [*range(14)]


def test_halves_are_balanced_over_labels():
    groups, labels = [*"aabbccdd"], [*"xxyyxxyy"]
    found = halve(range(8), groups, [(True, label) for label in labels])
    assert [[labels[n] for n in found if found[n] == half].count("x") for half in (0, 1)] == [2, 2]
    sizes = halve(range(10), [*"aaaabbccde"], [(True, "")] * 10)
    assert sorted(sizes.values()) == [0] * 5 + [1] * 5


def test_a_single_group_is_halved_by_prompts():
    part, _ = draw([""] * 6, np.ones(6, bool), [""] * 6, ["x"] * 6, 100, 0)
    assert [*part].count(words.CHOOSE) == [*part].count(words.ESTIMATE) == 3
    # The list of two groups has both in both halves, as the other list has a single one.
    positive = np.arange(8) < 4
    part, _ = draw([""] * 8, positive, [""] * 8, [*"aabbcccc"], 100, 0)
    assert all({*positive[part == half]} == {True, False} for half in (words.CHOOSE, words.ESTIMATE))


@pytest.mark.parametrize("name", ["agreement", "capitals", "documentation"])
def test_what_is_measured_first_of_the_shipped_prompts_is_spread(name):
    """The first 20 of each half are of 20 groups, none of which the other half has, and of all labels."""
    rows = [json.loads(line) for line in (ROOT / f"configs/prompts/{name}.jsonl").read_text().splitlines()]
    labels, groups = ([row[column] for row in rows] for column in ("label", "group"))
    part, order = draw([""] * len(rows), np.ones(len(rows), bool), labels, groups, 200, 0)
    halves = [{groups[n] for n in np.flatnonzero(part == half)} for half in (words.CHOOSE, words.ESTIMATE)]
    assert not halves[0] & halves[1]
    for half, own in zip((words.CHOOSE, words.ESTIMATE), halves):
        first = np.flatnonzero((part == half) & (order < 20))
        assert len({groups[n] for n in first}) == min(20, len(own)) and {labels[n] for n in first} == {*labels}


def share_of_small_p(values, group, most=2**13) -> float:
    drawn = Drawn(np.ones(len(group), bool), np.asarray(group))
    return float((p_values(values.astype(np.float32), drawn, most, generator(1)) <= 0.05).mean())


WORDS, TEMPLATES, MEMORIES = 12, 8, 3000


def test_p_values_hold_where_each_word_has_a_number_of_its_own():
    """Twelve words in eight templates, correlated by 0.5 within a word: 5 %, with four standard errors of 0.4 %. Prompts find too much.

    So do pairs of crossed words, each as a group of its own: their common words make them one group, of which nothing can be said.
    """
    draws = generator()
    word = np.repeat(np.arange(WORDS), TEMPLATES)
    values = draws.normal(size=(WORDS, MEMORIES))[word] + draws.normal(size=(len(word), MEMORIES))
    assert abs(share_of_small_p(values, word) - 0.05) < 0.016
    assert share_of_small_p(values, np.arange(len(word))) > 0.3
    one, other = np.array([*itertools.combinations(range(WORDS), 2)]).T
    of_words = draws.normal(size=(WORDS, MEMORIES))
    assert share_of_small_p(of_words[one] + of_words[other], np.arange(len(one))) > 0.4
    names = [f"word{n}" for n in range(WORDS)]
    (group,) = {*group_by_words([names[n] for n in one], [names[n] for n in other])}
    assert share_of_small_p(of_words[one] + of_words[other], [group] * len(one)) == 0


def test_p_values_hold_of_skewed_prompts_beside_prefixes():
    """15 prompts like 60 prefixes, exponential: 5 %, with four standard errors. Signs that are flipped find too much."""
    draws = generator()
    values = draws.exponential(size=(75, MEMORIES)) - 1
    drawn = Drawn(np.arange(75) < 15, np.arange(75))
    found = p_values(values.astype(np.float32), drawn, 2000, generator(1))
    assert abs((found <= 0.05).mean() - 0.05) < 0.016
    assert share_of_small_p(values[:15], np.arange(15), 2**15) > 0.07


@pytest.mark.parametrize(("groups", "least"), [(5, 0.93), (10, 0.93), (30, 0.93)])
def test_intervals_of_shares_hold_the_truth(groups, least):
    """A share of 0.4 of what prompts have, three prompts a group, which make half of the variance: 400 draws, 3.7 standard errors."""
    draws, inside = generator(groups), 0
    group = np.repeat(np.arange(groups), 3)
    for _ in range(400):
        noise = [draws.normal(size=groups)[group] + draws.normal(size=len(group)) for _ in range(2)]
        has = 4 + noise[0]
        lost = 1.6 + 0.2 * noise[0] + 0.6 * noise[1]
        weights = without_each(group)
        low, high = interval_over_groups(weights @ lost / (weights @ has))
        inside += low <= 0.4 <= high
    assert inside / 400 >= least - 3.7 * np.sqrt(0.05 * 0.95 / 400)


def test_intervals_of_means_over_equal_groups_are_those_of_their_means():
    values, group = generator().normal(size=18), np.repeat([*"abcdef"], 3)
    found = interval_over_groups(without_each(group) @ values)
    assert found == pytest.approx(mean_interval(values.reshape(6, 3).mean(1)))
    assert len(without_each(group[:12])) == 1 and np.isnan(interval_over_groups(np.ones(1))).all()


def test_groups_are_drawn_again_as_a_whole():
    group = np.array([*"aabbbc"])
    drawn = drawn_again(group, 50, generator())
    assert (drawn[:, 0] == drawn[:, 1]).all() and (drawn[:, 2] == drawn[:, 4]).all()
    assert (drawn[:, [0, 2, 5]].sum(1) == 3).all() and len(np.unique(drawn, axis=0)) > 5


FEW = {
    "candidates": 2,
    "controls": 2,
    "directions": 0,
    "sets": [1],
    "random_sets": 1,
    "missed": 14,
    "side_effect_prefixes": 2,
}


def test_pairs_that_all_differ_in_the_same_words_are_one_group(planted_inputs, tmp_path):
    """Nothing is counted as significant, and no interval is given."""
    rows = [{name: row[name] for name in row if name != "group"} for row in PAIRS]
    made = make(tmp_path, planted_inputs, prompts=rows, **FEW)
    summary = made.summaries["behaviours"].iloc[0]
    assert (summary["groups"], summary["grouped_by"], summary["smallest_p"]) == (1, "words", 1)
    assert np.isnan([summary["significant"], summary["screened"], summary["by_memories_low"]]).all()
    assert summary["by_memories"] == pytest.approx(1, abs=1e-3)
    assert (made.memories["p_value"] == 1).all() and made.memories["estimate_low"].isna().all()


def test_effects_are_measured_on_the_first_prompts_in_their_order(planted_inputs, tmp_path):
    """Five groups with four prompts each, one after the other in the file: of the second half, one prompt of each group."""
    rows = [{**row, "group": row["clean_prefix"][2]} for row in sorted(PAIRS, key=lambda row: row["clean_prefix"][2])]
    made = make(tmp_path, planted_inputs, prompts=rows, effect_prompts=2, **FEW)
    group = made.prompts.set_index("prompt")["group"]
    measured = made.sets["prompt"].unique()
    assert len(measured) == 2 == group.loc[measured].nunique() and (made.prompts.loc[measured, "order"] < 2).all()
    assert not {*group[made.prompts["part"] == "choose"]} & {*group[made.prompts["part"] == "estimate"]}
    assert made.effects["prompt"].isin(measured).all()
    causes = made.summaries["behaviour_memories"].query("reach == 'total'").iloc[0]
    screens = made.memories.set_index(["layer", "memory"]).loc[(causes["layer"], causes["memory"])]
    assert causes["screen_measured"] == screens["screen_measured"] and causes["prompts"] == 2


def test_prompts_of_other_baselines_are_tested_beside_prefixes(planted_inputs, tmp_path):
    """As many prefixes as prompts, with their answers. Of pairs, the behaviour is above what is left when all are patched to 0."""
    made = make(tmp_path / "0", planted_inputs, prompts=PAIRS, baseline="zero", **FEW)
    prefixes = made.prompts[made.prompts["part"] == words.REFERENCE]
    assert len(prefixes) == 20 and {*prefixes["answer"]} == {*made.prompts["answer"]} and not prefixes["positive"].any()
    assert made.answers["floor"].isna().all() and len(made.answers) == 20
    summary = made.summaries["behaviours"].iloc[0]
    assert (summary["lines"], summary["groups"], summary["kind"]) == (20, 20, "pairs")
    assert np.isnan(summary["by_memories"]) and summary["smallest_p"] == 2 / 2**10
    causes = made.memories.set_index(["layer", "memory"]).loc[(0, 0)]
    assert causes["screen_q"] < 0.05 and causes["q_value"] < 0.05
    prompts = [{"prompt": row["clean_prefix"], "answer": " b", "wrong": " c"} for row in PAIRS]
    prompts[0] |= {"prompt": "d \ud83d a", "label": "\ud83d"}  # half of a character, from a stranger
    made = make(tmp_path / "1", planted_inputs, prompts=prompts, **FEW)
    assert (made.prompts["part"] == words.REFERENCE).sum() == 20 and made.prompts["label"][0] == "\ufffd"
    summary = made.summaries["behaviours"].iloc[0]
    assert (summary["grouped_by"], summary["prompts"]) == ("prompt", 20) and summary["smallest_p"] < 1e-4
