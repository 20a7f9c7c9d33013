"""Names out of settings files: none leaves the results folder or reaches a shell unquoted."""

import json
import re
from pathlib import Path

import pytest
import yaml
from support import random_checkpoint, random_sentences, refused, snakemake

from ffkv.corpus.corpus_file import read_corpus
from ffkv.workflow.runs import resolve

NASTY = """it's "a" $(touch pwned) `touch pwned`; touch pwned & {run} {{x}} * ~ \\ -rf é"""
FIELD = """-te\nxt 'q' "d" $(touch pwned) `touch pwned`; {run} \\ *"""


RUN_NAMES = [
        "a; rm -rf x", "../x", "a/b", "/etc", "-rf", "--help", "$(touch pwned)", "`touch pwned`", "a\nb", "a\tb", "a b",
        "a" * 1000, "é", "ａ", "\u202ea", ".", "..", "...", ".snakemake", "~", "a*", "a?", "{run}", "a'b", 'a"b', "a\\b",
        "a|b", "a&b", "a>b", "#a", "\0", "a\0b", "", " ", "a; rm -rf x", ".hidden", "-x", "a\n", "x" * 65, 3, None,
    ]  # fmt: skip


def test_run_names_that_could_leave_the_folder_or_reach_a_shell_are_refused(subtests):
    for name in RUN_NAMES:
        with subtests.test(name=name):
            with refused("is not a valid run name") as told:
                resolve({"runs": {name: {}}})
            shown = name if isinstance(name, str) and name and name.isprintable() else repr(name)
            _, line = str(told.value).splitlines()
            assert line.startswith(f"  runs: {shown} is not a valid run name. ")
            assert line.endswith("Write it in quotes") == (not isinstance(name, str))


@pytest.mark.parametrize("section, key", [("model", "checkpoint"), ("corpus", "text_field"), ("report", "title")])
def test_texts_that_no_command_line_can_hold_are_refused(section, key):
    with refused(rf"{section}\.{key} is 'a\\x00b': must be text without NUL"):
        resolve({section: {key: "a\0b"}, "runs": {"a": {}}})
    with refused(r"corpus\.train is \['a\\x00b'\]: must be text without NUL"):
        resolve({"corpus": {"dataset": "files", "train": ["a\0b"]}, "runs": {"a": {}}})


def tree(folder: Path) -> set[str]:
    """Every path below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.workflow
def test_nasty_paths_and_texts_go_through_the_shell_unharmed(tmp_path):
    """The first steps of a run whose every text would do harm if a shell or Snakemake took it for more than text."""
    directory = tmp_path / 'the run\'s "folder"'
    texts = directory / NASTY
    texts.mkdir(parents=True)
    checkpoint = random_checkpoint(texts / "a checkpoint", "gpt2")
    written = {split: random_sentences(seed, 30) for seed, split in enumerate(("train", "validation"))}
    for split, lines in written.items():
        (texts / f"-{split} {{run}}.jsonl").write_text("".join(json.dumps({FIELD: line}) + "\n" for line in lines))
    settings = {
        "model": {"checkpoint": str(checkpoint.relative_to(directory)), "revision": NASTY, "second_matrix": r"mlp.c_proj$|'\"`$(x){1,2}"},
        "corpus": {
            "dataset": "files",
            "train": [f"{NASTY.replace('*', '[*]')}/-train*.jsonl"],
            "validation": f"{texts}/-validation {{run}}.jsonl",
            "text_field": FIELD,
            "config": NASTY,
            "revision": FIELD,
            "splitter": "line",
        },
        "report": {"title": FIELD, "control": "none"},
        "runs": {"safe": {}},
    }  # fmt: skip
    (directory / "it's {mine}.yaml").write_text(yaml.safe_dump(settings))
    before = tree(tmp_path)
    done = snakemake(directory, directory / "it's {mine}.yaml", "--until", "corpus", "write_settings")
    assert done.returncode == 0, done.stderr[-6000:]
    for split, lines in written.items():
        made = read_corpus(directory / f"results/safe/corpus/{split}.h5")
        assert set(made.texts) == set(lines)
        assert json.loads(made.attributes["settings"])["text_field"] == FIELD
    assert json.loads((directory / "results/safe/settings.json").read_text())["report"]["title"] == FIELD
    new = {re.sub(re.escape(directory.name) + "/", "", path) for path in tree(tmp_path) - before}
    assert {path.split("/")[0] for path in new} <= {"results", "reports", ".snakemake"}
    assert not [path for path in tree(tmp_path) if "pwned" in Path(path).name and NASTY not in path]
