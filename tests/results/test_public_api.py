"""The public names of ffkv: imported when they are used, known to type checkers, described in docs/api.md."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ffkv

ROOT = Path(__file__).parents[2]


def test_importing_ffkv_imports_nothing_heavy():
    code = "import sys, ffkv; dir(ffkv); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "pandas", "numpy", "pydantic", "h5py"} & set(modules)


def test_opening_a_run_needs_no_torch():
    code = "import sys, ffkv; ffkv.open, ffkv.Run, ffkv.Memory; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers"} & set(modules)


@pytest.mark.parametrize("name", ffkv.__all__)
def test_every_public_name_exists_and_is_documented(name):
    assert name in dir(ffkv)
    assert getattr(ffkv, name).__doc__


def test_type_checkers_see_the_same_names():
    tree = ast.parse((ROOT / "src/ffkv/__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname: f"{line.module}:{alias.name}"
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert seen == {**ffkv.PUBLIC, "settings": "ffkv:settings"}


def test_settings_are_sections_of_ffkv_settings():
    assert ffkv.settings.Triggers(per_key=7).per_key == 7


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'triggers_of'"):
        _ = ffkv.triggers_of
