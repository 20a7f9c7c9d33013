"""Pages as files: they open from disk, and refer to nothing outside."""

import re

import pytest
from click.testing import CliRunner

from ffkv.apps.explorer.commands import explore
from ffkv.base.errors import UserError

from .conftest import text_of


def export(small, folder, *names) -> list[str]:
    done = CliRunner().invoke(
        explore, ["--export", str(folder), "--no-colours", str(small), *names], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert done.output == f"{folder / 'index.html'}: open it in a browser.\n"
    return sorted(path.name for path in folder.iterdir())


def test_a_run_and_the_named_memories_are_written(small, tmp_path):
    assert export(small, tmp_path / "pages", "L0.0", "1/1", "L0.0") == ["L0.0.html", "L1.1.html", "index.html"]
    text = text_of((tmp_path / "pages/L0.0.html").read_text())
    assert "Trigger examples" in text and "Similar memories" in text and "By value" in text


def test_links_lead_to_files_that_are_there(small, tmp_path):
    pages = [tmp_path / name for name in export(small, tmp_path, "L0.0", "L0.1", "L1.1")]
    linked = set()
    for page in pages:
        html = page.read_text()
        for address in re.findall(r'(?:href|src|action)="([^"]*)"', html):
            assert address.startswith("#") or (tmp_path / address).is_file(), (page, address)
            linked.add(address)
        assert "<form" not in html.replace('<form method="dialog">', "") and "<script" not in html
        assert "default-src 'none'" in html and "token=" not in html
    assert {"L0.0.html", "L0.1.html", "L1.1.html", "index.html"} <= linked


def test_without_names_the_memories_are_those_of_a_report(small, tmp_path):
    # L0.2 has no trigger example, so no report shows it.
    assert export(small, tmp_path) == ["L0.0.html", "L0.1.html", "L1.0.html", "L1.1.html", "index.html"]


@pytest.mark.parametrize("name, message", [("L9.0", "There is no layer 9"), ("x", "is not a memory")])
def test_an_unknown_memory_is_refused_and_nothing_is_written(small, tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        CliRunner().invoke(
            explore, ["--export", str(tmp_path / "no"), "--no-colours", str(small), name], catch_exceptions=False
        )
    assert not (tmp_path / "no").exists()
