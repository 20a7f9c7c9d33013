"""What a user is told who lacks the package, and the place of its code in what repeats rules."""

import subprocess
import sys

import pytest
import yaml
from support import OFFLINE, ROOT, without_package

import ffkv
from ffkv.base.dependencies import code_files
from ffkv.base.public import public_names
from ffkv.branches.settings import Settings
from ffkv.workflow.inputs import code_beside
from ffkv.workflow.jobs import STEPS

INSTALL = "is in the package ffkv-embedded. In a clone of ffkv: pip install ./packages/ffkv-embedded"
NAMED = f"What model.checkpoint or corpus.dataset calls `embedded` {INSTALL}"
HIDDEN = without_package("ffkv-embedded", "ffkv_embedded")
WITHOUT = f"""{HIDDEN}
from types import SimpleNamespace
from click.testing import CliRunner
import ffkv
from ffkv.cli import ffkv as command
from ffkv.plan import facts
from ffkv.workflow.rules import Runs

def ask(function, *given):
    try:
        print(function(*given))
    except ffkv.UserError as error:
        print(error)

other = {{"checkpoint": "theirs/model"}}
files = {{"dataset": "files", "train": ["*.txt"]}}
for settings in [{{}}, {{"model": other}}, {{"corpus": files}}, {{"model": other, "corpus": files}}]:
    ask(lambda: list(Runs({{"runs": {{"mine": {{}}}}, **settings}}).settings))
ask(lambda: ffkv.train)
print("train" in ffkv.__all__, "train" in dir(ffkv), "open" in ffkv.__all__)
ask(lambda: [*facts.read_documents(ffkv.settings.Corpus(), "train")])
print(ffkv.settings.Corpus().on_hub)
facts.load_tokenizer = facts.context_of = facts.chat_renderer = lambda *given: 9
settings = ffkv.settings.Settings(model=other, corpus={{"dataset": "theirs/text"}})
ask(facts._measure_text, settings, None, None, {{}})
print(CliRunner().invoke(command, ["train", "--output", "checkpoint"]).output.splitlines()[-1])
print("Train the embedded model" in CliRunner().invoke(command, ["--help"]).output)
"""


def test_without_the_package_every_way_to_the_model_or_the_corpus_names_it(tmp_path):
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, env=OFFLINE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *[NAMED] * 3,
        "['mine', 'mine-untrained']",
        f"ffkv.train {INSTALL}",
        "False False True",
        NAMED,
        "False",
        f"The text by which the size of theirs/text is estimated {INSTALL}",
        f"Error: `ffkv train` {INSTALL}",
        "False",
    ]


SNAKEMAKE = f"""{HIDDEN}
from snakemake.cli import main
main(sys.argv[1:])
"""


@pytest.mark.workflow
@pytest.mark.parametrize("name", ["tiny", "embedded", "training", "tuned"])
def test_without_the_package_the_workflow_refuses_with_one_sentence(tmp_path, name):
    command = [sys.executable, "-c", SNAKEMAKE, "-n", "--cores", "1", "--snakefile", ROOT / "Snakefile"]
    command += ["--configfile", ROOT / f"configs/{name}.yaml", "--workflow-profile", "none", "--directory", tmp_path]
    refused = subprocess.run(command, capture_output=True, text=True, env=OFFLINE, cwd=ROOT)
    said = refused.stdout + refused.stderr
    assert refused.returncode == 1 and said.count(NAMED) == 1 and "Traceback" not in said


@pytest.mark.workflow
def test_without_the_package_the_workflow_plans_what_does_not_need_it(tmp_path):
    (tmp_path / "text.txt").write_text("A text.\n")
    settings = {"model": {"checkpoint": "theirs/model"}, "corpus": {"dataset": "files", "train": "text.txt"}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**settings, "runs": {"mine": {}}}))
    command = [sys.executable, "-c", SNAKEMAKE, "-n", "--cores", "1", "--snakefile", ROOT / "Snakefile"]
    command += ["--configfile", "mine.yaml", "--workflow-profile", "none"]
    planned = subprocess.run(command, capture_output=True, text=True, env=OFFLINE, cwd=tmp_path)
    assert planned.returncode == 0, planned.stdout + planned.stderr


def test_its_code_counts_in_the_trainings_and_in_the_runs_that_read_its_text():
    """Whoever installs the package, or another version of it, repeats no step of a run of another text and model."""
    read = ["embedded", "theirs/text"]
    found = [code_beside("corpus", Settings(corpus={"dataset": each})) for each in read]
    assert len(found[0]) == 16 and found[1] == ""
    used = {
        rule: {path.name for path in code_files(step.function, step.also) if "ffkv_embedded" in path.parts}
        for rule, step in STEPS.items()
    }
    assert {rule for rule in used if used[rule]} == {"train"}
    assert {"training.py", "python_docs.py"} <= used["train"]


def test_a_public_name_of_a_missing_package_is_told_when_it_is_used(tmp_path):
    (tmp_path / "their.pyi").write_text(
        "from no_such_package.a import b as b\nfrom ffkv.base.steps import Part as Part\n"
    )
    get, names, public = public_names("their", str(tmp_path / "their.py"))
    assert names() == public == ["Part"] and get("Part") is ffkv.Part
    with pytest.raises(ffkv.UserError, match=r"^their\.b is in the package no-such-package\."):
        get("b")


READ = f"""{HIDDEN}
from click.testing import CliRunner
import ffkv
from ffkv.cli import ffkv as command

run = ffkv.open("results/tiny")
print(len(run.table("training")), type(ffkv.figure(run, "training")).__name__)
print(CliRunner().invoke(command, ["check", "results/tiny"]).output.strip())
"""


@pytest.mark.workflow
def test_without_the_package_a_finished_run_of_the_model_is_read(tiny):
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, env=OFFLINE, cwd=tiny)
    assert done.returncode == 0, done.stderr
    rows, about = done.stdout.splitlines()
    assert rows == "20 Figure" and about.endswith("all that the run has, and all are whole.")
