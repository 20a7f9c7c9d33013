"""Costs of a tiny shape, by hand."""

import math

import pytest
from plan_parts import SHAPE, TRAIN, VALIDATION

from ffkv.plan.costs import Run, costs
from ffkv.plan.disk import model_bytes
from ffkv.plan.passes import DATASETS_MEMORY
from ffkv.plan.shape import Shape
from ffkv.settings import Settings


def by_rule(shape=SHAPE, **settings):
    settings = Settings(**{"model": {"checkpoint": "somewhere"}, "prefixes": {"count": 50}, **settings})
    return {cost.rule: cost for cost in costs(Run(settings, shape, TRAIN, VALIDATION))}


def test_operations_of_a_pass():
    """A token meets 256 entries, two operations each; attention has 4 d a layer and token before it, of 12 on average half."""
    assert by_rule()["triggers"].operations == 1000 * (2 * 256 + 4 * 6 * 4 * 2)
    assert by_rule()["triggers"].work["coefficients"] == 1000 * 24
    assert by_rule(activations={"batch_tokens": 300})["triggers"].work["calls"] == 2 * 4


def test_operations_of_reading_out():
    """24 values, also for composition, 50 prefixes in 2 layers, and for refinement r, y, o and once the final state, through 40 entries."""
    found = by_rule()
    assert found["measure_values"].operations == 2 * 40 * 24
    assert found["measure_composition"].operations == 2 * 40 * (24 + 100)
    assert found["measure_refinement"].operations == 2 * 40 * (3 * 100 + 50)
    assert found["measure_refinement"].work["read"] == 10 * (3 * 100 + 50)


def test_every_job_of_a_group_reads_its_input_files_whole():
    """For their checksums."""
    found, model = by_rule(layer_groups=3, shards=1), model_bytes(SHAPE)
    memories = found["model"].written - model
    triggers, prefixes = (found[rule].written for rule in ("merge_triggers", "merge_prefixes"))
    validation = found["corpus (validation)"].written
    bytes_read = {
        "measure_values": 3 * (memories + model + triggers),
        "measure_composition": 3 * (prefixes + memories + model + validation),
        "measure_refinement": 3 * (prefixes + model),
    }
    assert {rule: found[rule].work["bytes"] for rule in bytes_read} == pytest.approx(bytes_read)


def test_operations_of_removal():
    """16 keys with 5 triggers and 3 rows each, of prefixes of (120 - 10) / 18 tokens and BOS, one token less in two rows, through 3 / 4 of the model."""
    cost = by_rule(keys={"removal_triggers": 5})["key_removal"]
    length = 110 / 18 - 2 / 3
    assert cost.tokens == pytest.approx(16 * 5 * 3 * (length + 1) * 3 / 4)
    assert cost.operations == pytest.approx(cost.tokens * (512 + 4 * length / 2 * 4 * 2))


def test_low_precision_has_a_step_of_its_own():
    """16 keys with 20 triggers, whole, with BOS, through 3 / 4 of the model."""
    low = by_rule(model={"checkpoint": "somewhere", "dtype": "bfloat16"}, triggers={"per_key": 20})
    assert "key_precision" not in by_rule()
    cost = low["key_precision"]
    assert cost.tokens == pytest.approx(16 * 20 * (110 / 18 + 1) * 3 / 4)


def test_bytes_of_prefixes_and_triggers():
    found = by_rule(shards=3)
    states, coefficients = 4 * 4 * 4 * 2 * 50, 4 * 24 * 50
    beside = 50 * (4 * 2 + 12)
    assert found["merge_prefixes"].written == pytest.approx(states + coefficients + beside, abs=15_000)
    triggers = 24 * (50 * 17 + 4 + 8 + 4 + 8 + 13 * 8)
    assert found["merge_triggers"].written == pytest.approx(triggers, abs=15_000)
    assert found["triggers"].written == pytest.approx(3 * triggers, abs=45_000)


def test_what_stands_beside_a_shard_until_it_is_written():
    """The blocks of a shard of prefixes, and the saved state of one of triggers: 8 bytes a trigger, 164 a memory."""
    found = by_rule(shards=2)
    assert found["prefixes"].beside == found["prefixes"].written / 2
    assert found["triggers"].beside == 24 * (50 * 8 + 164)
    assert {rule for rule, cost in found.items() if cost.beside} == {"triggers", "prefixes"}


def test_only_a_hub_data_set_takes_the_library_that_reads_it():
    sources = ({}, {"dataset": "files", "train": "text.txt"}, {"dataset": "some/corpus"})
    embedded, files, hub = (by_rule(corpus=source)["corpus (train)"].memory for source in sources)
    assert embedded == files == hub - DATASETS_MEMORY


def test_negative_triggers_double_what_is_kept():
    signed = Shape(**{**vars(SHAPE), "signed": True})
    one, two = by_rule()["merge_triggers"].written, by_rule(signed)["merge_triggers"].written
    assert two - one == pytest.approx(24 * (50 * 17 + 16), abs=8000)
    assert by_rule(signed, triggers={"negative": False})["merge_triggers"].written == one


def test_prefixes_are_no_more_than_there_are():
    assert by_rule(prefixes={"count": 10**6})["measure_composition"].operations == 2 * 40 * (24 + 270 * 2)


@pytest.mark.parametrize("shards", [1, 4])
def test_shards_share_the_work(shards):
    found = by_rule(shards=shards, layer_groups=2)
    assert found["triggers"].jobs == found["prefixes"].jobs == shards
    assert found["triggers"].operations == by_rule()["triggers"].operations
    assert found["measure_values"].jobs == 2


def test_merging_more_shards_takes_no_more_memory():
    few, many = (by_rule(shards=shards)["merge_triggers"].memory for shards in (2, 20))
    assert many == few


def test_larger_is_dearer():
    """Twice the tokens, layers, width, memories or vocabulary: never less of anything."""
    before = by_rule()
    for change in (
        {"memories": (8, 16, 8, 16)},
        {"memories": (16, 32)},
        {"width": 8},
        {"vocabulary": 20, "head": 80},
        {"body": 512, "parameters": 800},
    ):
        after = by_rule(Shape(**{**vars(SHAPE), **change}))
        for rule, cost in before.items():
            assert after[rule].written >= cost.written
            assert after[rule].memory >= cost.memory
            assert after[rule].operations >= cost.operations


def test_only_the_embedded_model_is_trained():
    assert "train" not in by_rule()
    cost = by_rule(model={"checkpoint": "embedded"}, embedded={"steps": 10, "batch_tokens": 64})["train"]
    assert cost.tokens == 640
    assert cost.operations == pytest.approx(3 * 640 * (2 * 256 + 4 * 5 * 4 * 2 + 2 * 40))
    assert math.isfinite(cost.memory)
