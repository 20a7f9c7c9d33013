"""The report as one HTML file that opens from disk, without scripts and without network."""

from collections.abc import Collection
from importlib.resources import files

import jinja2
from markupsafe import Markup

from ffkv.report.cards import make_cards
from ffkv.report.facts import facts
from ffkv.report.sections import Exhibit, arrange, of_section
from ffkv.report.summary import summary
from ffkv.report.text import MINUS, signed
from ffkv.results.run import Run
from ffkv.results.text import ending, percent, shortened, token, visible
from ffkv.terminal import plain


def render(run: Run, exhibits: dict[str, Exhibit], pages: Collection[str] = ()) -> str:
    """Writes the page of a run with its figures, from `draw_exhibits`, as HTML.

    pages: names of the memories that have a page of their own in the folder `memories` beside this one.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ffkv.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"visible": visible, "token": token, "ending": ending, "percent": percent, "signed": signed}
    environment.filters |= {"plain": plain, "shortened": shortened}
    return environment.get_template("page.html").render(
        run=run,
        sections=arrange(run, exhibits),
        run_exhibits=of_section("run", exhibits),
        facts=facts(run),
        summary=summary(run),
        cards=make_cards(run),
        pages=pages,
        signs={1: "+", -1: MINUS, 0: ""},
        style=Markup(files("ffkv.report").joinpath("style.css").read_text()),
        settings=run.settings.model_dump_json(indent=2).splitlines(),
    )
