"""The recipes of containers: they copy what is there, install the listed versions, and build where a builder is at hand."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from support import ROOT

DOCKER, APPTAINER = ROOT / "envs/Dockerfile", ROOT / "envs/apptainer.def"
LISTS = {"constraints.txt", "requirements.txt", "requirements-demo.txt"}


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, each with its words."""
    lines = [line for line in DOCKER.read_text().splitlines() if line and not line.startswith("#")]
    return [(line.split()[0], line.partition(" ")[2]) for line in lines]


def sections() -> dict[str, list[str]]:
    """The lines of each section of the definition for apptainer."""
    parts = re.split(r"^%(\w+)\n", APPTAINER.read_text(), flags=re.M)
    return {
        name: [line.strip() for line in text.splitlines() if line.strip()]
        for name, text in zip(parts[1::2], parts[2::2])
    }


def copied() -> dict[str, set[str]]:
    """What each recipe copies of the clone."""
    words = {each for name, text in instructions() if name == "COPY" for each in shlex.split(text)[:-1]}
    return {"docker": words, "apptainer": {line.split()[0] for line in sections()["files"]}}


def commands() -> dict[str, list[str]]:
    """The commands that each recipe runs while it builds."""
    return {"docker": [text for name, text in instructions() if name == "RUN"], "apptainer": sections()["post"]}


@pytest.mark.parametrize("recipe", ["docker", "apptainer"])
def test_what_is_copied_is_there_and_makes_the_package(recipe):
    names = copied()[recipe]
    assert [name for name in names if not (ROOT / name).exists()] == []
    assert {"src", "workflow", "profiles", "Snakefile", "setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names
    assert {
        f"packages/ffkv-{name}" for name in ("dictionaries", "embedded", "fairseq", "formats", "gguf")
    } <= names  # of runs, and of `ffkv export`
    assert "envs" in names or {f"envs/{each}" for each in LISTS} <= names
    setup = (ROOT / "setup.py").read_text()  # it copies these folders into the package
    assert all(f'"{name}"' in setup for name in ("workflow", "envs", "profiles"))


def test_what_docker_copies_is_not_left_out_of_what_it_is_sent():
    sent = {
        line[1:] for line in (ROOT / "envs/Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    }
    assert {name.partition("/")[0] for name in copied()["docker"]} == sent


@pytest.mark.parametrize("recipe", ["docker", "apptainer"])
def test_the_versions_are_the_listed_ones(recipe):
    """No version is written into a recipe, but that of Python."""
    text = "\n".join(commands()[recipe])
    assert {Path(name).name for name in re.findall(r"envs/\S+\.txt", text)} == LISTS
    assert "-c envs/constraints.txt -r envs/requirements.txt" in text and "==" not in text
    assert (
        "--no-deps -r envs/requirements-demo.txt" in text
        and "--no-deps . ./packages/ffkv-dictionaries ./packages/ffkv-embedded ./packages/ffkv-fairseq ./packages/ffkv-formats ./packages/ffkv-gguf"
        in text
    )


def test_the_python_is_that_of_the_other_environments():
    dependencies = yaml.safe_load((ROOT / "envs/ffkv.yaml").read_text())["dependencies"]
    (version,) = [each.partition("=")[2] for each in dependencies if str(each).startswith("python=")]
    assert ("FROM", f"python:{version}-slim") in instructions()
    assert f"From: python:{version}-slim" in APPTAINER.read_text().splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={version}" and "ffkv" in project["scripts"]


@pytest.mark.parametrize("recipe", ["docker", "apptainer"])
def test_both_install_by_the_same_commands(recipe):
    installed = {name: [line for line in lines if line.startswith("pip ")] for name, lines in commands().items()}
    assert installed["docker"] == installed["apptainer"] and len(installed[recipe]) == 3


def test_the_commands_are_read_by_a_shell():
    scripts = ["\n".join(lines) for lines in (*commands().values(), sections()["runscript"])]
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_the_image_does_not_run_as_root():
    names = [name for name, _ in instructions()]
    assert ("USER", "ffkv") in instructions() and names.index("USER") > max(
        place for place, name in enumerate(names) if name == "RUN"
    )
    assert ("CMD", '["snakemake"]') in instructions()


def builder() -> str:
    """A program that builds images here, or "": docker needs its daemon."""
    for name, probe in {"docker": "info", "podman": "info", "buildah": "info", "apptainer": "version"}.items():
        if shutil.which(name) and subprocess.run([name, probe], capture_output=True).returncode == 0:
            return name
    return ""


@pytest.mark.large
def test_a_container_is_built_and_runs(tmp_path):
    """It downloads some gigabytes."""
    name = builder()
    if not name:
        pytest.skip("no docker (with its daemon), podman, buildah or apptainer is at hand")
    if name == "apptainer":
        image = str(tmp_path / "ffkv.sif")
        build, inside = (
            ["apptainer", "build", image, str(APPTAINER)],
            ["apptainer", "run", "--bind", f"{tmp_path}:/work", image],
        )
    else:
        build = [name, "bud" if name == "buildah" else "build", "--file", str(DOCKER), "--tag", "ffkv-test", "."]
        inside = [name, "run", "--rm", "--volume", f"{tmp_path}:/work", "ffkv-test"]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    if re.search("Temporary failure in name resolution|no such host|connection refused|i/o timeout", built.stderr):
        pytest.skip("no registry of images, or no package index, is reached")
    assert built.returncode == 0, built.stderr[-5000:]
    if name == "buildah":
        return  # it builds, and runs nothing of an image by its name
    tmp_path.chmod(0o777)  # the user of the image writes into it
    script = "ffkv --version && ffkv init . && snakemake -n"
    ran = subprocess.run([*inside, "bash", "-c", f"cd /work && {script}"], capture_output=True, text=True)
    assert ran.returncode == 0 and "jobs would run" in ran.stdout, ran.stdout + ran.stderr
