"""The speed of matrix products, which bounds the trial of a plan."""

import pytest
from plan.hand import known

from ffkv.base.settings import Settings
from ffkv.plan import trial
from ffkv.plan.shape import Shape
from ffkv.plan.speed import measure_speed
from ffkv.plan.text import Split

LARGE = Shape("Large", (14336,) * 32, 4096, 128_256, 8_030_261_248, 6_979_584_000, 1_050_677_248, "bfloat16")
SPLIT = Split(1e6, 4e4, 1e3, 5e6, 10.0, "made up")
SPLITS = {"train": SPLIT, "validation": SPLIT}
SETTINGS = Settings.model_validate({"model": {"checkpoint": "large"}})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_type_has_a_speed(dtype):
    assert measure_speed(dtype) > 1e6  # operations per second: far less than any processor that runs torch


@pytest.mark.parametrize("speed, weights", [(1e12, 2e7), (1e9, 1e6), (1e8, 1e5)])
def test_a_slow_type_gets_a_small_trial(monkeypatch, tmp_path, speed, weights):
    """A second, or 2e10 operations if they take less, for 1,000 tokens."""
    asked = []
    monkeypatch.setattr(trial, "measure_speed", lambda dtype: speed)
    monkeypatch.setattr(trial, "_write_small_model", lambda *arguments: asked.append(arguments))
    trial._small_settings(known(SETTINGS, LARGE, SPLITS, ["a b c"] * 2000), tmp_path, True)
    _, layer, operations, *_ = asked[0]
    assert (layer, operations) == (pytest.approx(weights), pytest.approx(min(2e10, speed)))
