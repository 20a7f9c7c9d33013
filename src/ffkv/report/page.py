"""The report as one HTML file that opens from disk, without scripts and without network."""

from importlib.resources import files

import jinja2
from markupsafe import Markup

from ffkv.report.cards import make_cards
from ffkv.report.facts import facts
from ffkv.report.sections import Exhibit, arrange, of_section
from ffkv.report.summary import summary
from ffkv.results.run import Run
from ffkv.results.text import visible


def render(run: Run, exhibits: dict[str, Exhibit]) -> str:
    """Writes the page.

    Args:
        run: the run.
        exhibits: its figures by name, from `draw_exhibits`.
    Returns:
        The HTML text.
    Raises:
        UserError: a file of the run is missing, damaged, or of another model, tokenizer or corpus.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ffkv.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["visible"] = visible
    return environment.get_template("page.html").render(
        run=run,
        sections=arrange(run, exhibits),
        run_exhibits=of_section("run", exhibits),
        facts=facts(run),
        summary=summary(run),
        cards=make_cards(run),
        style=Markup(files("ffkv.report").joinpath("style.css").read_text()),
        settings=run.settings.model_dump_json(indent=2).splitlines(),
    )
