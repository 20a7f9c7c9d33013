"""What a job needs of a GPU, by hand, and where the blocks of a model lie."""

import pytest
import torch
from torch import nn

from ffkv.base.settings import Settings
from ffkv.plan.devices import CONTEXT, plan_devices, warn_of_slow_devices
from ffkv.plan.shape import Shape

SHAPE = Shape("Hand", (8, 8, 8, 8), 4, 10, 440, 256, 80, "float32")


def form() -> nn.Module:
    """Four blocks of 400 bytes each, and an embedding of 160 bytes."""
    with torch.device("meta"):
        model = nn.Module()
        model.embed = nn.Embedding(10, 4)
        model.layers = nn.ModuleList([nn.Linear(10, 10, bias=False) for _ in range(4)])
        return model


def plan(*gpus, **model):
    settings = Settings(model={"checkpoint": "somewhere", **model}, triggers={"per_key": 5}, batches={"tokens": 64})
    return plan_devices(form(), settings, SHAPE, gpus)


def test_weights_batches_and_triggers_are_counted():
    """Without a known GPU the need alone is told; 2 signs x 5 triggers x 32 memories x 8 bytes."""
    found = plan()
    assert found.weights == 4 * 440
    assert found.working == CONTEXT + 4 * 64 * (8 * 8 + 12 * 4) + 2 * 5 * 32 * 8
    assert found.blocks == {}
    assert warn_of_slow_devices(found, "mine") == []
    assert "1.76 kB of weights" in str(found)


@pytest.mark.parametrize(
    ("gpus", "blocks"),
    [
        # Four fifths of a GPU are for weights. All weights are 1,760 bytes.
        ([1760 / 0.8], {"GPU 0": 4}),
        # 1,200 bytes: the embedding, room for one block from elsewhere, and one block.
        ([1500], {"GPU 0": 1, "the CPU": 3}),
        ([1500, 1500], {"GPU 0": 2, "GPU 1": 2}),
    ],
)
def test_blocks_lie_where_they_fit(gpus, blocks):
    found = plan(*gpus)
    assert found.blocks == blocks
    assert bool(warn_of_slow_devices(found, "mine")) == ("the CPU" in blocks)


def test_the_setting_comes_before_the_machine():
    assert plan(1e12, max_memory={"0": "1200", "cpu": "800"}).blocks == {"GPU 0": 1, "the CPU": 2, "the disk": 1}
    (warning,) = warn_of_slow_devices(plan(max_memory={"0": "1200", "cpu": "800"}), "mine")
    assert "2 of its blocks are on the CPU and 1 of its blocks are on the disk" in warning


def test_a_model_on_the_cpu_needs_no_gpu():
    assert plan(1e12, device="cpu").blocks == {}
