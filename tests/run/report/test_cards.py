import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from ffkv.activations.trigger_file import HISTOGRAM_EDGES, read_triggers
from ffkv.run.report import cards
from ffkv.run.results.run import open
from ffkv.run.results.text import MINUS, percent, rounded


@pytest.fixture(scope="module")
def made(run):
    return cards.make_cards(run)


@pytest.fixture(scope="module")
def triggers(folder):
    return read_triggers(folder / "triggers.h5")


def test_cards_are_spread_evenly_over_the_layers(made):
    assert [card.memory.layer for card in made] == sorted(list(range(6)) * 4)


def test_with_fewer_cards_than_layers_the_first_and_the_last_layer_have_one(run):
    empty = pd.DataFrame({"layer": [], "memory": [], "prefixes": []})
    assert [layer for layer, _ in cards.choose(empty, run.memories(), 3)] == [0, 2, 5]


def test_keys_with_the_strongest_patterns_come_first_then_the_highest_coefficients(run, triggers):
    patterns = pd.DataFrame({"layer": [0, 0, 0, 0], "memory": [3, 5, 5, 9], "prefixes": [8, 8, 2, 4]})
    chosen = [memory for layer, memory in cards.choose(patterns, run.memories(), 24) if layer == 0]
    highest = [memory for memory in np.argsort(-triggers.maximum[triggers.rows(0)]).tolist() if memory not in (3, 5, 9)]
    assert chosen == sorted([3, 5, 9, highest[0]])
    assert cards.choose(patterns, run.memories(), 6)[0] == (0, 5)


def test_a_dead_key_has_no_card(run, triggers):
    empty = pd.DataFrame({"layer": [], "memory": [], "prefixes": []})
    chosen = cards.choose(empty, run.memories(), 10_000)
    assert len(chosen) == (triggers.count > 0).sum()


def test_a_card_shows_the_strongest_trigger_examples(run, made, triggers):
    corpus = run.corpus("train")
    card = made[0]
    row = triggers.layer_offset[card.memory.layer] + card.memory.memory
    assert len(card.triggers) == run.settings.report.card_triggers
    for rank, line in enumerate(card.triggers):
        sentence, position = triggers.sentence[row, rank], triggers.position[row, rank]
        start, end = corpus.character(sentence, position - 1), corpus.character(sentence, position)
        assert (line.text, line.last_token) == (corpus.texts[sentence][:end], corpus.texts[sentence][start:end])
        assert line.position == position


def test_triggers_name_the_patterns_that_they_have(made):
    for card in made:
        assert [each.number for each in card.patterns] == list(range(1, len(card.patterns) + 1))
        for line in card.triggers:
            assert line.patterns == [each.number for each in card.patterns if line.rank in each.ranks]
        assert any(line.patterns for line in card.triggers)
        prefixes = [each.prefixes for each in card.patterns]
        assert prefixes == sorted(prefixes, reverse=True)


def test_a_card_has_predictions_and_what_they_are_worth(made):
    assert all(len(card.top) == cards.PREDICTIONS_PER_CARD for card in made)
    assert [row.probability for row in made[0].top[:2]] == pytest.approx([0.3, 0.15])
    assert "follows 3 of 12" in made[0].verdict


def card_of(**memory) -> cards.Card:
    return cards.Card(None, SimpleNamespace(**memory))


def test_the_small_histogram_says_its_counts():
    counts = np.array([7, 3, 0, 1])[np.r_[0:4, [2] * 9]]
    bins = pd.DataFrame({"low": HISTOGRAM_EDGES[:-1], "high": HISTOGRAM_EDGES[1:], "prefixes": counts})
    drawn = str(card_of(histogram=bins).histogram)
    assert "not positive 7" in drawn
    assert [
        shape.count("M") for shape in re.findall(r'class="rests" d="(.*?)".*class="fires" d="(.*?)"', drawn)[0]
    ] == [1, 12]


def test_negative_triggers_stand_apart_with_the_bottom_of_the_value(run, made, triggers):
    corpus = run.corpus("train")
    vocabulary = run.vocabulary
    for card in made:
        row = triggers.layer_offset[card.memory.layer] + card.memory.memory
        assert len(card.negative) == min(triggers.negative.count[row], run.settings.report.card_triggers)
        for rank, line in enumerate(card.negative):
            sentence, position = triggers.negative.sentence[row, rank], triggers.negative.position[row, rank]
            assert line.coefficient == triggers.negative.coefficient[row, rank] < 0
            start, end = corpus.character(sentence, position - 1), corpus.character(sentence, position)
            assert line.last_token == corpus.texts[sentence][start:end]
            assert line.next_token == vocabulary[corpus.ids(sentence)[position]]
        assert not any(hasattr(line, "patterns") for line in card.negative)
        assert not card.gated
        assert len(card.bottom) == cards.PREDICTIONS_PER_CARD
        assert card.bottom[0].token != card.top[0].token
    told = "The bottom token does not follow the most negative trigger example."
    verdicts = {card.memory.memory: card.bottom_verdict for card in made}
    assert (verdicts[4], verdicts[6]) == (told, told.replace("does not follow", "follows"))
    none = pd.Series({"negative_trigger_examples": 0, "negative_agrees": False})
    assert card_of(statistics=none).bottom_verdict == "The key has no negative trigger example."


def test_statistics_tell_how_often_and_how_far_a_key_is_negative(run, made, triggers):
    row = triggers.layer_offset[made[0].memory.layer] + made[0].memory.memory
    said = " · ".join(made[0].statistics)
    assert f"negative on {percent(triggers.negative.fires[row] / triggers.prefixes)} of prefixes" in said
    assert f"minimum {MINUS}{rounded(-triggers.negative.minimum[row])}" in said


def test_a_gated_memory_tells_the_signs_of_its_gate_and_of_the_other_factor(write):
    made = cards.make_cards(open(write(layers=2, gated=True)))
    seen = set()
    for card in made:
        assert card.gated
        for sign, lines in ((1, card.triggers), (-1, card.negative)):
            for line in lines:
                assert line.gate * line.up == sign
                seen.add((line.gate, line.up))
    assert len(seen) == 4


def test_without_negative_coefficients_a_card_has_no_negative_side(write):
    made = cards.make_cards(open(write(layers=1, signed=False)))
    assert not any(card.signed or card.negative for card in made)
    assert not any("negative" in said or "minimum" in said for card in made for said in card.statistics)
