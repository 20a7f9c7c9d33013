"""What a user is told who lacks the package, and the place of its code in what repeats rules."""

import subprocess
import sys

import pytest
import yaml
from support import OFFLINE, ROOT, random_checkpoint, without_package

from ffkv.base.dependencies import code_files
from ffkv.branches.settings import Settings
from ffkv.workflow.inputs import code_beside
from ffkv.workflow.jobs import STEPS
from tests.ffkv_gguf.gguf_files import tiny_llama, write_gguf

INSTALL = "is in the package ffkv-gguf. In a clone of ffkv: pip install ./packages/ffkv-gguf"
NAMED = f"What reads the file that model.gguf names {INSTALL}"
HIDDEN = without_package("ffkv-gguf", "ffkv_gguf", "gguf")
WITHOUT = f"""{HIDDEN}
from click.testing import CliRunner
import ffkv
from ffkv.cli import ffkv as command
from ffkv.model.checkpoint.load import load_checkpoint, load_form
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.plan.facts import inspect_run
from ffkv.workflow.rules import Runs

def ask(function, *given):
    try:
        print(function(*given))
    except ffkv.UserError as error:
        print(error)

folder, plain = sys.argv[1:]
model = ffkv.settings.Model(checkpoint=folder, gguf="a.gguf")
control = model.model_copy(update={{"weights": "random"}})
for asked in (model, control):
    for function in (load_checkpoint, load_form, ffkv.prove):
        ask(function, asked)
ask(lambda: load_tokenizer(folder, gguf="a.gguf"))
ask(lambda: inspect_run(ffkv.settings.Settings(model=model), {{}}, None))
for named in (model, ffkv.settings.Model(checkpoint=folder)):
    ask(lambda: list(Runs({{"runs": {{"mine": {{}}}}, "model": named.model_dump()}}).settings))
print(CliRunner().invoke(command, ["inspect", folder, "--gguf", "a.gguf"]).exception)
print(CliRunner().invoke(command, ["unpack", "--checkpoint", folder, "--output", "x"]).output.splitlines()[-1])
print("Unpack a GGUF file" in CliRunner().invoke(command, ["--help"]).output)
print(type(ffkv.prove(ffkv.settings.Model(checkpoint=plain)).model).__name__)
"""


def test_without_the_package_every_way_to_a_file_names_it_and_other_models_are_read(tmp_path):
    write_gguf(tmp_path / "a.gguf", *tiny_llama())
    random_checkpoint(tmp_path / "gpt2", "gpt2")
    command = [sys.executable, "-c", WITHOUT, str(tmp_path), str(tmp_path / "gpt2")]
    done = subprocess.run(command, capture_output=True, text=True, env=OFFLINE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *[NAMED] * 9,
        "['mine', 'mine-untrained']",
        NAMED,
        f"Error: `ffkv unpack` {INSTALL}",
        "False",
        "GPT2LMHeadModel",
    ]


SNAKEMAKE = f"""{HIDDEN}
from snakemake.cli import main
main(sys.argv[1:])
"""


def dry_run(settings: dict, folder) -> subprocess.CompletedProcess:
    """A dry run of Snakemake without the package."""
    (folder / "mine.yaml").write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-c", SNAKEMAKE, "-n", "--cores", "1", "--snakefile", ROOT / "Snakefile"]
    command += ["--configfile", "mine.yaml", "--workflow-profile", "none"]
    return subprocess.run(command, capture_output=True, text=True, env=OFFLINE, cwd=folder)


@pytest.mark.workflow
def test_without_the_package_the_workflow_refuses_a_run_of_a_file_and_plans_others(tmp_path):
    (tmp_path / "text.txt").write_text("A text.\n")
    model, corpus = {"checkpoint": "theirs/model"}, {"dataset": "files", "train": "text.txt"}
    settings = {"model": model, "corpus": corpus, "runs": {"mine": {}}}
    planned = dry_run(settings, tmp_path)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    refused = dry_run({**settings, "model": {**model, "gguf": "a.gguf"}}, tmp_path)
    said = refused.stdout + refused.stderr
    assert refused.returncode == 1 and said.count(NAMED) == 1 and "Traceback" not in said


def test_its_code_and_its_tables_count_in_the_runs_that_read_a_file_and_in_no_others():
    """Whoever installs the package, or another version of it, repeats no step of a run of another model."""
    read = [{"checkpoint": "theirs/model"}, {"checkpoint": "theirs/model", "gguf": "a.gguf"}]
    found = [code_beside("checkpoint", Settings(model=each)) for each in read]
    assert found[0] == "" and len(found[1]) == 16
    used = {
        rule: {path.name for path in code_files(step.function, step.also) if "ffkv_gguf" in path.parts}
        for rule, step in STEPS.items()
    }
    assert {rule for rule in used if used[rule]} == {"unpack"}
    # How a tokenizer splits texts is data: an edit of it makes other tokens.
    assert {"unpack.py", "gguf_file.py", "gguf.toml"} <= used["unpack"]
    behind_the_door = {path.name for path in code_files("ffkv_gguf.reader:READER")}
    assert {"gguf_file.py", "gguf.toml", "weights.py"} <= behind_the_door
