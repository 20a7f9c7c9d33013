"""The command line: options that are settings, settings as options, help, exit codes."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from forks import modules, with_forks
from hypothesis import given
from hypothesis import strategies as st
from support import OFFLINE, ROOT

from ffkv.base.errors import UserError
from ffkv.base.options import all_threads_option, command_line, part_options, seed_option, setting, threads_option
from ffkv.base.steps import Part
from ffkv.branches.settings import Corpus, Keys, Model, Settings, Triggers
from ffkv.cli import COMMANDS, RENAMED, ffkv


@click.command()
@setting(Corpus, "dataset", "train", "validation", "validation_share", "splitter", "deduplicate")
@setting(Keys, "minimum_prefixes")
@setting(Model, "device")
@seed_option
@part_options("layer_group")
def echo(**options) -> None:
    """Shows its options."""
    click.echo(json.dumps(options))


def call(*arguments: str) -> dict:
    result = CliRunner().invoke(echo, arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_options_have_the_settings_defaults():
    assert call() == {
        "dataset": "embedded",
        "train": ["train"],
        "validation": [],
        "validation_share": 0.1,
        "splitter": "sentence",
        "deduplicate": True,
        "minimum_prefixes": 3,
        "device": "auto",
        "seed": 0,
        "layer_group": 0,
        "layer_groups": 1,
    }


def test_options_take_lists_flags_choices_and_numbers():
    words = "--train a --train b --no-deduplicate --splitter line --minimum-prefixes 7 --layer-group 2"
    changed = {"train": ["a", "b"], "deduplicate": False, "splitter": "line", "minimum_prefixes": 7, "layer_group": 2}
    assert call(*words.split()) == call() | changed


def test_settings_become_the_options_of_a_command():
    settings = Settings(triggers=Triggers(per_key=7, negative=False), model=Model(device="cuda:1"), seed=3).model_dump()
    assert command_line(settings, "triggers", "model/device", "seed") == (
        "--per-key 7 --one-prefix-per-sentence --shared-prefixes-compete once --no-include-empty-prefix --no-negative --device cuda:1 --seed 3"
    )
    assert command_line(settings) == ""


def test_an_unknown_setting_is_an_error_of_the_rule():
    for name in ("trigers", "triggers/per_kye"):
        with pytest.raises(KeyError):
            command_line(Settings().model_dump(), name)


@given(
    train=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1), min_size=1),
    share=st.floats(0, 1, exclude_min=True, exclude_max=True),
)
def test_a_command_gets_from_its_rule_what_the_settings_say(train, share):
    """Whatever the text is: blanks, quotes, `$(...)`, a dash in front."""
    settings = {
        "corpus": Corpus(train=train, validation=train[:1], validation_share=share, deduplicate=False).model_dump()
    }
    names = ["dataset", "train", "validation", "validation_share", "splitter", "deduplicate"]
    line = command_line(settings, *(f"corpus/{name}" for name in names))
    assert call(*shlex.split(line)) == call() | {name: settings["corpus"][name] for name in names}


IMPOSSIBLE = [
    (["--minimum-prefixes", "1"], "Invalid value for '--minimum-prefixes': 1: must be at least 2"),
    (["--minimum-prefixes", "many"], "Invalid value for '--minimum-prefixes': 'many' is not a valid integer"),
    (["--validation-share", "1"], "Invalid value for '--validation-share': 1.0: must be below 1"),
    (["--validation-share", "nan"], "Invalid value for '--validation-share': nan: must be below 1"),
    (["--splitter", "maybe"], "Invalid value for '--splitter': 'maybe' is not one of 'sentence', 'line', 'document'"),
    (["--dataset", ""], "Invalid value for '--dataset': '': must be text that is not empty"),
    (["--device", "tpu"], "Invalid value for '--device': 'tpu': must be 'auto', 'cpu', 'cuda' or 'cuda:<number>'"),
    (["--seed", "-1"], "Invalid value for '--seed': -1: must be at least 0"),
    (["--layer-groups", "0"], "Invalid value for '--layer-groups'"),
    (["--colour", "red"], "No such option"),
]


def test_impossible_values_are_refused_with_a_sentence(subtests):
    for arguments, sentence in IMPOSSIBLE:
        with subtests.test(arguments=arguments, sentence=sentence):
            result = CliRunner().invoke(echo, arguments)
            assert result.exit_code == 2
            assert sentence in " ".join(result.output.split())


def test_the_help_of_an_option_says_what_the_setting_means():
    text = " ".join(CliRunner().invoke(echo, ["--help"]).output.split())
    assert Keys.model_fields["minimum_prefixes"].description in text
    assert "[default: 3]" in text
    assert "--deduplicate / --no-deduplicate" in text


def test_the_number_of_threads_is_applied(monkeypatch):
    seen = []
    monkeypatch.setattr("ffkv.base.process.runtime.configure", seen.append)
    command = threads_option(click.Command("x", callback=lambda threads: None))
    assert CliRunner().invoke(command, ["--threads", "3"]).exit_code == 0
    assert CliRunner().invoke(command).exit_code == 0
    assert seen == [3, 1]


def test_a_command_that_a_person_waits_for_takes_all_cores(monkeypatch):
    seen = []
    monkeypatch.setattr("ffkv.base.process.runtime.configure", seen.append)
    monkeypatch.setattr("ffkv.base.process.runtime.allowed_cores", lambda: 16)
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    command = all_threads_option(click.Command("x", callback=lambda threads: None))
    for job in ("", "1"):  # a job of Snakemake says its threads in this variable
        monkeypatch.setenv("OMP_NUM_THREADS", job)
        assert CliRunner().invoke(command).exit_code == 0
    assert seen == [16, 1]
    for name in ("trace", "graph", "causes", "generate"):
        told = " ".join(CliRunner().invoke(ffkv, [name, "--help"]).output.split())
        assert "[default: (one per core; in a job, those of the job); x>=1]" in told, name


def test_parts_are_contiguous_even_and_complete(subtests):
    for total in [0, 1, 7, 12]:
        for parts in [1, 2, 5, 12, 30]:
            with subtests.test(total=total, parts=parts):
                ranges = [Part(index, parts).of(total) for index in range(parts)]
                assert [number for one in ranges for number in one] == list(range(total))
                assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@pytest.mark.parametrize("index, parts", [(3, 3), (-1, 3), (0, 0)])
def test_a_part_that_is_none_is_refused(index, parts):
    with pytest.raises(UserError, match=f"There is no part {index} of {parts}"):
        Part(index, parts).of(10)


def subcommands(command: click.Command, path: tuple[str, ...] = ()):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from subcommands(command.get_command(context, name), (*path, name))


def test_every_subcommand_has_help(subtests, monkeypatch):
    for path in subcommands(ffkv):
        with subtests.test(path=" ".join(path)):
            command = ffkv
            for name in path:
                command = command.get_command(click.Context(ffkv), name)
                # click keeps a command's help option from its first call, and other tests call some without their group
                monkeypatch.setattr(command, "_help_option", None)
            texts = [CliRunner().invoke(ffkv, [*path, flag]) for flag in ("-h", "--help")]
            assert [result.exit_code for result in texts] == [0, 0]
            assert texts[0].output == texts[1].output
            assert texts[0].output.startswith("Usage: ")


def test_the_list_of_subcommands_says_one_line_about_each():
    text = " ".join(CliRunner().invoke(ffkv, ["-h"]).output.split())
    assert all(f"{name} {line}" in text for name, (_, line) in COMMANDS.items())


@pytest.mark.parametrize(
    ("word", "meant"), [("trce", "'trace'"), ("explor", "'explore'"), ("merge_triggers", "'merge-triggers'")]
)
def test_a_misspelt_command_is_told_the_one_that_is_meant(word, meant):
    refused = CliRunner().invoke(ffkv, [word])
    assert refused.exit_code == 2
    assert f"No such command '{word}'." in refused.output and meant in refused.output


def test_no_two_commands_are_a_letter_apart_and_an_old_word_is_told_the_new_one():
    """`behaviour` and `behaviours` were."""
    assert not [name for name in COMMANDS if f"{name}s" in COMMANDS]
    for old, new in RENAMED.items():
        refused = CliRunner().invoke(ffkv, [old, "results/demo", "prompts.jsonl"])
        assert refused.exit_code == 2
        assert f"`ffkv {old}` is now `ffkv {new}`" in refused.output
        assert old not in COMMANDS and new in COMMANDS


@pytest.mark.parametrize("words", [[], ["export"], ["annotate", "sheets"], ["annotate", "machine"]])
def test_the_help_is_quick_because_it_imports_nothing_large(words):
    script = f"import sys\nfrom ffkv.cli import main\nsys.argv = ['ffkv', *{words}, '-h']\ntry: main()\nfinally: print(sorted({{'torch', 'pandas', 'numpy', 'transformers', 'spacy', 'h5py'}} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"


def test_a_start_of_snakemake_imports_nothing_large():
    rules = [ROOT / "workflow/Snakefile", *(ROOT / "workflow").rglob("*.smk")]
    names = {name for path in rules for name in re.findall(r"^from (ffkv[\w.]*) import", path.read_text(), re.M)}
    assert "ffkv.workflow.rules" in names
    large = {"torch", "pandas", "transformers", "spacy", "h5py", "scipy"}
    script = f"import importlib, sys\nfor name in {sorted(names)}: importlib.import_module(name)\nprint(*{large} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "" and done.returncode == 0, done.stdout + done.stderr


IMPORTS = """
import gc, importlib, os, sys
from ffkv.workflow.jobs import import_libraries
import_libraries()
for module in sys.argv[1:]:
    importlib.import_module(module)
for name in [name for name in sys.modules if name.partition(".")[0] == "ffkv"]:
    del sys.modules[name]
gc.freeze()
for module in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(module)
        os._exit(0)
    if os.wait()[1]:
        print(module, flush=True)
"""


@pytest.mark.slow
def test_a_command_imports_all_that_it_needs():
    """Each module is the first of ffkv that a process imports. Most tests have imported the others already."""
    command = ["python-code", IMPORTS, *modules()]
    done = subprocess.run(command, env=with_forks(OFFLINE), capture_output=True, text=True)
    assert done.stdout == "" and done.returncode == 0, done.stdout + done.stderr


def test_what_a_person_did_wrong_is_said_in_one_message_with_exit_code_2(tmp_path):
    (tmp_path / "profiles").touch()  # where a folder is to be made
    done = subprocess.run([sys.executable, "-m", "ffkv", "init"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ffkv: profiles/default/profile.yaml cannot be written: ")
    assert "Traceback" not in done.stderr and "\x1b" not in done.stderr


@pytest.mark.parametrize(
    "words", [["export", ".", "--format", "neuron-record"], ["write-settings", "--settings", "{}"]]
)
def test_a_name_that_no_file_can_have_is_refused(words):
    result = CliRunner().invoke(ffkv, [*words, "--output", "a" * 300])
    assert result.exit_code == 2
    assert "cannot be written: File name too long" in " ".join(result.output.split())


def test_a_folder_that_cannot_be_looked_up_is_not_called_missing(tmp_path, monkeypatch):
    def said(name: str) -> str:
        result = CliRunner().invoke(ffkv, ["check", name])
        assert result.exit_code == 2
        return " ".join(result.output.split())

    (tmp_path / "file").touch()
    assert f"'{tmp_path}/none' does not exist." in said(f"{tmp_path}/none")
    assert f"'{tmp_path}/file' is a file." in said(f"{tmp_path}/file")

    def look_up(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(
        "ffkv.base.options.Path", type("Unreadable", (), {"__init__": lambda *_: None, "stat": look_up})
    )
    assert f"'{tmp_path}' cannot be read: Input/output error." in said(str(tmp_path))


def test_settings_that_a_rule_cannot_write_are_said(tmp_path):
    settings = json.dumps(Settings().model_dump() | {"seed": -1})
    with pytest.raises(UserError, match="seed is -1: must be at least 0"):
        arguments = ["write-settings", "--settings", settings, "--output", str(tmp_path / "settings.json")]
        CliRunner().invoke(ffkv, arguments, catch_exceptions=False)
