import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from ffkv.base.multiple_tests import SIGNIFICANT, q_values
from ffkv.branches.intervention import section as section_intervention
from ffkv.branches.keys import section as section_keys
from ffkv.run.report import facts
from ffkv.run.report.registry import FIGURES, load_figure
from ffkv.run.report.section import summary
from ffkv.run.report.wording import course
from ffkv.run.results.run import open

# Two significant digits, or all of those before the point; and what stands around them.
NUMBERS = r"[−+]?[\d,]*(\d|\d\.\d|0\.0*\d\d?)( %| nats| of [\d,]+( memories)?| points \(.*\))?|99\.\d %"
NUMBERS = f"({NUMBERS})( to ({NUMBERS}))?|–"


def caption(name, run):
    """The words of a figure; its text with the details of the method."""
    found = load_figure(name).caption(run)
    return replace(found, text=f"{found.text} {found.more}")


def test_a_method_is_short_and_details_hold_the_rest(run):
    for name in FIGURES:
        words = load_figure(name).caption(run)
        assert len(words.text.split()) <= 80, name
        assert "{" not in f"{words.shows}{words.text}{words.more}", name  # no mapping is written as one


def test_a_course_names_both_ends_and_what_lies_outside_them():
    table = pd.DataFrame({"layer": range(4), "share": [0.2, 0.1, 0.9, 0.5]})
    said = course(table, "share").replace("\u00a0", " ")
    assert said == "from 20 % in layer 0 to 50 % in layer 3 (lowest 10 % in layer 1, highest 90 % in layer 2)"
    assert course(table.head(1), "share").replace("\u00a0", " ") == "20 % in layer 0"
    assert course(table.head(0), "share") == "nothing to show"
    alike = pd.DataFrame({"layer": range(2), "share": [0.891, 0.893]})
    assert course(alike, "share").replace("\u00a0", " ") == "89 % in every layer"


@pytest.mark.parametrize(
    ("figure", "counts"),
    [
        ("figure_2", ["120 random keys", "3,000 trigger examples", "at least 3", "20,000 random prefixes"]),
        (
            "figure_3",
            ["up to 5", "First token: 120 keys with 1,440 trigger examples, 18 left out. Random token: 120 keys"],
        ),
        (
            "figure_4",
            ["of 186 values", "Keys without a trigger example are left out: 6.", "1 in 40", "the model's own head"],
        ),
        ("figure_5", ["186 keys", "40 tokens", "In 3 of 186 values several tokens share the highest logit"]),
        ("figure_6", ["1,083 values", "8 bins"]),
        ("figure_7", ["400 validation prefixes", "carry 90\u00a0%", "out of 32", "gelu_new"]),
        ("figure_8", ["400 validation prefixes", "In 50 cases", "In 60\u00a0% of them", "fewer than 5 words"]),
        ("figure_9", ["400 validation prefixes"]),
        ("figure_10", ["400 validation prefixes"]),
        ("figure_11", ["400 validation prefixes"]),
        ("training", ["1,500 steps", "3,072,000 tokens"]),
    ],
)
def test_captions_carry_the_counts(run, figure, counts):
    words = caption(figure, run)
    for count in counts:
        assert count in words.text
    assert "layer" in words.description or figure in ("figure_6", "training")


def test_figure_3_names_what_few_keys_do_to_the_mean(run, change):
    def text(**columns):
        removal = run.table("figure_3_removal").assign(**columns)
        return caption("figure_3", change(tables={"figure_3_removal": removal})).text.replace("\u00a0", " ")

    rows = len(run.table("figure_3_removal"))
    at = run.table("figure_3_removal").loc[1]
    assert (
        " The largest difference between mean and median over keys: "
        f"{at['removed']} token, layer {at['layer']}, mean +76 %, median \u22124 %."
        " Where a coefficient is near 0, its relative change is large, and a few such keys make the mean."
    ) in text(change=[-6.0, 76.0] + [-6.0] * (rows - 2), median=[-5.0] + [-4.0] * (rows - 1))
    assert "largest difference" not in text(change=-6.0, median=-5.0)
    assert "largest difference" not in text(change=float("nan"), median=float("nan"))


@pytest.mark.parametrize(
    ("tests", "controls", "least"), [(20, 99, 4), (40, 99, 8), (20, 399, 1), (4, 5, 14), (5, 99, 1), (128, 99, 26)]
)
def test_interventions_say_how_many_smallest_p_values_are_significant(tests, controls, least):
    """`least` p-values of 1 / (controls + 1) beside others of 1 are significant, one fewer is not."""

    def significant(smallest: int) -> bool:
        p = np.ones(tests)
        p[:smallest] = 1 / (controls + 1)
        return bool(q_values(p, tests)[0] <= SIGNIFICANT + 1e-12) and smallest > 0

    assert [significant(k) for k in range(tests + 1)] == [k >= least for k in range(tests + 1)]
    own = pd.DataFrame({"layer": [0, 0, 1], "memories": [tests // 2, tests - tests // 2, 1]})
    said = section_intervention._least(own, controls)
    possible = f"of {tests} tests of a layer, {least} or more are significant, or none"
    assert possible in said if 1 < least <= tests else said == ""
    assert not said or f"one memory alone at least {min(1, tests / (controls + 1)):.2g}. " in said  # a q-value
    counted = section_intervention._shown(own.assign(significant=0), controls)
    assert counted == (
        f"0 of {tests + 1} memories" if least <= tests else f"no memory, as {controls} controls cannot show it"
    )


def test_interventions_count_the_memories_without_a_placebo(run, change):
    assert "have none" not in caption("interventions", run).text
    table = run.table("interventions_by_layer").copy()
    table.loc[(table["source"] == "placebo") & (table["layer"] == 0), "memories"] -= 2
    assert (
        "Memories without such a prefix: 2. "
        in caption("interventions", change(tables={"interventions_by_layer": table})).text
    )


def test_a_layer_with_few_memories_has_as_few_controls(run, change):
    """Whatever the setting asks for, a layer of 8 memories has 7 others."""
    layers = [
        replace(each, second_matrices=[replace(each.second_matrices[0], memories=8)]) for each in run.anatomy.layers
    ]
    said = caption("interventions", change(anatomy=replace(run.anatomy, layers=layers)))
    assert "along 7 other memories" in said.text and "no memory, as 7 controls cannot show it" in said.text
    assert "cannot show it" in said.shows and "cannot show it" not in caption("interventions", run).text


def test_captions_carry_the_definition_in_force(change):
    changed = change(
        {
            "values": {"projection": "unembedding"},
            "composition": {"short_prefix": 7, "mass": 0.5},
            "keys": {"false_discovery_rate": 0.01},
        }
    )
    assert "the output embedding" in caption("figure_4", changed).text
    assert "fewer than 7 words" in caption("figure_8", changed).text
    assert "carry 50\u00a0%" in caption("figure_7", changed).text
    assert "rate of 1\u00a0%" in caption("figure_2", changed).text


def test_the_paper_is_mentioned_only_where_it_is_drawn(run, change):
    without = change({"report": {"paper_curves": False}})
    for figure in ("figure_2", "figure_3", "figure_4", "figure_6", "figure_7", "figure_9", "figure_10", "figure_11"):
        assert "paper" in caption(figure, run).text
        assert "paper" not in caption(figure, without).text


def test_the_summary_has_the_main_numbers(run):
    said = {what: own.replace("\u00a0", " ") for what, own, _ in summary(run)}
    assert said["keys with a pattern in their trigger examples"] == "90 %"
    assert [own for what, own in said.items() if "removed" in what or "first token" in what][:2] == ["−68 %", "−9.5 %"]
    assert all(re.fullmatch(NUMBERS, own) for own in said.values()), said


def test_shares_of_the_summary_are_of_all_trigger_examples(run, change):
    """Of 40 trigger examples in two layers 10 have a shallow pattern, 4 a semantic one, and 6 have both."""
    categories = ["shallow", "shallow and semantic", "semantic", "none"] * 2
    counts = [2, 6, 0, 2, 8, 0, 4, 18]
    columns = {"sample": "trigger", "layer": [0] * 4 + [1] * 4, "category": categories, "prefixes": counts}
    table = pd.DataFrame({**columns, "share": np.divide(counts, [10] * 4 + [30] * 4)})
    said = section_keys.SECTION.numbers(change(tables={"figure_2_categories": table}))
    assert said["trigger examples with a shallow pattern"] == "40\u00a0%"
    assert said["trigger examples with a semantic pattern"] == "25\u00a0%"


@pytest.mark.parametrize(("silent", "said"), [([0, 2], "0, 2"), (range(6), "all")])
def test_the_summary_says_where_nothing_fires(run, change, silent, said):
    activity = run.table("activity").copy()
    silent_layers = "layers in which no key has a trigger example"
    assert section_keys.SECTION.numbers(run)[silent_layers] == ""
    activity["dead"] = [keys if layer in silent else 0 for layer, keys in enumerate(activity["keys"])]
    assert section_keys.SECTION.numbers(change(tables={"activity": activity}))[silent_layers] == said
    assert summary(change(tables={"activity": activity}))[0][:2] == (silent_layers, said)


def test_captions_and_the_run_tell_of_negative_coefficients_only_where_there_are_any(run, write):
    unsigned = open(write(layers=1, signed=False))
    assert "most negative trigger example for 13 of 186 values" in caption("figure_4", run).text
    assert "negative trigger examples:" in caption("figure_4", run).description
    assert "negative coefficient are not active" in caption("figure_7", run).text
    assert ("negative coefficients", "in 6 of 6 layers") in facts.model(run)
    definition = dict(facts.facts(run)["Definitions"])["negative trigger examples"]
    assert definition == "the 12 prefixes with the most negative coefficients, one per sentence"
    for figure in ("figure_4", "figure_7"):
        words = caption(figure, unsigned)
        assert "negative" not in words.text + words.description
    assert ("negative coefficients", "none") in facts.model(unsigned)
    assert "negative trigger examples" not in dict(facts.facts(unsigned)["Definitions"])


def test_negative_coefficients_that_are_not_kept_are_said_not_to_be(change):
    changed = change({"triggers": {"negative": False}})
    assert dict(facts.facts(changed)["Definitions"])["negative trigger examples"] == "not kept"


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        ({}, ""),
        ({"limit": 1200}, "; the first 1,200 documents of each split"),
        ({"sentences_per_document": 20}, "; the first 20 sentences of each of all documents"),
        (
            {"limit": 120, "sentences_per_document": 20},
            "; the first 20 sentences of each of the first 120 documents of each split",
        ),
    ],
)
def test_the_facts_say_which_part_of_the_text_was_read(change, sample, said):
    source = {"dataset": "files", "train": ["package:some/a.xml"], "limit": 0}
    told = dict(facts.corpus(change({"corpus": {**source, **sample}})))["source"]
    assert told == f"<bdi>files: package:some/a.xml{said}</bdi>"


def with_experts(run, count):
    layers = [
        replace(layer, second_matrices=[replace(layer.second_matrices[0], experts=count)])
        for layer in run.anatomy.layers
    ]
    return replace(run.anatomy, layers=layers, errors={"experts": 0.0, **run.anatomy.errors})


def test_the_caption_of_active_memories_says_where_experts_rest(run, change):
    assert "expert" not in caption("figure_7", run).text
    assert "of an expert are zero" in caption("figure_7", change(anatomy=with_experts(run, 4))).text


def test_a_final_norm_is_named_only_where_there_is_one(run, change):
    without = change(anatomy=replace(run.anatomy, final_norm=False))
    assert "with its final norm" in caption("figure_4", run).text
    assert "has no final norm" in caption("figure_4", without).text
    assert "says nothing about the size of a value" in caption("figure_6", run).text
    assert "says nothing about the size of a value" not in caption("figure_6", without).text


def test_ties_are_counted_or_said_to_be_none(run):
    assert (
        "In 3 of 186 values several tokens share the highest logit: the lowest id counts."
        in caption("figure_5", run).text
    )
    assert "No two tokens share the highest logit." in caption("figure_9", run).text


def test_many_trigger_examples_of_one_token_are_a_warning(run, change):
    assert "Warning" not in section_keys.SECTION.before(run)[0].text
    activity = run.table("activity").assign(one_token=[0.05, 0.3, 0.1, 0.2, 0.0, 0.0])
    said = str(section_keys.SECTION.before(change(tables={"activity": activity}))[0].text)
    assert "Warning: they are more than 10\u00a0% in layers 1, 3." in said
    assert "&lt;s&gt; precedes it." in said


def test_tied_trigger_examples_are_counted_by_sign(run, change):
    said = section_keys.SECTION.before(run)[1].text
    keys, layers = run.table("activity")["keys"].iloc[0], len(run.table("activity"))
    assert said.startswith(
        f"The first trigger example is tied with the second for {3 * layers} of {keys * layers} keys:"
    )
    assert "negative" not in said
    activity = run.table("activity").assign(negative_tied=[keys, 0, 0, 0, 0, 0])
    said = section_keys.SECTION.before(change(tables={"activity": activity}))[1].text
    assert (
        f"The first negative trigger example is tied with the second for {keys} of {keys * layers} keys: from 100"
        in said
    )


def test_a_sample_of_nearly_everything_is_said_to_be_one(run, change):
    corpora = {**run.files.corpora, "validation": {**run.files.corpora["validation"], "tokens": 1060, "sentences": 60}}
    told = dict(facts.definitions(change(files=SimpleNamespace(corpora=corpora))))["sampled prefixes"]
    assert told.startswith("400 of the 1,000 prefixes of the validation split")
    assert "nearly all" not in told
    corpora["validation"]["tokens"] = 560
    told = dict(facts.definitions(change(files=SimpleNamespace(corpora=corpora))))["sampled prefixes"]
    assert told.startswith("400 of the 500 prefixes")
    assert "These are nearly all of its prefixes" in told


def test_an_identity_that_does_not_apply_is_not_shown(run, change):
    dense, mixture = (facts.proof(change(anatomy=with_experts(run, count))) for count in (0, 4))
    assert not any("expert" in meaning for meaning, _ in dense)
    assert sum("expert" in meaning for meaning, _ in mixture) == 1
    assert len(mixture) == len(dense) + 1 == 3
