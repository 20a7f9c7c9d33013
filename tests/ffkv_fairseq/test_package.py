"""What a user is told who lacks the package, and the place of its code in what repeats rules."""

import subprocess
import sys

import pytest
from support import OFFLINE, random_checkpoint, without_package

from ffkv.base.dependencies import code_files
from ffkv.base.settings import EMBEDDED
from ffkv.branches.settings import Settings
from ffkv.workflow.inputs import code_beside
from ffkv.workflow.jobs import STEPS

WITHOUT = (
    without_package("ffkv-fairseq")
    + """
from pathlib import Path
from click.testing import CliRunner
from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.cli import ffkv
from ffkv.model.checkpoint.load import load_checkpoint, load_form
from ffkv.model.checkpoint.readers import known_class, reader_of
from ffkv.model.checkpoint.tokenizer import load_tokenizer
folder = sys.argv[1]
for function, asked in [
    (load_checkpoint, Model(checkpoint=folder)),
    (load_form, Model(checkpoint=folder)),
    (load_tokenizer, folder),
    (known_class, "FairseqForCausalLM"),
]:
    try:
        function(asked)
    except UserError as error:
        print(error)
print(CliRunner().invoke(ffkv, ["inspect", folder]).exception)
print(reader_of(sys.argv[2]), known_class("GPT2LMHeadModel"), "ffkv_fairseq" in sys.modules)
"""
)


@pytest.mark.parametrize("names", [("model.pt", "dict.txt"), ("model.pt",), ("dict.txt",)])
def test_without_the_package_a_checkpoint_of_fairseq_names_it(write_checkpoint, tmp_path, names):
    write_checkpoint(tmp_path / "fairseq")
    for path in (tmp_path / "fairseq").iterdir():
        if path.name not in names:
            path.unlink()
    random_checkpoint(tmp_path / "gpt2", "gpt2")
    (tmp_path / "gpt2/dict.txt").touch()  # of transformers all the same
    command = [sys.executable, "-c", WITHOUT, str(tmp_path / "fairseq"), str(tmp_path / "gpt2")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=OFFLINE)
    install = "is in the package ffkv-fairseq. In a clone of ffkv: pip install ./packages/ffkv-fairseq"
    folder, name = f"checkpoint {tmp_path / 'fairseq'}", "model FairseqForCausalLM"
    of_folder, of_class = (f"What reads the {each}, which is of fairseq, {install}" for each in (folder, name))
    assert done.stdout.splitlines() == [*[of_folder] * 3, of_class, of_folder, "None None False"]


def test_its_code_counts_in_the_runs_that_read_such_a_checkpoint_and_in_no_others(write_checkpoint, tmp_path):
    """Whoever installs the package, or another version of it, repeats no step of a run of another model."""
    write_checkpoint(tmp_path / "fairseq")
    random_checkpoint(tmp_path / "gpt2", "gpt2")
    read = [EMBEDDED, str(tmp_path / "gpt2"), str(tmp_path / "fairseq")]
    found = [code_beside("checkpoint", Settings(model={"checkpoint": each})) for each in read]
    assert found[:2] == ["", ""] and len(found[2]) == 16
    for step in STEPS.values():
        assert not [path for path in code_files(step.function, step.also) if "ffkv_fairseq" in path.parts]
