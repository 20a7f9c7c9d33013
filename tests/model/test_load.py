"""Where the checkpoint of a finished run is looked for, and the type that `auto` stands for."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from support import prove_into, random_checkpoint
from transformers import AutoModelForCausalLM

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import resolve_model
from ffkv.base.settings import Model
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.read import decide_type
from ffkv.model.step import prove


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with a checkpoint and a run that names it by a relative path; the working directory is another folder."""
    home = tmp_path / "home"
    random_checkpoint(home / "results/demo/checkpoint", "gpt2")
    monkeypatch.chdir(home)
    prove_into(home / "results/demo", Path("results/demo/checkpoint"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return home


def test_a_run_can_be_read_from_any_working_directory(home):
    loaded = load(home / "results/demo/model", "cpu")
    assert loaded.anatomy.checkpoint == "results/demo/checkpoint"  # as in the settings


def test_the_working_directory_comes_first_and_other_weights_are_refused(home):
    random_checkpoint(Path("results/demo/checkpoint"), "gpt2", seed=1)
    with pytest.raises(UserError, match="have changed"):
        load(home / "results/demo/model", "cpu")


def test_a_checkpoint_that_is_gone_is_named_as_in_the_settings(home):
    shutil.rmtree(home / "results/demo/checkpoint")
    with pytest.raises(UserError, match=r"no checkpoint folder results/demo/checkpoint\b"):
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
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": stored}))
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
