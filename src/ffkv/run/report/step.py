"""The report of a run: one HTML file that opens from disk, without scripts and without network, and a file per figure."""

import functools
from collections.abc import Collection, Sequence
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.base.lookup import find
from ffkv.run.report.cards import make_cards
from ffkv.run.report.claims import Judged, as_table, judge_claims
from ffkv.run.report.control import open_control
from ffkv.run.report.facts import facts
from ffkv.run.report.overview import model_name, overview_svg, read_line, rows_of_claims
from ffkv.run.report.page_tables import linked
from ffkv.run.report.section import Exhibit
from ffkv.run.report.sections import arrange, draw_exhibits, of_section, summary
from ffkv.run.report.svg import in_colours_of_page
from ffkv.run.report.templates import make_environment
from ffkv.run.results.expected import expected_files
from ffkv.run.results.run import Run, check_run


def write_report(run: Run, output: Path | str) -> None:
    """Writes the page of a run, and beside it `verdicts.csv` and each figure as an SVG file in the folder `figures`.

    Cards and tables link to the pages of memories, if `ffkv explore --export` wrote some into the folder `memories`
    beside the page. A memory in a table that has no page leads to its card. The control run of the setting
    `report.control` is drawn in grey; its folder is beside that of the run.

    Args:
        run: the run, from `ffkv.open`.
        output: the HTML file to write.
    Raises:
        UserError: a file of the run is missing, damaged, or of another model, tokenizer or corpus. Nothing is written.
    Examples:
        >>> ffkv.write_report(ffkv.open("results/tiny"), "reports/index.html")
    """
    check_run(run)
    control = open_control(run)
    for each in (run, control) if control else (run,):
        needed = [Path(name) for name in expected_files(each.settings) if name.endswith(".csv")]
        if missing := [str(table) for table in needed if table.stem not in each.tables]:
            raise UserError(
                f"{each.folder} has no {', '.join(missing)}, which the report shows. The run was made before ffkv wrote"
                " this, or is not finished. Run `snakemake` again, with the options of the run: it makes what is missing."
            )
    exhibits, judged = draw_exhibits(run, control), judge_claims(run, control)
    page = render(run, exhibits, judged, control, [page.stem for page in find(Path(output).parent, "memories/*.html")])
    for name, exhibit in exhibits.items():
        with atomic(Path(output).parent / "figures" / f"{name}.svg", summed=False) as temporary:
            temporary.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{exhibit.svg}', encoding="utf-8")
    with atomic(Path(output).parent / "verdicts.csv", summed=False) as temporary:
        as_table(judged).to_csv(temporary, index=False)
    with atomic(Path(output), summed=False) as temporary:
        temporary.write_text(page, encoding="utf-8")


def render(
    run: Run,
    exhibits: dict[str, Exhibit],
    judged: Sequence[Judged],
    control: Run | None = None,
    pages: Collection[str] = (),
) -> str:
    """Writes the page of a run with its figures, from `draw_exhibits`, and claims, from `judge_claims`, as HTML.

    control: the control run, with which the summary compares the run.
    pages: names of the memories that have a page of their own in the folder `memories` beside this one.
    """
    environment, cards = make_environment(("ffkv.run.report", ".")), make_cards(run)
    environment.filters["linked"] = functools.partial(linked, pages=pages, cards={card.memory.name for card in cards})
    return environment.get_template("page.html").render(
        run=run,
        model=model_name(run),
        read=read_line(run),
        claims=rows_of_claims(judged, run),
        overview=Markup(in_colours_of_page(overview_svg(judged, run, control))),
        sections=arrange(run, exhibits),
        run_exhibits=of_section("run", exhibits),
        facts=facts(run),
        summary=summary(run, control),
        cards=cards,
        pages=pages,
        style=Markup(files("ffkv.run.report").joinpath("style.css").read_text(encoding="utf-8")),
        settings=run.settings.model_dump_json(indent=2).splitlines(),
    )
