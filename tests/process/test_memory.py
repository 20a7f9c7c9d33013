"""What is said when the memory does not suffice."""

import pytest
import torch

from ffkv.base.errors import UserError
from ffkv.base.process import runtime
from ffkv.base.process.defect import explain
from ffkv.base.system.memory import free_memory, is_out_of_memory, out_of_memory
from ffkv.model.checkpoint.load import load
from ffkv.model.tap.hooks import forward

SETTINGS = ("model.dtype", "batches.tokens", "model.max_memory", "model.gpus", "model.device")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate"
        ),
        MemoryError(),
    ],
)
def test_a_pass_without_memory_is_a_message(proven, monkeypatch, error):
    model = load(proven("gpt2"), "cpu").model

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(model.transformer.h[1].mlp, "forward", fail)
    with pytest.raises(UserError, match="The memory does not suffice") as caught:
        forward(model, torch.ones(1, 3, dtype=torch.long))
    assert all(name in str(caught.value) for name in SETTINGS)
    assert "The weights alone take 0.0 GiB" in str(caught.value) and "GiB of the machine's memory is free" in str(
        caught.value
    )
    assert explain(error)[1] == 2 and "model.max_memory" in explain(error)[0]


def test_another_error_stays_what_it_is(proven, monkeypatch):
    model = load(proven("gpt2"), "cpu").model
    with pytest.raises(IndexError):
        forward(model, torch.full((1, 3), 1000))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_what_each_gpu_has_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (2**30, 24 * 2**30))
    said = str(out_of_memory(torch.OutOfMemoryError("CUDA out of memory."), 16 * 2**30))
    assert "The weights alone take 16.0 GiB. Now GPU 0 has 24.0 GiB, 1.0 GiB free." in said


def test_two_processes_have_different_gpus(tmp_path, monkeypatch):
    """A lock is of an open file: a second list of own GPUs stands for a second process."""
    monkeypatch.setattr(runtime.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    owned = []
    for expected in ("cuda:0", "cuda:1", "cuda"):  # the third finds none and shares
        monkeypatch.setattr(runtime, "_own_gpu", [])
        assert runtime.own_gpu(2) == expected
        owned.append(runtime._own_gpu)
    assert runtime.own_gpu(1) == "cuda"
    for _, file in (lock for locks in owned for lock in locks):
        file.close()


def test_gpus_are_counted_without_torch(monkeypatch):
    for visible, count in {"0,1": 2, "GPU-8f": 1, "": 0, "-1": 0}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert runtime.count_gpus() == count


def test_the_limit_of_a_control_group_counts(tmp_path):
    for name, text in {"max": "6000000", "current": "5000000", "stat": "anon 1\ninactive_file 500000"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory(tmp_path) == 1_500_000
    (tmp_path / "memory.max").write_text("max")
    assert free_memory(tmp_path) > 1_500_000
