"""The gallery: what is missing is made, pictures are those of the pages, and README.md says when and by which ffkv."""

import os
import re
import shutil
import struct
from pathlib import Path

import pytest
from matplotlib.image import imread
from support import ROOT

from ffkv.base.settings.yaml_file import read_settings
from ffkv.base.terminal import in_bytes
from ffkv.workflow.runs import resolve, resolve_comparisons
from tools import gallery
from tools.gallery import GALLERY, MARK, SHOWN, describe, make_reports, packed_size, page_of, take_figure, take_picture

PAGE = (
    "<head></head><body style='background: rgb(1, 2, 3)'>a report<th>ffkv that wrote this page</th><td>1.2.3+gabc</td>"
)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a small page for each report."""
    monkeypatch.chdir(tmp_path)
    GALLERY.parent.mkdir(parents=True)
    for name in {*(name for shown in SHOWN for name in (shown.name, shown.memories) if name)}:
        page_of(name).parent.mkdir(parents=True)
        page_of(name).write_text(PAGE)
        os.utime(page_of(name), (1.7e9, 1.7e9))  # 14 November 2023
    return tmp_path


def test_every_report_is_one_that_its_settings_make():
    for shown in SHOWN:
        settings = read_settings(ROOT / shown.settings)
        runs, kind, _, name = resolve(settings), *shown.name.rpartition("/")
        run, prompts, *_ = shown.asked or (name, "config.yaml")
        assert run in (resolve_comparisons(settings) if kind else runs) and (ROOT / prompts).is_file()
        assert shown.memories in ("", *runs)


def calls(folder: Path) -> list[list[str]]:
    made = []
    make_reports(3, made.append)
    return made


def test_pages_of_memories_are_made_once_and_then_the_report_that_leads_to_them(folder):
    first = calls(folder)
    exports = [command for command in first if command[0] == "ffkv"]
    assert [command[-1] for command in exports] == [
        f"results/{run}" for run in ("demo", "demo-untrained", "step-400", "transcoder")
    ]
    forced = [command for command in first if "--forcerun" in command]
    assert [command[2] for command in forced] == ["config.yaml", "configs/training.yaml", "configs/dictionary.yaml"]
    assert forced[1][-4:] == ["report", "comparison_report", "--", "reports/comparisons/training/index.html"]
    for command in exports:
        Path(command[3]).mkdir(parents=True)
    again = calls(folder)
    assert {command[0] for command in again} == {"snakemake"} and not any("--forcerun" in command for command in again)
    assert {page for command in again for page in command if page.endswith(".html")} == {
        str(page_of(shown.name)) for shown in SHOWN if not shown.asked
    }
    threads = {command[2]: command[4] for command in again}
    assert threads == {"config.yaml": "3", "configs/training.yaml": "1", "configs/dictionary.yaml": "3"}


def test_a_behaviour_is_asked_of_a_run_that_is_there_and_once(folder):
    page_of("agreement").unlink()
    asked = ["ffkv", "causes", "results/demo", "configs/prompts/agreement.jsonl"]
    asked += ["--candidates", "10", "--effect-prompts", "20", "--output", "reports/agreement"]
    assert [command for command in calls(folder) if "causes" in command] == [asked] == calls(folder)[-1:]
    page_of("agreement").write_text(PAGE)
    assert not [command for command in calls(folder) if "causes" in command]


def test_a_report_is_described_with_date_version_and_size(folder):
    text = describe(SHOWN[0])
    assert "![The first screen of reports/demo/index.html](../report.png)" in text
    assert "Made on 14 November 2023 by ffkv 1.2.3+gabc." in text
    packed = packed_size(Path("reports/demo"))
    assert 100 < packed < 1000 and f"- `reports/demo/index.html` ({in_bytes(packed)} compressed)" in text
    assert "memories" not in text  # there are none yet
    Path("reports/demo/memories").mkdir()
    Path("reports/demo/memories/index.html").write_text(PAGE)
    packed = packed_size(Path("reports/demo/memories"))
    assert f"- pages of memories: `reports/demo/memories/` ({in_bytes(packed)} compressed)" in describe(SHOWN[0])


def test_a_browser_that_takes_no_picture_is_told(folder):
    with pytest.raises(RuntimeError, match=r"took no picture of reports/demo/index\.html"):
        take_picture(page_of("demo"), Path("docs/report.png"), "true")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian's package: chromium)")
def test_a_picture_is_the_first_screen_of_its_page(folder):
    take_picture(page_of("demo"), Path("docs/report.png"), CHROMIUM)
    data = Path("docs/report.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (gallery.WIDTH, gallery.HEIGHT)
    assert [path.name for path in Path("docs").glob("*.png")] == ["report.png"]


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium (Debian's package: chromium)")
def test_a_picture_of_a_figure_shows_nothing_else(tmp_path):
    """The figure is green, and everything else red."""
    box = "<div style='height: 100px; background: rgb({})'>{}</div>"
    red, green = box.format("255, 0, 0", "other"), box.format("0, 255, 0", "")
    figures = (
        f"<section>{red}<figure id='other'>{red}</figure><figure id='one' style='margin: 0'>{green}</figure></section>"
    )
    (tmp_path / "index.html").write_text(
        f"<head></head><body style='margin: 0'><header>{red}</header><main>{figures}</main>"
    )
    take_figure(tmp_path / "index.html", "one", tmp_path / "one.png", CHROMIUM, 120)
    picture = imread(tmp_path / "one.png")[..., :3]  # [row, column, colour], from 0 to 1
    assert picture.shape == (120, gallery.WIDTH, 3)
    assert (picture[:100] == (0, 1, 0)).all() and (picture[100:] == 1).all()


def test_the_readme_is_kept_above_its_mark_and_written_below(folder, monkeypatch):
    GALLERY.write_text(f"# Gallery\n\nWords.\n\n{MARK}\n\nold\n")
    taken = []
    monkeypatch.setattr(gallery, "take_picture", lambda page, picture, browser: taken.append(str(picture)))
    monkeypatch.setattr(gallery, "take_figure", lambda page, name, picture, *_: taken.append(str(picture)))
    monkeypatch.setattr(gallery.shutil, "which", lambda _: "chromium")
    monkeypatch.setattr(gallery.sys, "argv", ["gallery", "--pictures"])
    gallery.main()
    figures = {"agreement": ["docs/behaviours.png"], "comparisons/training": ["docs/training.png"]}
    assert taken == [path for one in SHOWN for path in (f"docs/{one.picture}", *figures.get(one.name, []))]
    text = GALLERY.read_text()
    assert text.startswith(f"# Gallery\n\nWords.\n\n{MARK}\n\n## ") and "old" not in text
    assert re.findall(r"^## (.*)", text, re.M) == [shown.title for shown in SHOWN]


def test_what_is_said_of_a_report_that_is_not_there_stays(folder, monkeypatch):
    page_of("demo").unlink()
    demo, control = f"## {SHOWN[0].title}\n\nA picture.\n\n- a page\n", f"## {SHOWN[1].title}\n\nold\n"
    GALLERY.write_text(f"# Gallery\n\n{MARK}\n\n{demo}\n{control}")
    monkeypatch.setattr(gallery, "take_picture", lambda *_: None)
    monkeypatch.setattr(gallery, "take_figure", lambda *_: None)
    monkeypatch.setattr(gallery.shutil, "which", lambda _: "chromium")
    monkeypatch.setattr(gallery.sys, "argv", ["gallery", "--pictures"])
    gallery.main()
    text = GALLERY.read_text()
    assert f"{MARK}\n\n{demo}\n## {SHOWN[1].title}\n\n![" in text and "old" not in text
    gallery.main()
    assert GALLERY.read_text() == text


def test_the_readme_of_the_clone_has_the_mark_and_pictures_that_are_there():
    text = (ROOT / GALLERY).read_text()
    assert text.count(MARK) == 1
    for link in re.findall(r"!\[[^]]*\]\((\S+)\)", text):
        assert (ROOT / GALLERY.parent / link).is_file(), link
