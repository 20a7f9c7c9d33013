"""Proven models that are loaded again: where the checkpoint is looked for, its type, its hash, and weights drawn at random."""

import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from support import edit_json, prove_into, random_checkpoint
from transformers import AutoModelForCausalLM

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import Commit, resolve_model
from ffkv.base.settings import Model, section
from ffkv.model.checkpoint import readers, weights
from ffkv.model.checkpoint.load import decide_type, load, load_checkpoint
from ffkv.model.step import describe, prove
from tests.ffkv_gguf.gguf_files import tiny_llama, write_gguf


def test_the_checkpoint_of_a_run_is_found_from_any_working_directory_which_comes_first(tmp_path, monkeypatch):
    """The run names it by a relative path, and lies in another folder than the working directory."""
    home, relative = tmp_path / "home", Path("results/demo/checkpoint")
    random_checkpoint(home / relative, "gpt2")
    monkeypatch.chdir(home)
    prove_into(home / "results/demo", relative)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load(home / "results/demo/model", "cpu").anatomy.checkpoint == str(relative)  # as in the settings
    random_checkpoint(relative, "gpt2", seed=1)
    with pytest.raises(UserError, match="have changed"):
        load(home / "results/demo/model", "cpu")
    for folder in (relative, home / relative):
        shutil.rmtree(folder)
    with pytest.raises(UserError, match=rf"no checkpoint folder {relative}\b"):
        load(home / "results/demo/model", "cpu")


@pytest.mark.parametrize(
    ("stored", "device", "instructions", "expected"),
    [
        ("bfloat16", "cpu", {"avx512_bf16": True}, "auto"),
        ("bfloat16", "cpu", {"bf16": True}, "auto"),  # of ARM
        ("bfloat16", "cpu", {"avx512_bf16": False}, "float32"),
        ("float16", "cpu", {"avx512_bf16": True}, "float32"),
        ("float32", "cpu", {}, "auto"),
        ("float16", "cuda", {}, "auto"),
    ],
)
def test_auto_is_float32_on_a_cpu_that_does_not_multiply_the_stored_type(
    checkpoints, tmp_path, monkeypatch, stored, device, instructions, expected
):
    shutil.copytree(checkpoints("gpt2"), folder := tmp_path / "stored")
    edit_json(folder / "config.json", dtype=stored)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: instructions)
    wanted = Model(checkpoint=str(folder), dtype="auto", device=device)
    assert decide_type(wanted, resolve_model(wanted)).dtype == expected
    other = wanted.model_copy(update={"dtype": "bfloat16"})
    assert decide_type(other, resolve_model(other)) == other


def test_a_run_notes_the_type_that_auto_became(checkpoints, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(checkpoints("gpt2"), dtype=torch.float16)
    shutil.copytree(checkpoints("gpt2"), folder := tmp_path / "half")
    model.save_pretrained(folder)
    assert prove(Model(checkpoint=str(folder), dtype="auto", device="cpu")).anatomy.dtype == "float32"


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """The hashes that are computed, in a cache of its own."""
    computed, original = [], weights.weights_hash
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "weights_hash", lambda model: computed.append(original(model)) or computed[-1])
    return computed


def test_the_second_job_computes_nothing_and_a_change_is_noticed(tmp_path, monkeypatch, counted):
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    commit = Commit("model", str(checkpoint), "main")
    assert weights.state_of(Model(checkpoint=str(checkpoint)), commit) == ""  # it may change again within one tick
    monkeypatch.setattr(weights, "SETTLED", 0.05)
    time.sleep(0.1)
    folder = prove_into(tmp_path / "stage", checkpoint)
    assert len(counted) == 1
    for _ in range(2):
        load(folder, "cpu")
    assert len(counted) == 1
    file = checkpoint / "model.safetensors"
    before, stat = bytearray(file.read_bytes()), file.stat()
    before[-3] ^= 1
    file.write_bytes(before)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size, time and inode
    time.sleep(0.1)
    with pytest.raises(UserError, match="have changed"):
        load(folder, "cpu")
    assert len(counted) == 2


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path, monkeypatch, counted):
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setattr(weights, "SETTLED", 0.05)
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    time.sleep(0.1)
    load(prove_into(tmp_path / "stage", checkpoint), "cpu")
    assert len(counted) == 2


def weights_of(model) -> torch.Tensor:
    return torch.cat([parameter.detach().float().ravel() for parameter in model.parameters()])


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "gpt-oss", "gemma2", "fairseq", "gguf"])
def test_random_weights_are_proven_and_loaded_again(tmp_path, kind, write_checkpoint):
    folder, gguf = tmp_path / "checkpoint", "tiny.gguf" if kind == "gguf" else ""
    if gguf:
        folder.mkdir()
        write_gguf(folder / gguf, *tiny_llama(seed=0))
    else:
        write_checkpoint(folder) if kind == "fairseq" else random_checkpoint(folder, kind)
    settings = Model(checkpoint=str(folder), gguf=gguf, device="cpu", weights="random", weights_seed=3)
    state = torch.random.get_rng_state()
    proven = prove(settings)
    assert torch.equal(torch.random.get_rng_state(), state), "other random numbers of the process are as before"
    drawn = weights_of(proven.model)
    (tmp_path / "run/model").mkdir(parents=True)
    proven.write(tmp_path / "run/model", tmp_path / "run/values.h5")
    again = load(tmp_path / "run/model", "cpu")  # refuses weights with another hash
    assert torch.equal(weights_of(again.model), drawn)
    assert (again.anatomy.weights, again.anatomy.weights_seed, again.anatomy.gguf) == ("random", 3, gguf)
    assert "random weights, seed 3" in describe(again.anatomy)
    trained = load_checkpoint(settings.model_copy(update={"weights": "checkpoint"}))
    assert weights_of(trained).shape == weights_of(again.model).shape
    assert not torch.equal(weights_of(trained), weights_of(again.model))


def test_the_seed_decides(tmp_path):
    checkpoint = str(random_checkpoint(tmp_path / "checkpoint", "gpt2"))
    drawn = (Model(checkpoint=checkpoint, weights="random", weights_seed=seed) for seed in (1, 1, 2))
    first, same, other = (prove(settings).anatomy.model_hash for settings in drawn)
    trained = prove(Model(checkpoint=checkpoint)).anatomy.model_hash
    assert first == same and len({first, other, trained}) == 3


def test_the_scale_of_the_weights_is_that_of_the_config(tmp_path):
    """GPT-2 initialises its matrices with a standard deviation of `initializer_range`."""
    checkpoint = str(random_checkpoint(tmp_path / "checkpoint", "gpt2"))
    model = load_checkpoint(Model(checkpoint=checkpoint, weights="random"))
    assert model.transformer.h[0].mlp.c_fc.weight.std().item() == pytest.approx(model.config.initializer_range, rel=0.1)
    assert model.transformer.h[0].ln_1.weight.eq(1).all()
    assert load_checkpoint(Model(checkpoint=checkpoint, weights="random", dtype="bfloat16")).dtype == torch.bfloat16


def test_an_adapter_does_not_go_with_random_weights():
    told = r"model.weights is 'random' and model.adapter is 'a': random weights take nothing"
    with pytest.raises(UserError, match=told):
        section(Model, weights="random", adapter="a")


def test_a_reader_that_fails_leaves_a_checkpoint_to_the_others(monkeypatch, capsys, tmp_path):
    def fail(folder):
        raise KeyError("config")

    broken, good = (readers.Reader("toy", reads, fail, fail) for reads in (fail, lambda folder: True))
    monkeypatch.setattr(readers, "readers", lambda: {"broken": broken, "good": good})
    assert readers.reader_of(tmp_path).reads is good.reads
    assert f"The reader 'broken' fails on {tmp_path}, and is left out (KeyError('config'))." in capsys.readouterr().err
