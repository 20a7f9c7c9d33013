"""A checkpoint inside an installed Python package."""

import os
import shutil
import sys

import pytest
import yaml
from forks import with_forks
from model.gguf_files import tiny_llama, write_gguf
from support import OFFLINE, snakemake
from workflow.dry_run import planned

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus, Model, Settings, section
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.step import describe, prove
from ffkv.plan.facts import inspect_run
from ffkv.workflow.inputs import checkpoint_files, hub_repositories
from ffkv.workflow.jobs import Job

ADDRESS, GGUF, TARGET = "package:tiny_model", "tiny.gguf", "results/packed/model"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The folder of an importable package with a GGUF file."""
    folder = tmp_path / "installed" / "tiny_model"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('this package ran')")
    write_gguf(folder / GGUF, *tiny_llama())
    monkeypatch.setattr(sys, "path", [str(folder.parent), *sys.path])
    return folder


def test_the_address_of_a_package_is_kept_and_its_folder_is_read(package, tmp_path):
    (tmp_path / "model").mkdir()
    anatomy = prove(section(Model, checkpoint=ADDRESS, gguf=GGUF)).write(tmp_path / "model")
    assert (anatomy.checkpoint, anatomy.gguf, anatomy.identity["model"]) == (ADDRESS, GGUF, ADDRESS)
    assert describe(anatomy).startswith(f"{ADDRESS} (LlamaForCausalLM")
    assert anatomy.model_hash == prove(section(Model, checkpoint=str(package), gguf=GGUF)).anatomy.model_hash
    assert load(tmp_path / "model", "cpu").anatomy == anatomy


def test_an_adapter_in_a_package_is_found(package):
    located = Model(checkpoint="gpt2", adapter=f"{ADDRESS}/adapter").located()
    assert (located.checkpoint, located.adapter) == ("gpt2", str(package / "adapter"))


def test_the_plan_and_the_workflow_find_the_files_of_a_package(package, tmp_path):
    (tmp_path / "a.txt").write_text("The cat sat on the mat.\nThe hat.\n" * 9)
    corpus = Corpus(dataset="files", train=[str(tmp_path / "a.txt")], deduplicate=False)
    settings = Settings(model=section(Model, checkpoint=ADDRESS, gguf=GGUF), corpus=corpus)
    jobs = {"unpack": [Job("unpack", "packed", 1, "", [], ["results/packed/checkpoint"], done=False)]}
    facts = inspect_run(settings, jobs, None)
    assert facts.shape.memories == (96, 96) and facts.unpacking > 0
    assert facts.packed == (package / GGUF).stat().st_size and inspect_run(settings, {}, None).packed == 0
    assert checkpoint_files(settings.model_dump()) == [str(package / GGUF)], "no other file of the package counts"
    assert hub_repositories(settings.model_dump()) == {}


def test_a_missing_package_is_told_before_anything_is_read():
    settings = Settings(model=Model(checkpoint="package:no_such_model"))
    for read in (
        lambda: prove(settings.model),
        lambda: inspect_run(settings, {}, None),
        lambda: hub_repositories(settings.model_dump()),
    ):
        with pytest.raises(UserError, match="Python finds no package 'no_such_model'"):
            read()


@pytest.mark.workflow
def test_a_run_reads_a_package(package, tmp_path):
    """The file is unpacked once. A change of it repeats that and the model; a lack of the copy repeats nothing."""
    (tmp_path / "a.txt").write_text("The cat sat on the mat.\nThe hat.\n" * 9)
    config = {"model": {"checkpoint": ADDRESS, "gguf": GGUF}, "runs": {"packed": {}}}
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
    assert (anatomy.checkpoint, anatomy.gguf, anatomy.unpacked) == (ADDRESS, GGUF, "results/packed/checkpoint")
    assert anatomy.model_hash == prove(section(Model, checkpoint=str(package), gguf=GGUF)).anatomy.model_hash
    assert (copy / "model.safetensors").is_file()
    assert "Nothing to be done" in start("-n")
    shutil.rmtree(copy)
    assert "Nothing to be done" in start("-n")
    write_gguf(package / GGUF, *tiny_llama(1))
    assert planned(start("-n")) == {"unpack": 1, "model": 1}
