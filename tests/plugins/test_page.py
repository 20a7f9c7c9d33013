"""docs/plugins.md shows the toy as it is."""

import re

from support import ROOT

TOY = ROOT / "tests/plugins/toy"


def test_the_page_shows_the_branch_whole():
    page = (ROOT / "docs/plugins.md").read_text()
    shown = dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)```$", page, re.DOTALL | re.MULTILINE))
    assert shown.keys() >= {"pyproject.toml", "ffkv_toy/branch.py", "ffkv_toy/rules.smk"}
    for name, text in shown.items():
        assert text == (TOY / name).read_text(), name
    of_branch = {"branch", "settings", "tables", "summarize", "section"}
    assert {f"ffkv_toy/{name}.py" for name in of_branch} < shown.keys()
