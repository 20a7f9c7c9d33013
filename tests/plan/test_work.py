"""What each rule has to do; and the operations that a plan counts, beside those that a run does (`ffkv plan --teraflops` divides them)."""

import re
from pathlib import Path

import numpy as np
import pytest
from plan.hand import SHAPE, TEXT, facts
from torch.utils.flop_counter import FlopCounterMode

import ffkv
from ffkv.branches.concepts.branch import TOGETHER
from ffkv.branches.given import Given
from ffkv.branches.refinement.measure import measure_refinement
from ffkv.branches.settings import Settings
from ffkv.branches.values.project import project_values
from ffkv.model.shape import measure_shape
from ffkv.plan.facts import RunFacts, load_model_form, read_size
from ffkv.plan.step import device_bytes, measure_amounts, measure_memory
from ffkv.workflow import SNAKEFILE


def amounts(**settings):
    return measure_amounts(facts(**settings))


def test_only_rules_of_the_workflow_have_work():
    rules = Path(SNAKEFILE).parent.glob("rules/*.smk")
    assert amounts().keys() <= {name for path in rules for name in re.findall(r"^rule (\w+):", path.read_text(), re.M)}


@pytest.mark.parametrize("prefixes", [1, 10, 40, 90])
def test_a_sentence_is_read_as_far_as_its_longest_sampled_prefix(prefixes):
    """Against drawn samples of 50 sentences with 40 prefixes each. Their mean is known to about 1 %.

    The formula takes lengths for real numbers and counts for independent of each other: 6 %.
    """
    sentences, length = 50, 40
    stream, read = np.random.default_rng(0), []
    for _ in range(200):
        drawn = np.sort(stream.choice(sentences * length, prefixes, replace=False))
        longest = np.zeros(sentences)
        np.maximum.at(longest, drawn // length, drawn % length + 1)
        read.append(longest.sum())
    split = TEXT["train"]._replace(tokens=sentences * length, sentences=sentences)
    assert split.tokens_read(prefixes) == pytest.approx(np.mean(read), rel=0.06)


def test_bytes_of_triggers():
    """Per trigger six numbers and a sign; per memory counts and 13 bins. Negative triggers add as many, but no bins."""
    positive = 24 * (50 * 25 + 4 + 8 + 8 + 4 + 12 * 8)
    stored, signed = amounts()["triggers"][1], SHAPE._replace(signed=True)
    assert stored == pytest.approx(positive, rel=0.02)
    both = amounts(shape=signed)["triggers"][1]
    assert both == pytest.approx(positive + 24 * (50 * 25 + 4 + 8 + 4), rel=0.02)
    assert amounts(shape=signed, triggers={"negative": False})["triggers"][1] == stored
    # Until they are merged; a single shard becomes the merged file.
    assert amounts(shards=3)["triggers"][1] == 4 * stored


def test_experts_that_a_token_is_not_sent_to_leave_nothing_of_a_sample():
    dense, few = amounts()["sampled_prefixes"][1], amounts(shape=SHAPE._replace(active=0.25))["sampled_prefixes"][1]
    assert (dense, few) == (50 * (24 + 16), 50 * (6 + 16))


def test_more_prefixes_than_there_are_cannot_be_sampled():
    assert amounts(prefixes={"count": 10**6})["composition_measure"][1] == 270 * 2


def test_layers_count_as_often_as_passes_go_through_them():
    """A key's pass ends at its own layer; after a change the later layers run again."""
    flat, deep = SHAPE._replace(memories=(8,)), SHAPE._replace(memories=(8,) * 10, body=10 * SHAPE.body)
    one, ten = amounts(shape=flat), amounts(shape=deep)
    assert ten["triggers"][0] == 10 * one["triggers"][0]
    assert ten["keys_removal"][0] == pytest.approx(55 * one["keys_removal"][0])
    assert ten["intervention_measure"][0] > 50 * one["intervention_measure"][0]


def test_what_a_job_holds():
    """A block of prefixes is in memory, unless it is too large; weights are on the GPU beside triggers and batches."""
    run, large = facts(), facts(shape=SHAPE._replace(memories=(2**23, 2**23)))
    passing = measure_memory(run, "keys_removal", "model")
    assert measure_memory(run, "sampled_prefixes", "model") == passing + 50 * (24 + 16) * 4
    assert measure_memory(large, "sampled_prefixes", "model") == measure_memory(large, "keys_removal", "model")
    assert measure_memory(run, "keys_removal", "model", on_gpu=True) == run.trigger_bytes
    assert measure_memory(run, "model", "model") == pytest.approx(passing - run.trigger_bytes)  # the proof has none
    labelled = facts(concepts={name: {"labels": "x.csv", "texts": texts} for name, texts in {"a": 40, "b": 20}.items()})
    assert measure_memory(labelled, "concepts_measure", "model") == passing + TOGETHER * 40 * (24 + 16) * 4
    assert measure_memory(run, "report", "tables") > measure_memory(run, "composition_summarize", "tables") == 0


def test_what_is_on_a_gpu():
    """Weights; the driver, batches of 1,024 tokens, a third of the triggers; in float32 the head and one of two blocks."""
    found = device_bytes(run := facts(shape=SHAPE._replace(itemsize=2)))
    assert found["weights"] == 800
    batch, exact = 4 * 1024 * (8 * 16 + 12 * 4), 4 * (40 + (400 - 80) / 2)
    assert found["working"] == pytest.approx(5e8 + batch + run.trigger_bytes / 3 + exact, abs=0.1)


def test_trigger_examples_are_read_again_once_per_layer():
    """Of 15 + 25 keys with 3 trigger examples, 60 per layer on 100 sentences, to a layer of 128 or 256 weights."""
    read = 1.5 * 1000 * (1 - (1 - np.exp(-0.6)) / 0.6)
    found = amounts(shape=SHAPE._replace(memories=(15, 90)), triggers={"per_key": 3})["keys_precision"][0]
    assert found == pytest.approx(2 * read * (128 + 256) / 2)


def test_the_head_reads_what_figures_7_to_11_show():
    """Of 50 prefixes, y in 2 layers; or r, y and o, and the model's prediction. The head has 40 weights."""
    assert amounts()["composition_measure"][0] == 50 * 2 * 40
    assert amounts()["refinement_measure"][0] == 50 * (3 * 2 + 1) * 40


WORK = ffkv.Work("cpu")
# The largest relative error. The head is counted exactly. Of passes, attention, padding and BOS are not counted, which weigh
# more in a model of 32 dimensions than in a large one. Rules that read prefixes of trigger examples are not here: how long
# these are differs by a factor of two from text to text.
RULES = {"values_project": 0, "refinement_measure": 0, "triggers": 0.5}


def work(rule: str, folder: Path, its: Settings) -> None:
    """Does the work of a rule."""
    model, triggers, train = folder / "model", folder / "triggers.h5", folder / "corpus/train.h5"
    if rule == "values_project":
        project_values(Given(WORK, model=model, values=folder / "values.h5", triggers=triggers), its.values)
    elif rule == "refinement_measure":
        measure_refinement(Given(WORK, model=model, prefixes=folder / "sampled_prefixes.h5"))
    else:
        ffkv.find_triggers(model, train, its.triggers, work=WORK)


@pytest.mark.parametrize("rule", RULES)
def test_operations(tiny, monkeypatch, rule):
    monkeypatch.chdir(tiny)
    folder = tiny / "results/tiny"
    settings = ffkv.open(folder).settings
    text = {split: read_size(folder / f"corpus/{split}.h5") for split in ("train", "validation")}
    shape = measure_shape(load_model_form(settings))
    planned = 2 * measure_amounts(RunFacts(settings, shape, text, {}))[rule][0]
    with FlopCounterMode(display=False) as counter:
        work(rule, folder, settings)
    assert planned == pytest.approx(counter.get_total_flops(), rel=RULES[rule])
