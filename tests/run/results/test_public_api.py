"""The public names of ffkv: imported when they are used, known to type checkers, described in docs/api.md.

The examples in their docstrings are run on the finished run of configs/tiny.yaml.
"""

import doctest
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support import draw_nothing

import ffkv
import ffkv_annotation
import ffkv_comparison
import ffkv_formats

ROOT = Path(__file__).parents[3]
PACKAGES = {each.__name__: each for each in (ffkv, ffkv_annotation, ffkv_comparison, ffkv_formats)}
WITHOUT = {"WHOLE", "settings"}  # a value and a module: `Part` and every step show them
PUBLIC = {name: getattr(package, name) for package in PACKAGES.values() for name in package.__all__}
EXAMPLES = {
    test.name: test
    for name, thing in PUBLIC.items()
    if name not in WITHOUT
    for test in doctest.DocTestFinder().find(thing, name, globs={**PACKAGES, "torch": torch})
    if test.examples
}


def test_importing_ffkv_imports_nothing_heavy():
    code = "import sys, ffkv; dir(ffkv); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "pandas", "numpy", "pydantic", "h5py"} & set(modules)


@pytest.mark.parametrize("start", ["ffkv; ffkv.open, ffkv.Run, ffkv.Memory", "ffkv_explorer.application"])
def test_opening_and_exploring_a_run_loads_nothing_heavy(start):
    """What takes long to import or much memory is imported by what needs it."""
    code = f"import sys, {start}; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "sklearn", "scipy", "matplotlib"} & set(modules)


def test_every_public_name_exists_and_is_documented_with_an_example(subtests):
    for package in PACKAGES.values():
        for name in package.__all__:
            with subtests.test(name=name):
                assert name in dir(package)
                assert getattr(package, name).__doc__
                assert name in {*EXAMPLES, *WITHOUT}


def test_settings_are_sections_of_ffkv_settings():
    code = "import ffkv; print(ffkv.settings.Triggers(per_key=7).per_key)"  # nobody has imported the module before
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "7\n"
    sections = [value for value in vars(ffkv.settings.Settings()).values() if isinstance(value, ffkv.settings.Section)]
    written = yaml.safe_load((ROOT / "config.yaml").read_text())
    groups = {name for name, value in written.items() if isinstance(value, dict)} - {
        "runs",
        "comparisons",
        "behaviours",
        "concepts",
    }
    assert {type(section).__name__.lower() for section in sections} == groups
    sections = [
        section for section in sections if type(section).__module__.startswith("ffkv.")
    ]  # packages have their own
    assert all(getattr(ffkv.settings, type(section).__name__) is type(section) for section in sections)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'triggers_of'"):
        _ = ffkv.triggers_of


def test_a_notebook_shows_the_message_and_no_calls():
    assert ffkv.UserError("no \x1b[31m file")._render_traceback_() == [r"UserError: no \x1b[31m file"]


@pytest.fixture
def write_api():
    """The script docs/write_api.py, as a module."""
    spec = importlib.util.spec_from_file_location("write_api", ROOT / "docs/write_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_of_the_api_is_current(write_api):
    assert (ROOT / "docs/api.md").read_text() == write_api.page(), "run `python docs/write_api.py`"


def test_docstrings_become_lists(write_api):
    def example(path: "Path", *, fast: "bool | None" = None) -> "dict[str, Path]":
        """Does something.

        More of it.

        Args:
            path: the file; a long
                line.
            fast, slow: how.
        Returns:
            The thing:
            all of it.
        Examples:
            >>> 1 + 1
            2
        """

    assert write_api._signature(example, "ffkv.example") == (
        "```python\nffkv.example(path: Path, *, fast: bool | None=None) -> dict[str, Path]\n```\n"
    )
    assert write_api._markdown(example) == (
        "Does something.\n\nMore of it.\n\n**Args**\n\n- `path`: the file; a long\n  line.\n- `fast, slow`: how.\n\n"
        "**Returns**\n\nThe thing:\nall of it.\n\n```pycon\n>>> 1 + 1\n2\n```\n"
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_it_shows(name: str, own_tiny: Any, monkeypatch):
    if name not in ("figure", "AskedBehaviour"):  # which show a drawing
        draw_nothing(monkeypatch)
    (own_tiny / "results/other").symlink_to("tiny")
    monkeypatch.chdir(own_tiny)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(EXAMPLES[name], out=said.append)
    assert not runner.failures, "".join(said)
