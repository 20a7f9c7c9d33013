"""The Makefile: every target is shown and run, and results are deleted only if somebody says so."""

import os
import re
import shutil
import subprocess

import pytest
from support import ROOT

TEXT = (ROOT / "Makefile").read_text()


@pytest.fixture
def folder(tmp_path):
    """A folder with the Makefile and what a run leaves."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("src", "packages", "tests", "benchmarks", "results/demo", "reports/demo", ".venv", ".pytest_cache"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def make(folder, target: str, answer: str = "") -> subprocess.CompletedProcess:
    """Runs `make`, as if none had started the tests."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    command = ["make", "--no-print-directory", target]
    return subprocess.run(command, cwd=folder, input=answer, capture_output=True, text=True, env=environment)


def test_help_shows_every_target_that_is_no_file(folder):
    phony = re.search(r"^\.PHONY: (.*)$", TEXT, re.M)[1].split()
    shown = [line.split()[0] for line in make(folder, "help").stdout.splitlines()]
    defined = re.findall(r"^([a-z-]+):", TEXT, re.M)
    assert shown == defined == phony
    assert "bench" in shown


def test_clean_keeps_results_and_reports(folder):
    assert make(folder, "clean").returncode == 0
    assert not (folder / ".pytest_cache").exists()
    assert (folder / "results/demo").exists() and (folder / "reports/demo").exists() and (folder / ".venv").exists()


def test_distclean_asks_before_it_deletes_results(folder):
    assert make(folder, "distclean", "\n").returncode != 0
    assert (folder / "results/demo").exists() and (folder / "reports/demo").exists()
    assert make(folder, "distclean", "y\n").returncode == 0
    assert not (folder / "results").exists() and not (folder / "reports/demo").exists()
