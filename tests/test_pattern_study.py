"""Planted keys of the power study: what is planted is what the study says."""

import numpy as np
import pytest

from benchmarks.planted_keys import Material, Planter


@pytest.fixture
def material() -> Material:
    """40 sentences of each of two articles, with two prefixes each: one of a word, one of three content words."""
    words, sentence, article = [], [], []
    for number in range(80):
        of = "red" if number < 40 else "blue"
        words += [[of], [f"{of}{number}a", f"{of}{number}b", f"{of}{number}c"]]
        sentence += [number] * 2
        article += [number // 40] * 2
    last = np.array([each[-1] for each in words])
    return Material(words, np.array(sentence), np.array(article), last, np.array([1, 3] * 80))


@pytest.mark.parametrize("content", [0, 3])
def test_a_planted_key_has_prefixes_of_one_article_with_enough_words(material, content):
    generator = np.random.default_rng(0)
    keys = [Planter(material, content).plant(8, False, generator) for _ in range(50)]
    counts = [{of: [len(each) for each in key if each[0].startswith(of)] for of in ("red", "blue")} for key in keys]
    assert all(sorted(map(len, count.values())) == [8, 17] for count in counts)
    planted = [min(count.values(), key=len) for count in counts]
    assert {length for each in planted for length in each} == ({3} if content else {1, 3})


def test_keys_of_one_last_word_need_an_article_that_has_it_often_enough(material):
    assert Planter(material, 3).plant(8, True, np.random.default_rng(0)) is None


def test_a_key_of_two_articles_has_prefixes_of_both(material):
    """8 of three words of each article; all 25 are of different sentences."""
    generator = np.random.default_rng(0)
    for _ in range(20):
        key = Planter(material, 3).plant_two(8, generator)
        long = [each[0] for each in key if len(each) == 3]
        assert len(key) == 25 and all(sum(word.startswith(of) for word in long) >= 8 for of in ("red", "blue"))
        sentences = [each[0].removesuffix("a") for each in key if len(each) == 3]
        assert len({*sentences}) == len(sentences)
