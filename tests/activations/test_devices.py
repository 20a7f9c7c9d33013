"""The contest for triggers on a GPU, as far as a machine without one can tell.

With torch's fake tensors, operations on several devices and operations that wait for a device fail. Without CUDA, torch cannot
index a fake tensor of "cuda"; "lazy" stands for a GPU, because every torch knows it. The numbers of the code for GPUs
are compared on the CPU.
"""

from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from ffkv.activations import top_t
from ffkv.activations.batches import Batch
from ffkv.activations.triggers import start
from ffkv.base.settings import Triggers
from ffkv.model.anatomy import Layer, SecondMatrix

KEYS, SENTENCES, TOKENS = 6, 5, 4


def fake_batch(device):
    return Batch(
        ids=torch.zeros(SENTENCES, TOKENS + 1, dtype=torch.long, device=device),
        competing=slice(1, None),
        left_out=torch.arange(3, 5, device=device),
        multiplicity=torch.ones(SENTENCES, TOKENS + 1, device=device),
        histogram_times=torch.ones(SENTENCES, TOKENS + 1, dtype=torch.int32, device=device),
        in_histogram=torch.arange(3, device=device),
        in_histogram_again=torch.arange(2, device=device),
        times_again=torch.ones(2, dtype=torch.int64, device=device),
        place=torch.arange(SENTENCES, device=device),
        tokens=1,
        prefixes=1,
    )


@pytest.mark.parametrize("one_prefix", [True, False])
def test_a_layer_on_another_gpu_mixes_no_devices_and_waits_for_none(one_prefix):
    layers = [Layer(index, f"h.{index}", [SecondMatrix("w", ["k"], "gated", KEYS, gate="k")], True) for index in (0, 1)]
    settings = Triggers(per_key=2, one_prefix_per_sentence=one_prefix)
    with FakeTensorMode():
        devices = [torch.device("lazy:0"), torch.device("lazy:1")]
        state, first = start(layers, settings, devices), fake_batch("lazy:0")
        for layer, device in zip(layers, devices, strict=True):
            batch = first.on(device)
            m = torch.empty(SENTENCES, TOKENS + 1, KEYS, device=device)
            state.add(batch, layer, m, m > 0)
            for tops in (state.highest, state.lowest):
                tops[layer.index].settle()
                assert tops[layer.index].best.device == device and tops[layer.index].best.shape == (KEYS, 2)
        assert first.on(devices[0]) is first


def test_on_a_gpu_all_of_a_batch_enters():
    with FakeTensorMode(), mock.patch.object(top_t.TopT, "enter_whole") as whole:
        m, places = torch.empty(SENTENCES, TOKENS, KEYS, device="lazy"), torch.arange(SENTENCES, device="lazy")
        entered = (m, m.amax(1), m > 0, places)
        top_t.TopT(KEYS, 2, 1, True, m.device).enter(*entered)
        assert all(given is own for given, own in zip(whole.call_args.args, entered, strict=True))


def test_fake_tensors_tell_mixed_devices_and_waiting():
    """Else the test above could not fail."""
    with FakeTensorMode():
        here, there = torch.ones(3, device="lazy:0"), torch.ones(3, device="lazy:1")
        with pytest.raises(RuntimeError, match="device"):
            here + there
        for wait in (lambda: here.sum().item(), lambda: here.nonzero(), lambda: bool(here.any())):
            with pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
                wait()


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("one_prefix", [True, False])
def test_the_code_for_gpus_finds_the_same_triggers(monkeypatch, one_prefix, sign, many):
    """Coefficients of few values, so that many are equal, and others of about the same size, which are tied.

    Or so few that are not 0 that some keys have too few triggers; those of a layer without gates.
    """
    generator = torch.Generator().manual_seed(0)
    usual = top_t.TopT(KEYS, 3, sign, one_prefix, "cpu")
    other = top_t.TopT(KEYS, 3, sign, one_prefix, "cpu")
    monkeypatch.setattr(top_t, "DENSE_BYTES", 8 * TOKENS * KEYS * 2)  # two sentences at a time
    for number in range(8 if many else 1):
        m = torch.randint(-3, 4, (SENTENCES, TOKENS, KEYS), generator=generator) / 4
        m[m.abs() < (0 if many else 0.75)] = 0
        m *= 1 + 3e-5 * torch.rand(m.shape, generator=generator)
        gate = torch.rand(m.shape, generator=generator) > 0.5 if many else None
        places = torch.arange(SENTENCES) * 10 + 100 * number
        peaks = m.amax(1) if sign > 0 else m.amin(1)
        usual.enter(m, peaks, gate, places)
        other.enter_whole(m, peaks, gate, places)
    usual.settle()
    assert torch.equal(usual.best, other.best)
    assert bool((usual.best != top_t.NOTHING).all()) == many
