"""The reports of comparisons of open runs, with links to the memories."""

import json
from pathlib import Path

from ffkv.apps.explorer.shelf import Shelf
from ffkv.base.errors import UserError
from ffkv.run.comparison.comparison_file import FACTS
from ffkv.run.comparison.links import with_links


def find_comparisons(shelf: Shelf) -> dict[str, tuple[Path, str, str]]:
    """Finds the comparisons whose first and last run are open, as far as the workflow has written their reports.

    Returns:
        Name of a comparison: its report, and the names of the first and of the last run in the explorer.
    """
    found: dict[str, tuple[Path, str, str]] = {}
    opened = {held.run.folder.resolve(): name for name, held in shelf.runs.items()}
    for results in sorted({folder.parent for folder in opened}):
        for facts in sorted(results.glob(f"comparisons/*/tables/{FACTS}")):
            name = facts.parents[1].name
            runs = [opened.get(results / run) for run in _runs_of(facts)]
            page = results.parent / "reports/comparisons" / name / "index.html"
            if runs and runs[0] is not None and runs[-1] is not None and page.is_file():
                found.setdefault(name, (page, runs[0], runs[-1]))
    return found


def _runs_of(facts: Path) -> list[str]:
    """Returns the runs of a comparison; none if its file is damaged, which `ffkv comparison report` tells."""
    try:
        return list(json.loads(facts.read_text())["settings"]["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def comparison(shelf: Shelf, name: str) -> str:
    """Returns the report of a comparison as HTML. Memories lead to their pages in the first and the last run.

    Raises UserError if there is no such comparison, or its runs are not open.
    """
    found = find_comparisons(shelf)
    if name not in found:
        raise UserError(
            "There is no comparison of this name whose first and last run are open and whose report is written."
        )
    page, first, last = found[name]
    return with_links(page.read_text(encoding="utf-8"), first, last)
