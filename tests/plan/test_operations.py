"""The operations that a plan counts, beside those that a run does: `ffkv plan --teraflops` divides them."""

from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

import ffkv
from ffkv.base.settings import Settings
from ffkv.model.shape import measure_shape
from ffkv.plan.facts import RunFacts, load_model_form, read_size
from ffkv.plan.work import measure_amounts

WORK = ffkv.Work("cpu")
# The largest relative error. The head is counted exactly. Of passes, attention, padding and BOS are not counted, which weigh
# more in a model of 32 dimensions than in a large one. Rules that read prefixes of trigger examples are not here: how long
# these are differs by a factor of two from text to text.
RULES = {"values_project": 0, "refinement_measure": 0, "triggers": 0.5}


def work(rule: str, folder: Path, its: Settings) -> None:
    """Does the work of a rule."""
    model, triggers, train = folder / "model", folder / "triggers.h5", folder / "corpus/train.h5"
    if rule == "values_project":
        ffkv.project_values(model, folder / "values.h5", triggers, its.values, WORK)
    elif rule == "refinement_measure":
        ffkv.measure_refinement(model, folder / "sampled_prefixes.h5", WORK)
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
