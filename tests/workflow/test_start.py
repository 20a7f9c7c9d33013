"""The workflow outside the clone: `ffkv init`, the installed wheel, and as a module of another workflow."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from forks import with_forks
from support import OFFLINE, ROOT
from workflow.dry_run import planned

from ffkv.base.errors import UserError
from ffkv.base.settings.yaml_file import read_settings
from ffkv.cli import ffkv
from ffkv.workflow.runs import resolve
from ffkv.workflow.settings_file import start_files, write_start
from tools.release import listed, source_problems, wheel_problems

VERSION = "1.0.0+12.g1a2b3c4d5"


def run(*command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command, cwd=folder, env={**OFFLINE, **environment}, capture_output=True, text=True, timeout=300
    )


def test_init_writes_what_the_clone_itself_has(tmp_path):
    written = write_start(tmp_path / "mine")
    assert {str(path.relative_to(tmp_path / "mine")) for path in written} == {
        "Snakefile",
        "config.yaml",
        "profiles/default/profile.yaml",
        "profiles/slurm/profile.yaml",
    }
    for name, text in start_files().items():
        mine, ours = (tmp_path / "mine" / name).read_text(), (ROOT / name).read_text()
        assert mine == text
        assert mine.splitlines()[1:] == ours.splitlines()[1:], name
    assert list(resolve(read_settings(tmp_path / "mine/config.yaml"))) == ["demo", "demo-untrained"]


def test_the_settings_file_names_the_installed_schema(tmp_path):
    write_start(tmp_path)
    schema = re.match(r"# yaml-language-server: \$schema=(.*)\n", (tmp_path / "config.yaml").read_text())
    assert Path(schema[1]).is_file()


def test_init_overwrites_nothing_and_then_writes_nothing(tmp_path):
    (tmp_path / "config.yaml").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=re.escape(str(tmp_path / "config.yaml"))):
        write_start(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.yaml", "notes.txt"]


def test_the_same_command_goes_on_after_an_interruption(tmp_path):
    written = write_start(tmp_path)
    written[-1].unlink()
    before = written[0].stat().st_mtime_ns
    assert write_start(tmp_path) == written
    assert all(path.is_file() for path in written) and written[0].stat().st_mtime_ns == before


def test_the_command_says_what_to_do_next(tmp_path):
    done = CliRunner().invoke(ffkv, ["init", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    assert f"Edit {tmp_path / 'mine/config.yaml'}, then go to {tmp_path / 'mine'} and run `snakemake`." in done.output
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(ffkv, ["init", "."])
    assert done.output.splitlines()[-1] == "Edit config.yaml, then run `snakemake`."


@pytest.mark.workflow
def test_snakemake_finds_workflow_and_profiles_in_the_new_folder(tmp_path):
    write_start(tmp_path)
    dry = run("snakemake", "-n", folder=tmp_path, **with_forks(OFFLINE))
    assert dry.returncode == 0, dry.stderr
    assert "Using workflow specific profile profiles/default" in dry.stdout + dry.stderr
    assert {"model", "triggers", "report", "all"} <= planned(dry.stdout + dry.stderr).keys()
    (tmp_path / "mine.yaml").write_text("shards: 3\nruns: {a: {}, b: {}}\n")
    dry = run("snakemake", "-n", "--configfile", "mine.yaml", folder=tmp_path, **with_forks(OFFLINE))
    assert planned(dry.stdout + dry.stderr)["triggers"] == 8  # three shards of each run, and one of its control


@pytest.mark.workflow
def test_without_the_settings_file_the_message_names_it(tmp_path):
    write_start(tmp_path)
    (tmp_path / "config.yaml").unlink()
    alone = ("--workflow-profile", "none", "--cores", "1")
    refused = run("snakemake", "-n", *alone, folder=tmp_path, **with_forks(OFFLINE))
    assert refused.returncode != 0
    assert "config.yaml cannot be read: No such file or directory" in refused.stdout + refused.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The Python of an environment with the wheels of ffkv, which is built from a source distribution, of ffkv-embedded and of ffkv-gguf; no clone is in reach.

    Its other packages are those of the tests. Their folder is on its path, but not what their `.pth` files name.
    """
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in listed():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    (source / "src/ffkv/version.txt").write_text(VERSION)  # as git would tell it
    script = f"from setuptools import build_meta; build_meta.build_sdist({str(built)!r})"
    steps = [run(sys.executable, "-c", script, folder=source)]
    shutil.rmtree(source)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    alone = ["--no-deps", "--no-index"]
    (archive,) = built.glob("*.tar.gz")
    steps.append(run(*pip, "wheel", *alone, "--no-build-isolation", "-w", str(built), str(archive), folder=built))
    for name in ("embedded", "gguf"):  # of the settings that `ffkv init` writes
        shutil.copytree(ROOT / f"packages/ffkv-{name}", built / name)
        steps.append(run(*pip, "wheel", *alone, "--no-build-isolation", "-w", str(built), f"./{name}", folder=built))
    wheels = map(str, built.glob("*.whl"))
    steps.append(run(sys.executable, "-m", "venv", "--without-pip", "env", folder=built))
    python = built / "env/bin/python"
    steps.append(run(*pip, "--python", str(python), "install", *alone, *wheels, folder=built))
    assert not any(done.returncode for done in steps), "".join(done.stderr for done in steps)
    (packages,) = built.glob("env/lib/*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python


def in_environment(python: Path, *command: str, folder: Path) -> subprocess.CompletedProcess:
    """Runs a module with a Python, whose commands come first on the PATH. What the tests' own environment adds is left out."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return run(str(python), "-m", *command, folder=folder, PATH=path, PYTHONPATH="")


@pytest.mark.workflow
def test_what_is_built_holds_what_git_has_of_the_package_and_the_workflow(installed, tmp_path):
    (wheel,), (source,) = installed.parents[2].glob("ffkv-*.whl"), installed.parents[2].glob("*.tar.gz")
    names = listed()
    assert {"src/ffkv/cli.py", "src/ffkv/workflow/config.yaml.template", "workflow/Snakefile"} <= names
    assert wheel_problems(wheel, names) == source_problems(source, names) == []
    other = names - {"envs/ffkv.yaml"} | {"src/ffkv_explorer/static/none.js"}
    assert wheel_problems(wheel, other) == ["lacks ffkv_explorer/static/none.js", "holds ffkv/clone/envs/ffkv.yaml"]
    assert source_problems(source, other) == ["lacks src/ffkv_explorer/static/none.js", "holds envs/ffkv.yaml"]
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(tmp_path / "a.whl", "w") as without:
        for name in whole.namelist():
            without.writestr(name, "1.0" if name == "ffkv/version.txt" else whole.read(name))
    assert wheel_problems(tmp_path / "a.whl", names) == [f"says 1.0 in ffkv/version.txt, and {VERSION} in its metadata"]


@pytest.mark.workflow
def test_the_wheel_carries_the_whole_workflow(installed, tmp_path):
    script = "import ffkv, ffkv.workflow; print(ffkv.__file__, ffkv.workflow.ROOT)"
    told = run(str(installed), "-c", script, folder=tmp_path, PYTHONPATH="").stdout.split()
    package, root = Path(told[0]).parent, Path(told[1])
    assert installed.parents[1] in package.parents and root == package / "clone"
    done = in_environment(installed, "ffkv", "--version", folder=tmp_path)
    assert done.stdout == f"ffkv, version {VERSION}\n"
    done = in_environment(installed, "ffkv", "init", "mine", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    dry = in_environment(installed, "snakemake", "-n", folder=tmp_path / "mine")
    assert dry.returncode == 0, dry.stderr
    assert {"model", "triggers", "report", "all"} <= planned(dry.stdout + dry.stderr).keys()


MODULE = """
from ffkv.workflow import SNAKEFILE

rule all:
    default_target: True
    input: "copy.csv", "ffkv/reports/demo/index.html"

rule copy:
    input: "ffkv/results/demo/keys/activity.csv"
    output: "copy.csv"
    shell: "cp {input} {output}"

module ffkv:
    snakefile: SNAKEFILE
    config: {"runs": {"demo": {}}, "corpus": {"dataset": "files", "train": ["texts/*.txt"]}}
    prefix: "ffkv"

use rule * from ffkv as ffkv_*

use rule triggers from ffkv as ffkv_triggers with:
    threads: 2
"""


@pytest.mark.workflow
def test_it_is_a_module_of_another_workflow_with_a_prefix_and_other_names(installed, tmp_path):
    (tmp_path / "Snakefile").write_text(MODULE)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("Corpus files stay where they are.\n")
    (tmp_path / "config.yaml").write_text("theirs: 1\ntheirs: 2\n")  # Their settings are no business of ours.
    dry = in_environment(installed, "snakemake", "-n", "--printshellcmds", "--cores", "4", folder=tmp_path)
    said = dry.stdout + dry.stderr
    assert dry.returncode == 0, said
    assert {"all", "copy", "ffkv_triggers", "ffkv_report"} <= planned(said).keys()
    lines = [line for line in said.splitlines() if line.startswith("        ffkv ")]
    commands = [
        line.partition("--settings")[0] for line in lines
    ]  # what a settings file names is not a path of a command
    assert all("ffkv/results/demo" in line for line in lines)
    assert not any(re.search(r"(?<!ffkv/)results/demo", command) for command in commands)
    triggers = [line for line in commands if line.startswith("        ffkv triggers ")]
    assert len(triggers) == 2 and all("--threads 2" in line for line in triggers)


def package_copy(folder: Path) -> Path:
    """A copy of the package and its workflow, whose modules a test may edit. Returns the place of the package."""
    for name in ("src/ffkv", "workflow"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "src"


@pytest.mark.workflow
def test_an_edit_of_a_module_repeats_the_rules_whose_numbers_depend_on_it(tiny, tmp_path):
    """What is finished stays finished after an edit elsewhere: no pass over the corpus is repeated for the report."""
    source = package_copy(tmp_path)
    command = ["snakemake", "-n", "--snakefile", str(ROOT / "Snakefile"), "--directory", str(tiny), "--cores", "1"]
    command += ["--configfile", str(ROOT / "configs/tiny.yaml"), "--workflow-profile", "none"]
    environment = with_forks(OFFLINE | {"PYTHONPATH": str(source)})

    def repeated(*modules: str) -> set[str]:
        texts = {path: path.read_text() for path in (source / "ffkv" / module for module in modules)}
        for path, text in texts.items():
            path.write_text(f"{text}\n# edited\n")
        dry = run(*command, folder=tmp_path, **environment)
        for path, text in texts.items():
            path.write_text(text)
        said = dry.stdout + dry.stderr
        print(said)  # the reasons, if it fails
        return set(planned(said)) if "Nothing to be done" not in said else set()

    assert repeated("plan/commands.py", "base/version.py") == set()
    assert repeated("run/report/cards.py") == {"report", "all"}
    found = repeated("base/intervals.py")
    assert not {"train", "model", "corpus", "triggers", "sampled_prefixes"} & found
    assert {"keys_summarize", "values_summarize", "report"} <= found
