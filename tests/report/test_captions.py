from dataclasses import replace

import pandas as pd
import pytest

from ffkv.report import captions, facts
from ffkv.report.results import read_results
from ffkv.report.summary import summary
from ffkv.settings import Settings


@pytest.fixture(scope="module")
def results(folder):
    return read_results(folder, folder / "settings.json")


def with_settings(results, **values):
    return replace(results, settings=Settings.model_validate(values))


def test_a_course_names_both_ends_and_what_lies_outside_them():
    table = pd.DataFrame({"layer": range(4), "share": [0.2, 0.1, 0.9, 0.5]})
    said = captions.course(table, "share").replace("\u00a0", " ")
    assert said == "from 20 % in layer 1 to 50 % in layer 4 (lowest 10 % in layer 2, highest 90 % in layer 3)"
    assert captions.course(table.head(1), "share").replace("\u00a0", " ") == "20 % in layer 1"
    assert captions.course(table.head(0), "share") == "nothing to show"


@pytest.mark.parametrize(
    ("figure", "counts"),
    [
        ("figure_2", ["120 random keys", "3,000 trigger examples", "at least 3", "20,000 random prefixes"]),
        ("figure_3", ["120 keys", "up to 50", "1,440 in all", "18 left out"]),
        ("figure_4", ["of 186 values", "6 keys without", "1 in 40", "the model's own head"]),
        ("figure_5", ["186 keys", "40 tokens"]),
        ("figure_6", ["1,083 values", "8 bins"]),
        ("figure_7", ["400 validation prefixes", "carry 90\u00a0%", "32 memories", "gelu_new"]),
        ("figure_8", ["400 validation prefixes", "In 50 cases", "a stop word in 60\u00a0%", "fewer than 5 words"]),
        ("figure_9", ["400 validation prefixes"]),
        ("figure_10", ["400 validation prefixes"]),
        ("figure_11", ["400 validation prefixes"]),
        ("training", ["1,500 steps", "3,072,000 tokens"]),
    ],
)
def test_captions_carry_the_counts(results, figure, counts):
    caption = getattr(captions, figure)(results)
    for count in counts:
        assert count in caption.text
    assert "layer" in caption.description or figure in ("figure_6", "training")


def test_captions_carry_the_definition_in_force(results):
    changed = with_settings(
        results,
        values={"projection": "unembedding"},
        composition={"short_prefix": 7, "mass": 0.5},
        keys={"false_discovery_rate": 0.01},
    )
    assert "the output embedding" in captions.figure_4(changed).text
    assert "fewer than 7 words" in captions.figure_8(changed).text
    assert "carry 50\u00a0%" in captions.figure_7(changed).text
    assert "rate of 1\u00a0%" in captions.figure_2(changed).text


def test_the_paper_is_mentioned_only_where_it_is_drawn(results):
    without = with_settings(results, report={"paper_curves": False})
    for figure in ("figure_2", "figure_3", "figure_4", "figure_6", "figure_7", "figure_9", "figure_10", "figure_11"):
        assert "paper" in getattr(captions, figure)(results).text
        assert "paper" not in getattr(captions, figure)(without).text


def test_the_summary_has_the_main_numbers(results):
    said = " ".join(summary(results)).replace("\u00a0", " ")
    for fact in ("Of 120 keys, 90 % have a pattern", "by −67.5 % on average", "by −9.5 %", "of 186 memories"):
        assert fact in said


def test_captions_and_the_run_tell_of_negative_coefficients_only_where_there_are_any(results, write):
    folder = write(layers=1, signed=False)
    unsigned = read_results(folder, folder / "settings.json")
    assert "most negative trigger example, 13 of 186 values" in captions.figure_4(results).text
    assert "negative trigger examples:" in captions.figure_4(results).description
    assert "negative coefficient are not active" in captions.figure_7(results).text
    assert ("negative coefficients", "in 6 of 6 layers") in facts.model(results)
    definitions = dict(facts.facts(results)["Definitions in force"])
    assert definitions["negative trigger examples"] == "the 12 prefixes of most negative coefficient, one a sentence"
    for figure in (captions.figure_4, captions.figure_7):
        assert "negative" not in figure(unsigned).text + figure(unsigned).description
    assert ("negative coefficients", "none") in facts.model(unsigned)
    assert "negative trigger examples" not in dict(facts.facts(unsigned)["Definitions in force"])


def test_negative_coefficients_that_are_not_kept_are_said_not_to_be(results):
    changed = with_settings(results, triggers={"negative": False})
    assert dict(facts.facts(changed)["Definitions in force"])["negative trigger examples"] == "not kept"


def test_the_caption_of_active_memories_says_where_experts_rest(results):
    assert "expert" not in captions.figure_7(results).text
    layers = [
        replace(layer, second_matrices=[replace(layer.second_matrices[0], experts=4)])
        for layer in results.anatomy.layers
    ]
    mixture = replace(results, anatomy=replace(results.anatomy, layers=layers))
    assert "an expert that a prefix is not sent to" in captions.figure_7(mixture).text
