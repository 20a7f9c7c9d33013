"""Everything that people do with a finished run: its report, a comparison, the explorer, exports, annotation."""

import re
import shutil
from pathlib import Path

import pytest
from support import draw_nothing

import ffkv
import ffkv_annotation
import ffkv_comparison
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.files.atomic import atomic
from ffkv.base.settings import Comparison
from ffkv.run.annotation_tables import TABLES
from ffkv.run.export.settings import FORMATS, Export
from ffkv.run.export.step import export
from ffkv.run.results.memory_name import memory_name
from ffkv_comparison.comparison_file import write_comparison
from ffkv_comparison.page import write_page
from ffkv_explorer.shelf import open_shelf
from tests.ffkv_explorer.conftest import Visitor

LABELS = ["costs $5 and $6", r"$$ \foo$"]  # of the two runs of a comparison
SHOWN = 3  # memories per layer whose pages are asked for


def show_all(folder: Path, other: Path | None = None) -> list[str]:
    """Shows the run in `folder`, in `results`, in every way. `other`: a run that it is compared with; None for a copy.

    Returns:
        What refused to show it, as a sentence.
    """
    top, refused = folder.parents[1], []
    if other is None:
        other = folder.with_name("again")
        shutil.copytree(folder, other)

    def attempt(show, *arguments, **options):
        try:
            return show(*arguments, **options)
        except UserError as error:
            refused.append(str(error))
            return None

    runs, depths = [folder.name, other.name], {len(ffkv.open(each).anatomy.layers) for each in (folder, other)}
    with pytest.MonkeyPatch.context() as patch:
        if len(depths) == 1:  # the figures are drawn below, with more in them
            draw_nothing(patch)
        attempt(ffkv.write_report, ffkv.open(folder), top / "reports" / folder.name / "index.html")
        attempt(compare, [folder, other], Comparison(runs=runs, memories="by_number", labels=LABELS), top / "number")
    by_correlation = Comparison(runs=runs, memories="by_correlation", labels=LABELS)
    attempt(compare, [folder, other], by_correlation, top / "correlation")
    attempt(annotate, folder, top / "annotations" / folder.name)
    settings = ffkv.open(folder).settings
    with atomic(folder / "settings.json") as path:  # the report of an annotated run, beside a control
        controlled = settings.report.model_copy(update={"control": other.name})
        path.write_text(settings.model_copy(update={"report": controlled}).model_dump_json())
    attempt(ffkv.write_report, ffkv.open(folder), top / "reports" / folder.name / "index.html")
    for page in (top / "reports" / folder.name / "index.html", top / "correlation" / "index.html"):
        if page.exists():
            assert_no_nan(page.read_text())
    for name in FORMATS:
        attempt(export, ffkv.open(folder), name, top / "exported" / name, Export(), "cpu")
    visit(folder, other)
    return refused


def compare(folders: list[Path], settings: Comparison, output: Path) -> None:
    """Measures a comparison and writes its report."""
    found = ffkv_comparison.compare_runs(folders, settings, "both", 0)
    write_comparison(found, output)
    write_page(found, output / "index.html")


def annotate(folder: Path, annotations: Path) -> None:
    """Makes sheets, and measures the agreement of people of whom nobody has said anything."""
    run = ffkv.open(folder)
    ffkv_annotation.make_sheets(run, annotations, ffkv_annotation.Sheets(annotators=["anna"]))
    found = ffkv_annotation.compare_annotators(run, annotations)
    for table in TABLES:
        tables.write(found[table.name], folder / table.path)


def visit(folder: Path, other: Path) -> None:
    """Asks the explorer for a page of every kind."""
    visitor = Visitor(open_shelf([folder, other]))
    run = ffkv.open(folder)
    name = folder.name
    pages = [
        "/",
        f"/r/{name}/",
        f"/r/{name}/memories",
        f"/r/{name}/memories?text=w1&pattern=w1",
        "/annotate",
        f"/r/{name}/trace?prompt=w1+w2",
    ]
    pages += [f"/r/{name}/memories?format={form}" for form in ("json", "csv")]
    pages += [f"/compare?a={name}&b={other.name}&memory={memory_name(0, 0)}"]
    for layer, size in enumerate(layer.memories for layer in run.anatomy.layers):
        for memory in range(min(size, SHOWN)):
            pages += [f"/r/{name}/m/{layer}/{memory}{end}" for end in ("", "?colours=1", "?every=1", "/similar")]
    for page in pages:
        answer = visitor.client.get(page)
        assert answer.status_code < 500, (page, answer.text[-3000:])
        assert_no_nan(answer.text)


def assert_no_nan(page: str) -> None:
    """No number of a page is NaN: where there is none, it has a dash."""
    words = re.sub(r"<(style|script|svg|pre)\b[\s\S]*?</\1>|<[^>]*>", " ", page)
    found = re.search(r"\b(nan|NaN|inf)\b", words)
    assert not found, words[max(0, found.start() - 200) : found.end() + 50]
