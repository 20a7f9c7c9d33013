""" "a.gguf" files that are unpacked once, and those in an installed Python package: the model of the file, whole or not there."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from forks import with_forks
from peft import LoraConfig, get_peft_model
from support import OFFLINE, snakemake
from workflow.dry_run import planned

from ffkv.activations.step import find_triggers
from ffkv.base.errors import UserError
from ffkv.base.files.stored import sum_path
from ffkv.base.steps import Work
from ffkv.branches.settings import Corpus, Model, Settings, section
from ffkv.corpus.step import encode_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import in_place, load, load_checkpoint
from ffkv.model.checkpoint.weights import weights_hash
from ffkv.model.step import describe, prove
from ffkv.plan.facts import inspect_run
from ffkv.workflow.inputs import checkpoint_files, hub_repositories
from ffkv.workflow.jobs import Job
from ffkv_gguf.unpack import unpack
from tests.ffkv_gguf.gguf_files import MEMORIES, tiny_gemma, tiny_llama, tiny_qwen, write_gguf, write_qwen


def settings(folder: Path | str, **more) -> Model:
    return section(Model, checkpoint=str(folder), gguf="a.gguf", **more)


def write(folder: Path, kind: str) -> None:
    """A file of an architecture; that of Llama holds what is harmless and not read."""
    model, tokenizer = tiny_llama()
    if kind == "qwen":
        write_qwen(folder / "a.gguf", tiny_qwen(tokenizer), tokenizer)
    elif kind == "gemma":
        write_gguf(folder / "a.gguf", tiny_gemma(tokenizer), tokenizer, architecture="gemma3")
    else:
        harmless = {"rope_freqs.weight": np.ones(8, np.float32)}
        write_gguf(folder / "a.gguf", model, tokenizer, "Q8_0", tensors=harmless)


@pytest.mark.parametrize(
    ("kind", "dtype"), [("llama", "float32"), ("llama", "bfloat16"), ("gemma", "auto"), ("qwen", "float32")]
)
def test_weights_and_config_are_those_of_the_file(tmp_path, kind, dtype):
    write(tmp_path, kind)
    given = settings(tmp_path, dtype=dtype)
    unpack(given, tmp_path / "copy")
    config = json.loads((tmp_path / "copy/config.json").read_text())
    assert "quantization_config" not in config and dtype in ("auto", config["dtype"])
    copy = load_checkpoint(*in_place(given, tmp_path / "copy"))
    assert weights_hash(copy) == weights_hash(load_checkpoint(given))


def test_an_unpacked_file_is_proven_as_the_file_itself(tmp_path):
    """The tokenizer, the mean losses and what is said about the file are the same, too."""
    write(tmp_path, "llama")
    given, copy = settings(tmp_path), tmp_path / "copy"
    (remark,) = unpack(given, copy)
    packed, unpacked = prove(given).anatomy, prove(given, unpacked=copy).anatomy
    assert unpacked == dataclasses.replace(packed, unpacked=str(copy))
    assert "rope_freqs.weight" in remark and remark in unpacked.remarks


def test_later_jobs_read_the_copy_and_the_file_only_if_the_copy_is_gone(tmp_path, capsys):
    """Their triggers are those of the file. Another copy in its place is noticed."""
    write(tmp_path, "llama")
    given, copy = settings(tmp_path), tmp_path / "copy"
    unpack(given, copy)
    (tmp_path / "a.txt").write_text("The cat sat on the mat.\nA hat and a cat.\nThe naïve hat.\nThe mat.\n" * 3)
    corpus, found = Corpus(dataset="files", train=[str(tmp_path / "a.txt")], bos="always", deduplicate=False), []
    for folder, unpacked in ((tmp_path / "of_file", None), (tmp_path / "of_copy", copy)):
        folder.mkdir()
        prove(given, unpacked=unpacked).write(folder)
        encode_corpus(folder, "train", corpus, folder / "train.h5")
        if unpacked:
            (tmp_path / "a.gguf").rename(tmp_path / "b.gguf")
        found.append(find_triggers(folder, folder / "train.h5", work=Work("cpu")))
    for name in ("sentence", "position", "coefficient"):
        assert (getattr(found[0], name) == getattr(found[1], name)).all()
    assert "is gone" not in capsys.readouterr().err
    (tmp_path / "b.gguf").rename(tmp_path / "a.gguf")
    copy.rename(tmp_path / "moved")
    assert load(tmp_path / "of_copy", "cpu").anatomy.unpacked == str(copy)
    assert f"{copy} is gone: a.gguf is unpacked again." in capsys.readouterr().err
    write_gguf(tmp_path / "a.gguf", *tiny_llama(1))
    unpack(given, copy)
    with pytest.raises(UserError, match="have changed since"):
        load(tmp_path / "of_copy", "cpu")


def test_an_adapter_is_merged_into_the_copy(tmp_path):
    write(tmp_path, "llama")
    torch.manual_seed(0)
    adapted = get_peft_model(load_checkpoint(settings(tmp_path)), LoraConfig(r=2, target_modules=["up_proj"]))
    for name, parameter in adapted.named_parameters():
        parameter.data = torch.randn_like(parameter) if "lora_" in name else parameter.data
    adapted.save_pretrained(tmp_path / "adapter")
    given = settings(tmp_path, adapter=str(tmp_path / "adapter"))
    unpack(given, tmp_path / "copy")
    anatomy = prove(given, unpacked=tmp_path / "copy").anatomy
    assert (anatomy.model_hash, anatomy.adapter) == (prove(given).anatomy.model_hash, given.adapter)
    assert anatomy.model_hash != prove(settings(tmp_path)).anatomy.model_hash


def test_a_copy_of_another_file_or_type_is_refused(tmp_path):
    write(tmp_path, "llama")
    unpack(settings(tmp_path), tmp_path / "copy")
    shutil.copy(tmp_path / "a.gguf", tmp_path / "b.gguf")
    other = settings(tmp_path, dtype="float16").model_copy(update={"gguf": "b.gguf"})
    with pytest.raises(UserError, match=r"gguf is 'a\.gguf', not 'b\.gguf'; dtype is 'float32', not 'float16'"):
        prove(other, unpacked=tmp_path / "copy")
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"unpacked\.json does not exist"):
        prove(settings(tmp_path), unpacked=tmp_path / "none")


def test_what_is_refused_leaves_nothing(tmp_path):
    bias = {"blk.1.ffn_up.bias": np.ones(MEMORIES, np.float32)}
    write_gguf(tmp_path / "a.gguf", *tiny_llama(), tensors=bias)
    with pytest.raises(UserError, match=r"a\.gguf holds blk\.1\.ffn_up\.bias, for which"):
        unpack(settings(tmp_path), tmp_path / "copy")
    with pytest.raises(UserError, match=r"model\.gguf is empty"):
        unpack(Model(checkpoint=str(tmp_path)), tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_a_killed_unpacking_leaves_nothing_under_the_final_name(tmp_path):
    """It is killed when the weights are written and the tokenizer is not. The next one begins anew."""
    write(tmp_path, "llama")
    code = f"""
import os, signal
from transformers import PreTrainedTokenizerFast
from ffkv.base.settings import Model
from ffkv_gguf.unpack import unpack
PreTrainedTokenizerFast.save_pretrained = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
unpack(Model(checkpoint={str(tmp_path)!r}, gguf="a.gguf"), {str(tmp_path / "copy")!r})
"""
    assert subprocess.run(["python-code", "-c", code], env=with_forks(OFFLINE)).returncode == -signal.SIGKILL & 255
    (left,) = tmp_path.glob(".copy*")
    assert left.suffix == ".partial" and (left / "model.safetensors").is_file() and not (tmp_path / "copy").exists()
    unpack(settings(tmp_path), tmp_path / "copy")
    assert [*tmp_path.glob(".copy*")] == [sum_path(tmp_path / "copy")]


ADDRESS, TARGET = "package:tiny_model", "results/packed/model"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of an importable package with a "a.gguf" file."""
    folder = tmp_path / "installed" / "tiny_model"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('this package ran')")
    write_gguf(folder / "a.gguf", *tiny_llama())
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    return folder


def test_the_address_of_a_package_is_kept_and_its_folder_is_read(package, tmp_path):
    (tmp_path / "model").mkdir()
    anatomy = prove(settings(ADDRESS)).write(tmp_path / "model")
    assert (anatomy.checkpoint, anatomy.gguf, anatomy.identity["model"]) == (ADDRESS, "a.gguf", ADDRESS)
    assert describe(anatomy).startswith(f"{ADDRESS} (LlamaForCausalLM")
    assert anatomy.model_hash == prove(settings(package)).anatomy.model_hash
    assert load(tmp_path / "model", "cpu").anatomy == anatomy


def test_an_adapter_in_a_package_is_found(package):
    located = Model(checkpoint="gpt2", adapter=f"{ADDRESS}/adapter").located()
    assert (located.checkpoint, located.adapter) == ("gpt2", str(package / "adapter"))


def test_the_plan_and_the_workflow_find_the_files_of_a_package(package, tmp_path):
    (tmp_path / "a.txt").write_text("The cat sat on the mat.\nThe hat.\n" * 9)
    corpus = Corpus(
        dataset="files", train=[str(tmp_path / "a.txt")], validation=[str(tmp_path / "a.txt")], deduplicate=False
    )
    given = Settings(model=settings(ADDRESS), corpus=corpus)
    jobs = {"unpack": [Job("unpack", "packed", 1, "", [], ["results/packed/checkpoint"], done=False)]}
    facts = inspect_run(given, jobs, None)
    assert facts.shape.memories == (96, 96) and facts.unpacking > 0
    assert facts.packed == (package / "a.gguf").stat().st_size and inspect_run(given, {}, None).packed == 0
    assert checkpoint_files(given) == [str(package / "a.gguf")], "no other file of the package counts"
    assert hub_repositories(given) == {}


@pytest.mark.parametrize(
    "read",
    [
        lambda given: prove(given.model),
        lambda given: inspect_run(given, {}, None),
        lambda given: hub_repositories(given),
    ],
)
def test_a_missing_package_is_told_before_anything_is_read(read):
    with pytest.raises(UserError, match="Python finds no package 'no_such_model'"):
        read(Settings(model=Model(checkpoint="package:no_such_model")))


@pytest.mark.workflow
def test_a_run_reads_a_package(package, tmp_path):
    """The file is unpacked once. A change of it repeats that and the model; a lack of the copy repeats nothing."""
    (tmp_path / "a.txt").write_text("The cat sat on the mat.\nThe hat.\n" * 9)
    config = {"model": {"checkpoint": ADDRESS, "gguf": "a.gguf"}, "runs": {"packed": {}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    environment = {**with_forks(OFFLINE), "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{package.parent}"}

    def start(*arguments: str) -> str:
        done = snakemake(
            tmp_path, tmp_path / "config.yaml", "results/packed/model", *arguments, environment=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert planned(start()) == {"unpack": 1, "model": 1}
    anatomy, copy = read_anatomy(tmp_path / TARGET), tmp_path / "results/packed/checkpoint"
    assert (anatomy.checkpoint, anatomy.gguf, anatomy.unpacked) == (ADDRESS, "a.gguf", "results/packed/checkpoint")
    assert anatomy.model_hash == prove(settings(package)).anatomy.model_hash
    assert (copy / "model.safetensors").is_file()
    assert "Nothing to be done" in start("-n")
    shutil.rmtree(copy)
    assert "Nothing to be done" in start("-n")
    write_gguf(package / "a.gguf", *tiny_llama(1))
    assert planned(start("-n")) == {"unpack": 1, "model": 1}
