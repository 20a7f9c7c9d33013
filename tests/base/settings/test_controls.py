"""The untrained models that runs are compared with: which runs have one, under which name, with which settings."""

import subprocess
import sys

import pytest
from support import refused

from ffkv.branches.settings import Behaviour, Concept, Settings
from ffkv.workflow.runs import controls_of, resolve, untrained

RANDOM = {"model": {"weights": "random"}}


def controls(runs: dict, **shared) -> dict[str, str]:
    """The control of each run of a settings file."""
    return {name: run.report.control for name, run in resolve({**shared, "runs": runs}).items()}


def changes(settings: Settings, other: Settings) -> dict[str, dict]:
    """What differs, by section."""
    before, after = settings.model_dump(), other.model_dump()
    return {
        name: {key: value for key, value in after[name].items() if value != before[name][key]}
        if isinstance(after[name], dict)
        else after[name]
        for name in after
        if after[name] != before[name]
    }


def test_a_control_has_random_weights_and_a_third_of_each_sample():
    """All else is that of the run, so all else is equal."""
    settings = Settings.model_validate(
        {"model": {"checkpoint": "a", "adapter": "b"}, "report": {"title": "c"}, "shards": 9, "layer_groups": 4}
    )
    assert changes(settings, untrained("mine", settings)) == {
        "model": {"weights": "random", "adapter": ""},
        "prefixes": {"count": 1334},
        "keys": {"per_layer": 34, "removal_triggers": 2, "precision": False},
        "intervention": {"memories": 4, "examples": 2, "top_k_prefixes": 67},
        "translation": {"prefixes": 6667, "texts": 6, "reading_texts": 2},
        "report": {"title": Settings().report.title, "control": "none"},
        "shards": 3,
        "layer_groups": 2,
    }


def test_the_control_measures_the_behaviours_of_its_run():
    """The same prompts with the same test, so that its counts can be compared. What takes long is less, and there is no graph."""
    own = Behaviour(prompts="p.jsonl", candidates=12, graph_prompts=20, positions="all", flips=5000)
    settings = Settings.model_validate({"model": {"checkpoint": "a"}, "behaviours": {"one": own.model_dump()}})
    (control,) = untrained("mine", settings).behaviours.values()
    changed = {key: value for key, value in control.model_dump().items() if value != own.model_dump()[key]}
    assert changed == {
        "candidates": 5,
        "effect_prompts": 17,
        "random_sets": 4,
        "side_effect_prefixes": 17,
        "missed": 94,
        "bootstraps": 67,
        "graph_prompts": 0,
    }


def test_the_control_measures_the_concepts_of_its_run():
    """The same texts and regressions; labels are shuffled, and documents drawn again, less often."""
    own = Concept(rules="text", shuffles=600)
    settings = Settings.model_validate({"model": {"checkpoint": "a"}, "concepts": {"one": own.model_dump()}})
    (control,) = untrained("mine", settings).concepts.values()
    assert control == own.model_copy(update={"shuffles": 200, "draws": 67})


def test_small_samples_stay_as_they_are():
    own = {"model": {"checkpoint": "a"}, "prefixes": {"count": 40}, "keys": {"per_layer": 6, "removal_triggers": 1}}
    settings = Settings.model_validate({**own, "intervention": {"memories": 0, "examples": 1, "top_k_prefixes": 12}})
    found = changes(settings, untrained("mine", settings))
    assert (found["keys"], found["intervention"]) == ({"per_layer": 5, "precision": False}, {"top_k_prefixes": 10})
    assert "prefixes" not in found


@pytest.mark.parametrize(
    ("settings", "control"),
    [
        ({}, "mine-untrained"),
        ({"report": {"control": "none"}}, "none"),
        (RANDOM, "auto"),
        ({"model": {"max_memory": {"cpu": "1GB"}}}, "auto"),
    ],
)
def test_runs_that_have_a_control(settings, control):
    found = controls({"mine": settings})
    assert found == {"mine": control} | ({"mine-untrained": "none"} if control == "mine-untrained" else {})
    assert controls_of(found) == ({"mine-untrained": "mine"} if len(found) == 2 else {})


def test_the_control_of_a_model_that_is_trained_takes_its_config_from_the_checkpoint():
    assert resolve({"runs": {"mine": {}}})["mine-untrained"].model.checkpoint == "results/mine/checkpoint"


def test_steps_of_one_training_share_a_control_and_other_models_do_not():
    folder = "results/last/checkpoint"
    runs = {
        "first": {"model": {"checkpoint": f"{folder}/steps/0"}, "report": {"title": "Before"}},
        "last": {},
        "copy": {"model": {"checkpoint": folder}},
        "wide": {"model": {"checkpoint": folder}, "prefixes": {"count": 9000}},
        "other": {"model": {"checkpoint": "other/steps/0"}},
    }
    assert controls(runs) == {
        **dict.fromkeys(("first", "last", "copy"), "first-untrained"),
        "wide": "wide-untrained",
        "other": "other-untrained",
        **dict.fromkeys(("first-untrained", "wide-untrained", "other-untrained"), "none"),
    }


def test_a_control_can_be_named_be_it_a_run_or_the_control_of_one():
    runs = {"a": {"report": {"control": "c"}}, "b": {"report": {"control": "d-untrained"}}, "c": RANDOM, "d": {}}
    assert controls(runs) == {"a": "c", "b": "d-untrained", "c": "auto", "d": "d-untrained", "d-untrained": "none"}
    two = {"a": {"report": {"control": "b"}}, "b": {"report": {"control": "a"}}}
    assert controls(two) == {"a": "b", "b": "a"}


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (
            {"a": {"report": {"control": "a"}}},
            "runs.a: report.control is 'a': must be auto, none or the name of another",
        ),
        (
            {"a": {"report": {"control": "b"}}},
            "runs.a: report.control is 'b': must be auto, none or the name of another",
        ),
        ({"a": {"report": {"control": "../b"}}}, "report.control: ../b is not a valid run name, nor auto or none"),
        ({"a": {"report": {"control": ""}}}, "report.control: '' is not a valid run name, nor auto or none"),
        ({"a": {}, "a-untrained": RANDOM}, "runs.a-untrained: must have another name, because this is the name of the"),
    ],
)
def test_wrong_names_are_refused(runs, message):
    with refused(message):
        resolve({"runs": runs})


def test_a_comparison_can_be_with_a_control():
    comparison = {"training": {"runs": ["a-untrained", "a"]}}
    assert list(resolve({"runs": {"a": {}}, "comparisons": comparison})) == ["a", "a-untrained"]
    with refused("'b-untrained' is not a run of this file"):
        resolve({"runs": {"a": {}}, "comparisons": {"training": {"runs": ["b-untrained", "a"]}}})


def test_a_branch_of_the_registry_brings_its_settings_and_what_a_control_has_of_them():
    """No other file names its section: a branch that is put into the registry has one, and a control a third of its samples."""
    script = """
from dataclasses import replace
from ffkv.branches.registry import BRANCHES
BRANCHES["lengths"] = replace(BRANCHES["roles"], name="lengths", samples={"tokens": 3}, of_control={"ignored": 0.5})
from ffkv.branches.settings import Settings
from ffkv.workflow.runs import resolve
runs = resolve({"lengths": {"tokens": 90}, "runs": {"mine": {}}})
print([(name, its.lengths.tokens, its.lengths.ignored) for name, its in runs.items()])
"""
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert said.strip() == "[('mine', 90, 0.01), ('mine-untrained', 30, 0.5)]"
