"""Local files that a run reads: what of them counts, and which of them are refused."""

import os
import shutil
import subprocess

import pytest
import yaml
from support import obeying_rights, random_checkpoint, random_sentences, snakemake
from workflow.dry_run import jobs_to_do

from ffkv.workflow import inputs

pytestmark = pytest.mark.workflow
TARGET = "results/n/corpus/train.h5"
OLD = (1e9, 1e9)  # the time that `cp -p`, `tar` and `rsync -t` may bring along


def write_config(folder, **corpus) -> None:
    """Settings that read every text in texts/."""
    files = {"dataset": "files", "train": ["texts/*.txt"], "splitter": "line", **corpus}
    config = {"model": {"checkpoint": "checkpoint"}, "corpus": files, "runs": {"n": {}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder in which the train split is made."""
    folder = tmp_path_factory.mktemp("made")
    random_checkpoint(folder / "checkpoint", "gpt2")
    (folder / "texts").mkdir()
    for number in range(2):
        (folder / f"texts/{number}.txt").write_text("\n".join(random_sentences(number, 40)))
    write_config(folder)
    done = snakemake(folder, folder / "config.yaml", TARGET)
    assert done.returncode == 0, done.stderr
    return folder


def rewrite_older(path):
    path.write_bytes(path.read_bytes().replace(b"w1 ", b"w2 "))
    os.utime(path, OLD)


def change_weight(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, OLD)


def change_times(path):
    os.utime(path, OLD)
    other = path.with_name("1.txt")
    other.write_bytes(other.read_bytes())


CORPUS, ALL = {"corpus": 1}, {"corpus": 1, "model": 1}
CHANGES = {
    "a text that is older and other": ("texts/0.txt", rewrite_older, CORPUS),
    "weights that are older and other": ("checkpoint/model.safetensors", change_weight, ALL),
    "texts that are only older, and copied in place": ("texts/0.txt", change_times, {}),
    "a new text": ("texts/2.txt", lambda path: path.write_text("w1 w2 w3\n"), CORPUS),
    "a text less": ("texts/1.txt", lambda path: path.unlink(), CORPUS),
    "a text under another name": ("texts/1.txt", lambda path: path.rename(path.with_name("3.txt")), CORPUS),
    "braces in the name": ("texts/{2}.txt", lambda path: path.write_text("w1 w2 w3\n"), CORPUS),
}


@pytest.mark.parametrize("case", CHANGES)
def test_the_content_of_files_counts_and_not_their_time(made, tmp_path, case):
    """A changed file may carry an older time. Exactly what depends on it is repeated."""
    name, change, reruns = CHANGES[case]
    folder = tmp_path / "copy"
    shutil.copytree(made, folder, symlinks=True)
    change(folder / name)
    jobs = {rule: count for rule, count in jobs_to_do(folder, folder / "config.yaml", TARGET).items() if rule != "all"}
    assert jobs == reruns


def test_a_run_can_stop_behind_the_corpus(made, tmp_path):
    """Its control then makes nothing."""
    folder = shutil.copytree(made, tmp_path / "copy")
    done = snakemake(folder, folder / "config.yaml", "--until", "corpus")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (folder / "results/n/corpus").glob("*.h5")} == {"train.h5", "validation.h5"}
    assert not (folder / "results/n-untrained/corpus").exists()


def test_a_plan_reads_no_file_to_the_end(made, tmp_path, monkeypatch):
    """It has to answer soon: what it does not know is taken for changed."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path / "copy"))
    known = inputs.contents(["texts/0.txt"])
    monkeypatch.setenv(inputs.PLANNING, "1")
    assert inputs.contents(["texts/0.txt"]) == known
    os.utime("texts/0.txt", OLD)
    assert inputs.contents(["texts/0.txt"]) == "changed"


def test_a_name_that_is_no_text_is_read_and_counts(made, tmp_path):
    """Snakemake itself cannot note such a name, and would end with a traceback."""
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    path = folder / "texts" / os.fsdecode(b"caf\xe9.txt")
    path.write_text("w1 w2\n")
    done = snakemake(folder, folder / "config.yaml", TARGET)
    assert done.returncode == 0, done.stderr
    assert jobs_to_do(folder, folder / "config.yaml", TARGET) == {}
    path.write_text("w1 w3\n")
    assert jobs_to_do(folder, folder / "config.yaml", TARGET) == CORPUS


def test_a_checkpoint_that_may_not_be_entered_is_named(made, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    (folder / "checkpoint").chmod(0)
    inspected = subprocess.run(
        obeying_rights("ffkv", "inspect", "--checkpoint", "checkpoint"), cwd=folder, capture_output=True, text=True
    )
    (folder / "checkpoint").chmod(0o700)
    assert inspected.returncode == 2
    assert "The checkpoint checkpoint cannot be read: Permission denied" in inspected.stderr


def test_a_run_waits_for_the_checkpoint_of_another_one(tmp_path):
    """Run b names the checkpoint that run a trains."""
    config = {"embedded": {"steps": 1}, "runs": {"a": {}, "b": {"model": {"checkpoint": "results/a/checkpoint"}}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert jobs_to_do(tmp_path, tmp_path / "config.yaml", "results/b/model") == {"train": 1, "model": 1}
