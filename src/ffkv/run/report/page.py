"""The report as one HTML file that opens from disk, without scripts and without network."""

import functools
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from ffkv.run.report.cards import make_cards
from ffkv.run.report.facts import facts
from ffkv.run.report.page_tables import linked
from ffkv.run.report.section import Exhibit
from ffkv.run.report.sections import arrange, of_section
from ffkv.run.report.summary import summary
from ffkv.run.report.templates import make_environment
from ffkv.run.results.run import Run


def render(run: Run, exhibits: dict[str, Exhibit], control: Run | None = None, pages: Collection[str] = ()) -> str:
    """Writes the page of a run with its figures, from `draw_exhibits`, as HTML.

    control: the control run, with which the summary compares the run.
    pages: names of the memories that have a page of their own in the folder `memories` beside this one.
    """
    environment, cards = make_environment(("ffkv.run.report", ".")), make_cards(run)
    environment.filters["linked"] = functools.partial(linked, pages=pages, cards={card.memory.name for card in cards})
    return environment.get_template("page.html").render(
        run=run,
        # A folder has a long path, which the facts show.
        model=run.anatomy.checkpoint if run.anatomy.commit else Path(run.anatomy.checkpoint).name,
        sections=arrange(run, exhibits),
        run_exhibits=of_section("run", exhibits),
        facts=facts(run),
        summary=summary(run, control),
        cards=cards,
        pages=pages,
        style=Markup(files("ffkv.run.report").joinpath("style.css").read_text()),
        settings=run.settings.model_dump_json(indent=2).splitlines(),
    )
