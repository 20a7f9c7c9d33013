"""Where the checkpoint of a finished run is looked for."""

import shutil
from pathlib import Path

import pytest
from support import prove_into, random_checkpoint

from ffkv.base.errors import UserError
from ffkv.model.checkpoint.load import load


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
