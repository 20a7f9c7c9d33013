"""`make gallery`: the reports that docs/gallery shows, their pictures, and its README. Only reports that are missing are made.

    python -m tools.gallery --max-threads 2
    python -m tools.gallery --pictures            # of the reports that are there; README.md follows

Pages stay in `reports/`, which git ignores: together they are larger than the 1 MB that a repository should hold. The README says how large.
"""

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ffkv.base.terminal import in_bytes

GALLERY = Path("docs/gallery/README.md")
MARK = "<!-- Below this line all is written by `make gallery`. -->"
WIDTH, HEIGHT = 990, 766  # pixels of a picture: the first screen of a small window
WRITTEN_BY = re.compile(r"ffkv that wrote this page</th><td>([^<]+)<")  # in each report of a run


class Shown(NamedTuple):
    """A report of the gallery."""

    name: str  # its folder below reports/
    picture: str  # below docs/
    title: str
    settings: str = "config.yaml"  # the settings file that makes it
    memories: str = ""  # the run whose memories have pages
    figure: tuple[str, str, int] | None = None  # a figure that another page shows: name, picture below docs/, height
    asked: tuple[str, ...] = ()  # the run, the file of prompts, and options, of which `ffkv causes` makes the page


SHOWN = (
    Shown("demo", "report.png", "SmolLM2-135M-Instruct on articles of Wikipedia", memories="demo"),
    Shown("demo-untrained", "gallery/untrained.png", "Its untrained control", memories="demo-untrained"),
    Shown(
        "agreement",
        "gallery/agreement.png",
        "Which memories of SmolLM2 make verbs agree",
        figure=("behaviour_layers", "behaviours.png", 560),
        # at their defaults, candidates and prompts give five times as many exact effects
        asked=("demo", "configs/prompts/agreement.jsonl", "--candidates", "10", "--effect-prompts", "20"),
    ),
    Shown(
        "comparisons/training",
        "gallery/training.png",
        "Five steps of the training of a small model",
        "configs/training.yaml",
        memories="step-400",
        figure=("formation", "training.png", 576),
    ),
    Shown(
        "comparisons/dictionary",
        "gallery/dictionary.png",
        "A transcoder of one layer, trained for minutes, beside the layer's memories",
        "configs/dictionary.yaml",  # its transcoder is trained by `make dictionary`
        memories="transcoder",
    ),
)


def page_of(name: str) -> Path:
    """Returns the page of a report."""
    return Path("reports", name, "index.html")


def make_reports(max_threads: int, call: Callable[[Sequence[str]], object]) -> None:
    """Makes the reports of the gallery and the pages of their memories, as far as they are missing.

    `call`: starts a command; raises if it fails. A report is made again behind the pages of its memories, to which it then leads.
    """
    for settings in dict.fromkeys(shown.settings for shown in SHOWN):
        own = [shown for shown in SHOWN if shown.settings == settings]
        # Jobs of the small model gain more from each other than from threads.
        threads = "1" if "training" in settings else str(max_threads)
        snakemake = ["snakemake", "--configfile", settings, "--max-threads", threads, "--"]
        pages = [str(page_of(shown.name)) for shown in own if not shown.asked]
        call([*snakemake, *pages])
        new = [
            shown.memories
            for shown in own
            if shown.memories and not Path("reports", shown.memories, "memories").exists()
        ]
        for run in new:
            call(["ffkv", "explore", "--export", f"reports/{run}/memories", f"results/{run}"])
        if new:
            forced = [
                "--forcerun",
                "report",
                *(["comparison_report"] if any("/" in shown.name for shown in own) else []),
            ]
            call([*snakemake[:-1], *forced, "--", *pages])
    for shown in SHOWN:
        if shown.asked and not page_of(shown.name).exists():
            run, *words = shown.asked
            call(["ffkv", "causes", f"results/{run}", *words, "--output", str(page_of(shown.name).parent)])


def take_picture(page: Path, picture: Path, browser: str, height: int = HEIGHT) -> None:
    """Writes the first screen of a page as PNG, in light colours. `browser`: chromium. Raises RuntimeError if it writes none."""
    new = picture.with_suffix(".new.png").absolute()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1"]
    options += [
        f"--window-size={WIDTH},{height}",
        "--blink-settings=preferredColorScheme=1",
        "--virtual-time-budget=5000",
    ]
    done = subprocess.run(
        [browser, *options, f"--screenshot={new}", page.absolute().as_uri()],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if not new.exists():
        raise RuntimeError(f"{browser} took no picture of {page}: {done.stderr[-500:]}")
    new.replace(picture)


def take_figure(page: Path, name: str, picture: Path, browser: str, height: int) -> None:
    """Writes one figure of a page as PNG, by its name. Arguments and errors: see `take_picture`."""
    others = f"body > :not(main), main :not(:has(#{name})):not(#{name}):not(#{name} *)"
    with tempfile.TemporaryDirectory() as folder:
        alone = Path(folder, page.name)
        style = f"{others} {{ display: none; }} main, section, figure {{ margin-top: 0; padding-top: 0; }}"
        text = page.read_text(encoding="utf-8").replace("</head>", f"<style>{style}</style></head>")
        alone.write_text(text, encoding="utf-8")
        take_picture(alone, picture, browser, height)


def packed_size(folder: Path) -> int:
    """Returns the bytes of an archive of a folder."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            file.write(path, path.relative_to(folder))
    return len(archive.getvalue())


def describe(shown: Shown) -> str:
    """Returns what README.md has of a report: its picture, when and with which ffkv it was made, where it is and how large it is."""
    page = page_of(shown.name)
    made = datetime.fromtimestamp(page.stat().st_mtime, UTC)
    # The page of a comparison does not say by which: those of its runs are made with it.
    (version,) = WRITTEN_BY.findall(page_of(shown.memories or shown.name).read_text(encoding="utf-8"))
    place = os.path.relpath(Path("docs", shown.picture), GALLERY.parent)
    lines = [f"## {shown.title}", "", f"![The first screen of {page}]({place})", ""]
    lines.append(f"Made on {made.day} {made:%B %Y} by ffkv {version}. After `make gallery`:")
    folders = {page.parent: f"`{page}`"}
    memories = Path("reports", shown.memories, "memories")
    if shown.memories and memories.exists():
        folders[memories] = f"pages of memories: `{memories}/`"
    sizes = [f"{text} ({in_bytes(packed_size(folder))} compressed)" for folder, text in folders.items()]
    return "\n".join([*lines, "", *(f"- {each}" for each in sizes), ""])


def main() -> None:
    """Makes what is missing, then all pictures and README.md."""
    parser = argparse.ArgumentParser(description="Make the gallery of docs/gallery.")
    parser.add_argument("--max-threads", type=int, default=1, help="Threads of a job.")
    parser.add_argument("--pictures", action="store_true", help="Only take pictures of the reports that are there.")
    options = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("There is no chromium, which takes the pictures (Debian's package: chromium).")
    if not options.pictures:
        make_reports(options.max_threads, lambda command: subprocess.run(command, check=True))
    there = [shown for shown in SHOWN if page_of(shown.name).exists()]
    for shown in there:
        take_picture(page_of(shown.name), Path("docs", shown.picture), browser)
        if shown.figure:
            name, picture, height = shown.figure
            take_figure(page_of(shown.name), name, Path("docs", picture), browser, height)
    head, _, before = GALLERY.read_text(encoding="utf-8").partition(MARK)
    told = {text.partition("\n")[0]: f"## {text.rstrip()}\n" for text in before.split("\n## ")[1:]}
    told |= {shown.title: describe(shown) for shown in there}  # what is said of the others stays, as do their pictures
    texts = [told[shown.title] for shown in SHOWN if shown.title in told]
    GALLERY.write_text("\n".join([f"{head}{MARK}", "", *texts]), encoding="utf-8")


if __name__ == "__main__":
    main()
