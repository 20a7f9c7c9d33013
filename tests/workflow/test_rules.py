"""The rules: each passes its command every option, says what it does, and reruns when its modules change."""

import json
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml
from forks import with_forks
from support import OFFLINE, ROOT, snakemake

from ffkv.branches.settings import Settings
from ffkv.cli import COMMANDS, ffkv
from ffkv.workflow.jobs import STEPS, ask_snakemake, read_jobs
from ffkv.workflow.rules import Runs, tables

pytestmark = pytest.mark.workflow
RULES = sorted((ROOT / "workflow/rules").glob("*.smk"))
WITHOUT_NUMBERS = {"write_settings", "resolve_commit"}
# The options of commands that no rule passes.
NOT_PASSED = {"triggers": {"--save-every"}}


@pytest.fixture(scope="module")
def settings_file(tmp_path_factory) -> Path:
    """The settings of models in low precision, in two shards and two layer groups.

    One model is trained and has a control. The others and a data set are on the hub, which nobody asks; one of them is a GGUF
    file.
    """
    folder = tmp_path_factory.mktemp("dry")
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text())
    config |= {
        "model": {"dtype": "bfloat16", "second_matrix": "it's (a|b)", "max_memory": {"cpu": "60GiB"}},
        "corpus": {"validation": ["a b", "c"]},
        "prefixes": {**config["prefixes"], "extra_states": ["x"]},
        "embedded": {**config["embedded"], "keep_steps": [0], "text": ["a.txt"]},
        "behaviours": {"agreement": {"prompts": "a b.jsonl", "fields": {"clean_prefix": "clean"}}},
        "concepts": {"tokens": {"rules": "code", "fields": {"text": "question"}}},
        "routing": {"tokens": 100},
        "dictionary": {"largest": 8, "layers": [0]},
        "comparisons": {"both": {"runs": ["tiny", "hub"], "labels": ["a b", "c"], "axis": "size", "values": [1, 2]}},
        "runs": {
            "tiny": {"model": {"max_memory": {}}, "report": {"control": "auto"}},
            "hub": {
                "model": {"checkpoint": "someone/model"},
                "corpus": {"dataset": "someone/words", "validation": [], "where": {"language": ["en"]}},
            },
            "packed": {"model": {"checkpoint": "someone/packed", "gguf": "a.gguf"}},
        },
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(config))
    pair = {"clean": "a", "patch_prefix": "b", "clean_answer": "c", "patch_answer": "d"}
    (folder / "a b.jsonl").write_text(json.dumps(pair))
    for run in ("tiny", "hub"):  # somebody judged keys of both
        (folder / "annotations" / run / "records").mkdir(parents=True)
        (folder / "annotations" / run / "records" / "person_anna.0.host.1.jsonl").touch()
    return folder / "settings.yaml"


@pytest.fixture(scope="module")
def dry_run(settings_file) -> str:
    """What Snakemake would do with these settings, with the commands."""
    dry = snakemake(settings_file.parent, settings_file, "-n", "--printshellcmds")
    assert dry.returncode == 0, dry.stderr
    return dry.stdout + dry.stderr


@cache
def lines_of(output: str) -> dict[str, list[str]]:
    """Rule to the words of its commands."""
    commands = {}
    for text in re.findall(r"^ *ffkv (.*?) *>\S+ 2>&1$", output, re.M):
        words = shlex.split(text)
        size = 2 if isinstance(subcommand(words[0]), click.Group) else 1
        commands.setdefault("_".join(words[:size]).replace("-", "_"), []).extend(words[size:])
    return commands


def subcommand(*names: str) -> click.Command:
    command = ffkv
    for name in names:
        command = command.get_command(click.Context(command), name)
    return command


def command_of(rule: str) -> click.Command:
    """The command of a rule, which has its name: `keys_patterns` calls `ffkv keys patterns`."""
    name = rule.replace("_", "-")
    return subcommand(name) if name in COMMANDS else subcommand(*rule.split("_", 1))


def rules() -> dict[str, str]:
    """Rule to its text."""
    return {
        text.partition(":")[0]: text for path in RULES for text in re.split(r"^rule ", path.read_text(), flags=re.M)[1:]
    }


def test_the_settings_of_a_run_are_written_from_those_that_are_not_the_defaults():
    """Snakemake shows them as the reason of a rerun: complete, they are 4,000 characters."""
    runs = Runs(
        {"keys": {"per_layer": 7}, "seed": 5, "runs": {"one": {"seed": 3, "keys": {"per_layer": 8}}, "two": {}}}
    )
    changed = {run: runs.changed(SimpleNamespace(run=run)) for run in runs.settings}
    named = {run: {"report": {"control": f"{run}-untrained"}} for run in ("one", "two")}
    assert json.loads(changed["one"]) == {"seed": 3, "keys": {"per_layer": 8}, **named["one"]}
    assert json.loads(changed["two"]) == {"seed": 5, "keys": {"per_layer": 7}, **named["two"]}
    for run, text in changed.items():
        assert Settings.model_validate_json(text) == runs.settings[run]


def test_each_rule_has_the_name_of_its_command(dry_run):
    assert lines_of(dry_run).keys() == rules().keys() == STEPS.keys() | WITHOUT_NUMBERS


def test_a_rule_passes_every_option_of_its_command(subtests, dry_run):
    """So no setting can be forgotten, and no option is passed that the command does not have."""
    for rule in STEPS:
        with subtests.test(rule=rule):
            passed = {word.partition("=")[0] for word in lines_of(dry_run)[rule] if word.startswith("--")}
            options = [
                {*option.opts, *option.secondary_opts}
                for option in command_of(rule).params
                if isinstance(option, click.Option) and not NOT_PASSED.get(rule, set()) & set(option.opts)
            ]
            assert [names for names in options if len(names & passed) != 1] == []
            assert passed <= set().union(*options)


def test_an_option_that_writes_is_called_output(subtests, dry_run):
    for rule in STEPS:
        with subtests.test(rule=rule):
            words = lines_of(dry_run)[rule]
            written = [word for word, name in zip(words[1:], words) if name.startswith("--output")]
            assert written
            read = [word.rpartition("=")[2] for word in words if "results/" in word]
            assert not {word for word in read if word not in written} & set(written)


def test_settings_are_expanded_and_quoted(dry_run):
    commands = {rule: shlex.join(words) for rule, words in lines_of(dry_run).items()}
    of_control = (
        "--per-key 20 --one-prefix-per-sentence --shared-prefixes-compete once --no-include-empty-prefix --negative "
        "--batch-tokens auto --block-sentences 2048 --device auto --no-trust-remote-code --shards 2 --model "
    )
    assert of_control in commands["triggers"]  # jobs come in any order
    assert "--shards 2 --max-memory cpu=60GiB --model " in commands["triggers"]
    assert "--second-matrix 'it'\"'\"'s (a|b)' --" in commands["model"]
    assert "--train train --validation 'a b' --validation c --validation-share 0.1" in commands["corpus"]
    assert (
        commands["keys_summarize"].count("--by-prefix=") == 7
    )  # two layer groups in each of three runs, one of a control


def test_each_rule_says_what_it_does(dry_run):
    for rule, text in rules().items():
        message = re.search(r"message:\s+\"(.+)\"", text)
        assert message and message[1].endswith("."), rule
        outputs = text.partition("output:")[2].partition("log:")[0].replace("tables(", "results/{run}/(")
        wildcards = set(re.findall(r"\{(run|split|shard|group|kind|comparison|behaviour|concept)\}", outputs))
        assert wildcards == set(re.findall(r"\{wildcards\.(\w+)\}", message[1])), rule
    assert "Find the trigger examples of every key in shard 1 of tiny." in dry_run


def test_a_rule_that_others_wait_for_never_has_less_priority_than_these(settings_file, forked_python):
    text = "".join(path.read_text() for path in RULES)
    priority = {
        rule: int(of) for rule, of in re.findall(r"^rule (\w+):(?:\n(?: .*)?)+?\n    priority: (\d+)", text, re.M)
    }
    jobs = read_jobs(ask_snakemake(settings_file, 2, settings_file.parent))
    assert {job.rule for job in jobs} <= priority.keys()  # every rule says its own
    maker = {path: job.rule for job in jobs for path in job.outputs}
    waits = {(maker[path], job.rule) for job in jobs for path in job.inputs if path in maker}
    assert len(waits) > 60  # the test reads what it means to read
    assert sorted((before, rule) for before, rule in waits if priority[before] < priority[rule]) == []


def test_the_tables_of_a_rule_are_those_that_its_step_writes():
    """Whatever the step is called: `roles` has no step `summarize`."""
    assert tables("roles_measure")[1:2] == ["results/{run}/roles/by_layer/{group}.parquet"]
    assert tables("refinement_summarize") == [
        f"results/{{run}}/{each.path}" for each in STEPS["refinement_summarize"].writes
    ]


def test_no_shell_writes_under_the_name_of_an_output():
    """A file has another name until it is complete, so that no reader sees half of it."""
    assert RULES
    assert not [path for path in RULES if re.search(r">\s*\{output", path.read_text())]


GPUS = """
import json, sys
from pathlib import Path
from snakemake.api import SnakemakeApi
from snakemake.settings.types import ConfigSettings, OutputSettings, Quietness, ResourceSettings

snakefile, folder = Path(sys.argv[1]), Path(sys.argv[2])
for name, machine in json.loads(sys.argv[3]).items():
    with SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        settings = ResourceSettings(cores=2, resources=machine), ConfigSettings(configfiles=[folder / f"{name}.yaml"])
        workflow = api.workflow(*settings, snakefile=snakefile, workdir=folder)
        workflow.dag().execute_workflow(executor="dryrun")
        print(json.dumps({job.rule.name: job.resources.get("gpu", 0) for job in workflow._workflow.dag.jobs}))
"""
# What a workstation has, the settings of the model, and the GPUs of a job of `triggers` and of `values_project`.
MACHINES = {
    "two GPUs": ({"gpu": 2}, {}, 1, 1),
    "two GPUs for a model": ({"gpu": 2}, {"gpus": 2}, 2, 1),
    "no more than there are": ({"gpu": 1}, {"gpus": 4}, 1, 1),
    "none": ({"gpu": 0}, {"gpus": 1}, 0, 0),
    "the CPU is asked for": ({"gpu": 2}, {"device": "cpu"}, 0, 0),
    "a cluster": ({}, {"gpus": 4}, 4, 1),
}


def test_gpus_of_a_workstation_and_of_a_cluster(tmp_path):
    config = yaml.safe_load((ROOT / "configs/tiny.yaml").read_text())
    for name, (_, model, _, _) in MACHINES.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config | {"model": model, "runs": {"tiny": {}}}))
    machines = json.dumps({name: machine for name, (machine, *_) in MACHINES.items()})
    command = ["python-code", GPUS, ROOT / "Snakefile", tmp_path, machines]
    done = subprocess.run(command, env=with_forks(OFFLINE), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    rules = ("triggers", "keys_removal", "values_project", "refinement_measure", "corpus", "model")
    found = {name: [asked[rule] for rule in rules] for name, asked in zip(MACHINES, answers, strict=True)}
    assert found == {name: [a, a, b, b, 0, 0] for name, (_, _, a, b) in MACHINES.items()}
