"""GGUF files that are unpacked once: the same model as the file's, whole or not there, and refused if it is another's."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from model.gguf_files import MEMORIES, tiny_gemma, tiny_llama, tiny_qwen, write_gguf, write_qwen
from peft import LoraConfig, get_peft_model

from ffkv.activations.step import find_triggers
from ffkv.base.errors import UserError
from ffkv.base.files.checksums import sum_path
from ffkv.base.settings import Corpus, Model, section
from ffkv.base.steps import Work
from ffkv.corpus.step import encode_corpus
from ffkv.model.checkpoint.fingerprint import weights_hash
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.read import load_checkpoint
from ffkv.model.checkpoint.unpack import in_place, unpack
from ffkv.model.step import prove


def settings(folder: Path, **more) -> Model:
    return section(Model, checkpoint=str(folder), gguf="a.gguf", **more)


def write(folder: Path, kind: str) -> None:
    """A file of an architecture; that of Llama holds what is harmless and not read."""
    model, tokenizer = tiny_llama()
    if kind == "qwen":
        write_qwen(folder / "a.gguf", tiny_qwen(tokenizer), tokenizer)
    elif kind == "gemma":
        write_gguf(folder / "a.gguf", tiny_gemma(tokenizer), tokenizer, architecture="gemma3")
    else:
        ones = {"rope_freqs.weight": np.ones(8, np.float32)}
        write_gguf(folder / "a.gguf", model, tokenizer, "Q8_0", tensors=ones)


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
    other = section(Model, checkpoint=str(tmp_path), gguf="b.gguf", dtype="float16")
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
from ffkv.model.checkpoint.unpack import in_place, unpack
PreTrainedTokenizerFast.save_pretrained = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
unpack(Model(checkpoint={str(tmp_path)!r}, gguf="a.gguf"), {str(tmp_path / "copy")!r})
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    (left,) = tmp_path.glob(".copy*")
    assert left.suffix == ".partial" and (left / "model.safetensors").is_file() and not (tmp_path / "copy").exists()
    unpack(settings(tmp_path), tmp_path / "copy")
    assert [*tmp_path.glob(".copy*")] == [sum_path(tmp_path / "copy")]
