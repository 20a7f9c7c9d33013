"""The catalog of Snakemake workflows takes the repository in, and what it tells people to do works.

What it asks for: `scripts/generate-catalog.py` and `source/docs/about/adding_workflows.md` of snakemake/snakemake-workflow-catalog, read in November
2026. What it tells them to do: `snakedeploy deploy-workflow`, whose Snakefile is below. That a release is on GitHub is not tested.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from forks import with_forks
from support import OFFLINE, ROOT
from workflow.dry_run import planned

from ffkv.base.settings.yaml_file import read_settings
from ffkv.workflow.runs import resolve

DEPLOYMENTS = {"conda", "apptainer", "singularity", "apptainer+conda", "singularity+conda"}
DEPLOYED = """
from snakemake.utils import min_version

min_version("6.10.0")

configfile: "config/config.yaml"

module ffkv:
    snakefile: {snakefile!r}
    config: config

use rule * from ffkv
"""


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=folder, env=environment or OFFLINE, capture_output=True, text=True, timeout=300)


def test_the_catalog_lists_it_with_standardized_usage():
    readme = (ROOT / "README.md").read_text().lower()
    assert "snakemake" in readme and "workflow" in readme
    assert (ROOT / "workflow/Snakefile").is_file() and [*(ROOT / "workflow/rules").glob("*.smk")]
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage.keys() <= {"mandatory-flags", "software-stack-deployment", "report"}
    assert usage["software-stack-deployment"].keys() <= DEPLOYMENTS and usage["report"] is True
    assert isinstance(usage["mandatory-flags"]["desc"], str) and isinstance(usage["mandatory-flags"]["flags"], list)
    page = (ROOT / "config/README.md").read_text()
    assert page.startswith("# Configuration\n") and page.count("```") % 2 == 0
    assert "](" not in page  # the page of the catalog lies elsewhere: a link to a file would lead nowhere


def test_make_lint_runs_the_checks_of_the_catalog():
    """They take half a minute, and `make test` runs `make lint`. The catalog itself lints without the package, and shows its sentence."""
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^lint: .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)[1].split("\n\t")
    assert {"snakemake --lint", "snakefmt --check Snakefile workflow"} <= {line.strip() for line in recipe}
    assert re.search(r"^test: .*\n\t\$\(MAKE\) .*\blint\b", makefile, re.MULTILINE)


@pytest.mark.workflow
def test_what_snakedeploy_makes_of_it_plans_the_run_of_the_demo(tmp_path):
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "workflow").mkdir()
    (tmp_path / "workflow/Snakefile").write_text(DEPLOYED.format(snakefile=str(ROOT / "workflow/Snakefile")))
    dry = run("snakemake", "-n", "--cores", "2", folder=tmp_path, **with_forks(OFFLINE))
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert {"model", "triggers", "report", "all"} <= planned(dry.stdout + dry.stderr).keys()
    assert resolve(read_settings(ROOT / "config/config.yaml")) == resolve(read_settings(ROOT / "config.yaml"))
    schema = (ROOT / "config/config.yaml").read_text().splitlines()[0].partition("$schema=")[2]
    assert (ROOT / "config" / schema).resolve() == ROOT / "workflow/schemas/config.schema.json"


@pytest.fixture(scope="module")
def without_ffkv(tmp_path_factory) -> Path:
    """The Python of an environment with Snakemake and all else that the tests have, but for ffkv."""
    folder = tmp_path_factory.mktemp("without")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/*/site-packages")
    # What `.pth` files of that folder name is not read, and by one of them ffkv is installed.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "bin/python"
    assert b"No module named 'ffkv'" in subprocess.run([python, "-c", "import ffkv"], capture_output=True).stderr
    return python


def plan(python: Path, folder: Path, places: str = "") -> subprocess.CompletedProcess:
    command = [python, "-m", "snakemake", "-n", "--cores", "1", "--snakefile", ROOT / "workflow/Snakefile"]
    return run(*command, folder=folder, **OFFLINE | {"PYTHONPATH": places})


@pytest.mark.workflow
def test_without_the_package_one_sentence_says_what_to_install(without_ffkv, tmp_path):
    refused = plan(without_ffkv, tmp_path)
    said = refused.stdout + refused.stderr
    assert refused.returncode == 1 and "Traceback" not in said
    assert said.count("The Python package ffkv must be installed beside Snakemake") == 1
    assert f"`{without_ffkv} -m pip install .`" in said


@pytest.mark.workflow
def test_another_version_of_the_package_is_told_and_other_defects_are_not_hidden(without_ffkv, tmp_path):
    module = tmp_path / "ffkv/base/doors.py"
    module.parent.mkdir(parents=True)
    module.write_text("")  # of a version that has no function of this name
    said = plan(without_ffkv, tmp_path, str(tmp_path)).stdout
    assert "in the version of this workflow" in said and "cannot import name 'load_all'" in said
    module.write_text("import no_such_library")
    said = plan(without_ffkv, tmp_path, str(tmp_path)).stdout
    assert "No module named 'no_such_library'" in said and "must be installed" not in said
