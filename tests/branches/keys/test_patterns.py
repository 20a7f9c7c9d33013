from dataclasses import replace

import numpy as np
import pytest

from ffkv.branches.keys.features import Evidence, count_background, shallow_evidence
from ffkv.branches.keys.key_sample import background_prefixes, prefix_words
from ffkv.branches.keys.patterns import (
    Detector,
    Pattern,
    categorize,
    detect_patterns,
    detect_shallow,
    detect_topics,
    find_recurring,
    keep_distinct,
    prepare_detector,
    words_of,
)
from ffkv.branches.keys.tables import CATEGORIES
from ffkv.branches.settings import Keys
from ffkv.corpus.competing import CompetingPrefixes

from .conftest import TOPICS, make_detector, random_keys, subject_word, topic_word


def prefixes_where(corpus, condition, count=25):
    """Prefixes of different sentences that meet a condition on (sentence, words)."""
    found, sentences, competing = [], set(), CompetingPrefixes(corpus, True)
    for number in np.random.default_rng(1).permutation(len(competing)):
        sentence, position = competing.locate(number)
        (words,) = prefix_words(corpus, [int(sentence)], [int(position)])
        if int(sentence) not in sentences and condition(int(sentence), words):
            found.append(words)
            sentences.add(int(sentence))
        if len(found) == count:
            return found
    raise AssertionError("the corpus has too few such prefixes")


def found_in(detector, *keys):
    return [
        [(*pattern.feature, len(pattern.members)) for pattern in found] for found in detect_patterns(keys, detector)
    ]


def test_a_key_whose_prefixes_share_the_last_word(corpus, detector):
    word = topic_word(0, 0)
    key = prefixes_where(corpus, lambda sentence, words: words[-1] == word and len(words) > 3)
    (patterns,) = detect_patterns([key], detector)
    assert patterns[0].feature == ("last word", word)
    assert patterns[0].members == tuple(range(25))
    assert patterns[0].p_value < 1e-30
    assert set(categorize(patterns, 25)) <= {"shallow", "shallow and semantic"}


def topics_of(keys, detector):
    """The topics of keys without shallow patterns."""
    return detect_topics(keys, [()] * len(keys), detector)


def about(subject, prefixes):
    """Prefixes of two words each of a subject, none of them twice."""
    return [["the", subject_word(subject, 2 * n), "of", subject_word(subject, 2 * n + 1)] for n in range(prefixes)]


def test_a_topic_without_shared_words_has_the_prefixes_that_are_about_it(subjects):
    others = [["the", subject_word(number, 1), "of", subject_word(number, 2)] for number in range(20, 26)]
    (patterns,) = detect_patterns([[["of", "the"], *about(3, 14), *others]], subjects)
    (topic,) = [pattern for pattern in patterns if pattern.family == "semantic"]
    assert topic.members == tuple(range(1, 15))
    assert topic.p_value == topic.q_value == 1 / 4001
    assert topic.chance == 0.05
    assert topics_of([about(3, 14)], subjects._replace(false_discovery_rate=1 / 4001)) != [[]]
    kind, words = topic.feature
    assert kind == "topic"
    assert set(words.split(", ")) <= {subject_word(3, number) for number in range(40)}


def test_topics_are_one_hypothesis_a_key(subjects):
    nothing = [[["of", "the"]]] * 19
    assert [len(patterns) for patterns in topics_of([about(5, 10), *nothing], subjects)] == [1, *[0] * 19]
    assert topics_of([about(5, 10), *nothing], subjects)[0][0].q_value == pytest.approx(20 / 4001)
    assert (
        topics_of([about(5, 10), *nothing * 11], subjects)[0] == []
    )  # 210 keys: 4,000 draws are too few for one alone


def test_three_prefixes_have_a_topic_also_those_that_are_left_and_two_have_none(subjects):
    (found,) = topics_of([[*about(3, 14), *about(7, 3)]], subjects)
    assert [topic.members for topic in found] == [tuple(range(14)), (14, 15, 16)]
    assert topics_of([about(3, 3)], subjects) != [[]] == topics_of([about(3, 2)], subjects)


def test_patterns_are_those_of_the_language_of_the_corpus(corpus):
    """In German “die” is a function word, and “of” is none."""
    competing = CompetingPrefixes(replace(corpus, language="de"), True)
    german = prepare_detector(competing, Keys(background_prefixes=100), seed=0)
    prefixes = background_prefixes(competing, 100, 0)
    expected = count_background(shallow_evidence(prefix, "de") for prefix in prefixes)
    assert (german.background.counts, german.background.places) == (expected.counts, expected.places)
    key = [[word] for word in ("die", "der", "das", "und", "ein", "nicht", "auch")]
    assert found_in(german, key) == [[("word class", "a function word", 7)]]


def test_shared_words_alone_are_no_topic(subjects):
    shared = [subject_word(1, number) for number in range(3)]
    (patterns,) = detect_patterns([[["the", *shared, "of"] for _ in range(25)]], subjects)
    assert {pattern.family for pattern in patterns} == {"shallow"}


def test_words_of_shallow_patterns_speak_for_no_topic(subjects):
    """25 prefixes end with one of five words: five shallow patterns. Inside prefixes these words do speak for a topic."""
    words = [subject_word(1, number) for number in range(5)]
    others = [[subject_word(number, 7), subject_word(number, 8)] for number in range(2, 27)]
    (last,) = detect_patterns([[[first, words[n % 5]] for n, (first, _) in enumerate(others)]], subjects)
    assert {pattern.feature for pattern in last} == {("last word", word) for word in words}
    (inside,) = detect_patterns([[[first, words[n % 5], behind] for n, (first, behind) in enumerate(others)]], subjects)
    assert {pattern.family for pattern in inside} == {"semantic"}


def test_topics_are_the_same_again(many_subjects, subjects):
    keys = [about(subject, 12) for subject in (0, 39)]
    found = topics_of(keys, subjects)
    assert all(found)
    assert found == topics_of(keys, make_detector(many_subjects))


def test_two_prefixes_are_too_few_and_three_enough(corpus, detector):
    (rest,) = random_keys(corpus, 1, prefixes=22)
    unheard = [["the", topic_word(number, 90 + number), "zebra"] for number in range(3)]
    two, three = found_in(detector, [*unheard[:2], *rest], [*unheard, *rest])
    assert ("last word", "zebra", 3) in three
    assert not any("zebra" in text for _, text, _ in two)


def test_frequent_words_need_more_than_three(corpus, detector):
    of_the = [["the", topic_word(number % 5, 80 + number), "of"] for number in range(3)]
    (rest,) = random_keys(corpus, 1, prefixes=22)
    (found,) = found_in(detector, [*of_the, *rest])
    assert ("last word", "of", 3) not in found


def test_random_prefixes_have_no_pattern(corpus, detector):
    assert found_in(detector, *random_keys(corpus, 1)) == [[]]


@pytest.mark.slow
def test_the_share_of_random_keys_with_a_pattern_is_below_the_false_discovery_rate(corpus, detector):
    """Beside keys that have patterns, so that the level is the one that real keys are held to."""
    words = [topic_word(topic, number) for topic in range(TOPICS) for number in range(6)]
    real = [prefixes_where(corpus, lambda sentence, w, word=word: w[-1] == word, count=10) for word in words]
    random = [key for layer in range(3) for key in random_keys(corpus, 100, layer=layer)]
    found = detect_patterns([*real, *random], detector)
    assert all(found[: len(real)])
    assert np.mean([bool(patterns) for patterns in found[len(real) :]]) <= detector.false_discovery_rate


def test_every_feature_of_the_background_counts_as_a_hypothesis_for_every_key():
    background = count_background(Evidence([("last word", f"w{number}")], 1) for number in range(50))
    key = [Evidence([("last word", "new")], 1)] * 4 + [Evidence([("last word", "w1")], 1)]

    def detect(rate: float) -> list[list[Pattern]]:
        return detect_shallow(
            [key, []], Detector(background, None, minimum_prefixes=3, false_discovery_rate=rate, seed=0)
        )

    (pattern,), nothing = detect(0.05)
    assert pattern.members == (0, 1, 2, 3)
    assert pattern.chance == pytest.approx(1 / 51)
    assert pattern.p_value == pytest.approx(5 * (1 / 51) ** 4 * (50 / 51) + (1 / 51) ** 5)
    assert pattern.q_value == pytest.approx(pattern.p_value * 2 * 51)
    assert nothing == []
    assert detect(pattern.q_value) == [[pattern], []]
    assert detect(0.999 * pattern.q_value) == [[], []]


def test_no_keys_no_patterns(detector):
    assert detect_patterns([], detector) == []
    assert detect_patterns([[]], detector) == [[]]
    assert detect_patterns([[[], []]], detector) == [[]]


def test_recurring_counts_prefixes_not_occurrences():
    key = [Evidence([("inner bigram", "a b")] * 5, 10), Evidence([("inner bigram", "a b"), ("last word", "b")], 2)]
    assert find_recurring(key, 2) == {("inner bigram", "a b"): (0, 1)}


def pattern(kind, members, p, text="x"):
    return Pattern((kind, text), tuple(members), 0.01, p, p)


def test_the_words_of_patterns():
    kinds = [("last bigram", "of press"), ("word class", "a number"), ("last word", "press")]
    assert words_of([pattern(kind, range(3), 0.01, text) for kind, text in kinds]) == {"of", "press"}


def test_of_patterns_in_the_same_prefixes_the_most_specific_stays():
    word, bigram, trigram = (
        pattern(kind, range(5), p) for kind, p in [("last word", 1e-9), ("last bigram", 1e-6), ("last trigram", 1e-7)]
    )
    assert keep_distinct([word, bigram, trigram]) == keep_distinct([trigram, word, bigram]) == [trigram]


def test_only_a_pattern_inside_a_more_significant_one_is_dropped():
    word, bigram = pattern("last word", range(10), 1e-9), pattern("last bigram", range(4), 1e-6)
    assert keep_distinct([bigram, word]) == [word]
    word, bigram = pattern("last word", range(10), 1e-6), pattern("last bigram", range(4), 1e-9)
    assert keep_distinct([word, bigram]) == [bigram, word]
    first, second = pattern("last word", [0, 1, 2], 1e-6), pattern("first word", [2, 3, 4], 1e-5)
    assert keep_distinct([first, second]) == [first, second]


def test_a_prefixs_category_is_the_union_of_its_patterns_families():
    patterns = [pattern("last word", [0, 1], 0.01), pattern("inner bigram", [0], 0.01), pattern("topic", [1, 2], 0.01)]
    found = categorize(patterns, 4)
    assert found == ["shallow", "shallow and semantic", "semantic", "none"] == list(CATEGORIES)
    assert categorize([], 2) == ["none", "none"]
