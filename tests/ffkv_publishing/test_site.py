"""A site: everything is reachable by relative links, nothing names the machine, and bad input is refused."""

import base64
import errno
import json
import re
import shutil
import subprocess
from urllib.parse import unquote, urlsplit

import pytest
from click.testing import CliRunner
from support import ROOT

import ffkv
from ffkv.cli import ffkv as command
from ffkv.run.export.settings import Export
from ffkv.run.export.step import export
from ffkv_publishing.site import _forget_machine

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def publish(*arguments) -> tuple[int, str]:
    answer = CliRunner().invoke(command, ["publish", *map(str, arguments)])
    return answer.exit_code, answer.output + str(answer.exception or "")


@pytest.fixture(scope="module")
def site(tiny, tmp_path_factory):
    """A site of the run with an export, a comparison from elsewhere and a report without its run."""
    place = tmp_path_factory.mktemp("published")
    export(ffkv.open(tiny / "results/tiny"), "parquet", place / "sheet", Export(memories=["L0.3", "L1.5"]))
    for name in ("comparisons/two", "alone"):
        shutil.copytree(tiny / "reports/tiny", place / "reports" / name)
    page = place / "reports/alone/index.html"
    page.write_text(page.read_text().replace("</main>", f"<p>{place}/texts/mine.txt {place}</p></main>", 1))
    reports = [tiny / "reports/tiny", place / "reports/comparisons/two", place / "reports/alone"]
    code, told = publish(
        *reports, "--to", place / "site", "--export", place / "sheet", "--memories", "L0.3", "--memories", "L1.5"
    )
    assert code == 0, told
    assert re.match(r"\d+ files, [\d.]+ MB, the largest", told)
    return place / "site", place, tiny


def test_every_link_leads_to_a_file_of_the_site(site):
    folder, _, _ = site
    reached, waiting = set(), [folder / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        if page.suffix != ".html":
            continue
        for address in re.findall(r'(?:href|src)="([^"]+)"', page.read_text()):
            parts = urlsplit(address)
            if parts.scheme in ("data", "https") or not parts.path:
                continue
            assert not parts.scheme and not parts.path.startswith("/"), f"{page}: {address}"
            target = (page.parent / unquote(parts.path)).resolve()
            assert target.is_file() and target.is_relative_to(folder), f"{page}: {address}"
            waiting.append(target)
    shown = {path.relative_to(folder).as_posix() for path in reached}
    assert {"reports/tiny/index.html", "reports/tiny/memories/L0.3.html", "reports/comparisons/two/index.html"} <= shown
    assert {"reports/alone/index.html", "exports/sheet/ffkv-export.json"} <= shown


def test_the_first_page_lists_everything(site):
    page = (site[0] / "index.html").read_text()
    for heading in ("Reports", "Comparisons", "Memories", "Exports"):
        assert f"<h2>{heading}</h2>" in page
    assert page.count("memories/L") == 2


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian's package: chromium)")
def test_each_table_of_the_first_page_has_a_field_to_search_it(site):
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--dump-dom"]
    page = subprocess.run(
        [CHROMIUM, *options, (site[0] / "index.html").as_uri()], capture_output=True, text=True, timeout=120
    )
    assert page.stdout.count('<input type="search">') == 4


def test_no_file_names_the_machine(site):
    folder, place, tiny = site
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for each in (place, tiny, ROOT):
                assert str(each).encode() not in content, f"{path} names {each}"
    assert "<p>mine.txt .</p>" in (folder / "reports/alone/index.html").read_text()


def test_the_account_is_not_named_even_in_tables_inside_pages(tmp_path):
    home = tmp_path / "home/alice-smith"
    table = base64.b64encode(f"model,n\n{home}/models/llama,3\n".encode()).decode()
    page = tmp_path / "page.html"
    page.write_text(f'<a href="data:text/csv;charset=utf-8;base64,{table}">t</a> {home}/a/b.txt, ({home})')
    _forget_machine(page, [home])
    cleaned = page.read_text()
    assert "alice" not in cleaned and cleaned.endswith("b.txt, (.)")
    assert base64.b64decode(re.search(r"base64,([^\"]+)", cleaned)[1]) == b"model,n\nllama,3\n"


def test_it_is_published_again_and_the_old_one_is_replaced(tiny, tmp_path, monkeypatch):
    alone = shutil.copytree(tiny / "reports/tiny", tmp_path / "reports/alone")
    assert publish(alone, "--to", tmp_path / "site")[0] == 0
    (alone / "more.html").write_text("x")
    assert publish(alone, "--to", tmp_path / "site")[0] == 0
    assert (tmp_path / "site/reports/alone/more.html").exists()
    (tmp_path / "site/mine.txt").write_text("x")
    monkeypatch.delattr("ffkv_publishing.site.write_site")  # it is refused before anything is written
    code, told = publish(alone, "--to", tmp_path / "site")
    assert code and "mine.txt" in told and (tmp_path / "site/mine.txt").exists()


def test_the_size_is_told_and_nothing_written_if_asked_so(tiny, tmp_path):
    alone = shutil.copytree(tiny / "reports/tiny", tmp_path / "reports/alone")
    code, told = publish(alone, "--to", tmp_path / "site", "--dry-run")
    assert code == 0 and " files, " in told and "Nothing was written" in told and not (tmp_path / "site").exists()


def test_bad_input_is_refused_in_a_sentence(tiny, tmp_path):
    alone = shutil.copytree(tiny / "reports/tiny", tmp_path / "reports/alone")
    other = shutil.copytree(alone, tmp_path / "reports/other/alone")
    unfinished = tmp_path / "export"
    unfinished.mkdir()
    (unfinished / "ffkv-export.json").write_text(json.dumps({"finished": False}))
    linked = shutil.copytree(alone, tmp_path / "reports/linked")
    (linked / "secret").symlink_to("/etc")
    for arguments, told in {
        (tmp_path,): "is no report",
        (alone, other): "are called alone",
        (alone, "--export", alone): "is no finished export",
        (alone, "--export", unfinished): "is no finished export",
        (linked,): "secret",
    }.items():
        code, said = publish(*arguments, "--to", tmp_path / "site")
        assert code and told in said and "Traceback" not in said, (arguments, said)
        assert not [*tmp_path.glob("*site*")], arguments


def test_a_memory_that_is_not_there_is_named(own_tiny):
    code, told = publish(own_tiny / "reports/tiny", "--to", own_tiny / "site", "--memories", "L9.9")
    assert code and "no layer 9" in told and not (own_tiny / "site").exists()


def test_a_run_that_is_not_whole_is_refused_and_nothing_is_written(own_tiny):
    (own_tiny / "results/tiny/refinement/figure_9_residual_agreement.csv").unlink()
    code, told = publish(own_tiny / "reports/tiny", "--to", own_tiny / "site")
    assert code and "figure_9_residual_agreement" in told and "Traceback" not in told
    assert not [*own_tiny.glob("*site*")]


def test_a_disk_that_fills_leaves_no_half_of_a_site(own_tiny, monkeypatch):
    def fill(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    alone = shutil.copytree(own_tiny / "reports/tiny", own_tiny / "reports/alone")
    monkeypatch.setattr("ffkv_publishing.site.shutil.copytree", fill)
    code, told = publish(alone, "--to", own_tiny / "site")
    assert code and "does not fit" in told
    assert not [*own_tiny.glob("*site*")]
