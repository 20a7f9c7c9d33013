"""The report as one HTML file that opens from disk: no script, no network."""

import base64
from dataclasses import dataclass
from importlib.resources import files

import jinja2
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from ffkv.report import captions, drawing, figures
from ffkv.report.cards import cards
from ffkv.report.facts import facts
from ffkv.report.results import PRECISION, TRAINING, Results, paper_figures
from ffkv.report.summary import summary
from ffkv.report.text import ending, number, percent, token, visible

LONGEST = 160  # characters of a prefix that a table shows; of a longer one its end

# What stands behind each figure.
DATA = {
    "figure_2": ("keys/categories", "keys/patterns"),
    "figure_3": ("keys/removal",),
    "figure_4": ("values/agreement",),
    "figure_5": ("values/rank",),
    "figure_6": ("values/probability",),
    "figure_7": ("composition/active", "composition/effective"),
    "figure_8": ("composition/agreement", "composition/cases"),
    "figure_9": ("refinement/residual",),
    "figure_10": ("refinement/probability",),
    "figure_11": ("refinement/breakdown",),
    "training": (TRAINING,),
}


@dataclass(frozen=True)
class Table:
    """A table as the page shows it: rows of cells, which columns are numbers, and its file to take away."""

    name: str
    headers: list[str]
    numeric: list[bool]
    rows: list[list[Markup | str]]
    href: str

    @property
    def file(self) -> str:
        """The name under which the table is saved."""
        return self.name.replace("/", "_") + ".csv"


@dataclass(frozen=True)
class Exhibit:
    """A figure with all that belongs to it. number: "Figure 4", or nothing for a figure that the paper has not."""

    name: str
    number: str
    caption: captions.Caption
    svg: Markup
    tables: list[Table]


def table(results: Results, name: str) -> Table:
    """A table for the page, its layers counted from 1."""
    frame = results.tables[name]
    numeric = [pd.api.types.is_numeric_dtype(frame[column]) for column in frame]
    return Table(
        name=name,
        headers=[column.replace("_", " ") for column in frame],
        numeric=numeric,
        rows=[[_cell(column, value) for column, value in zip(frame, row)] for row in frame.itertuples(index=False)],
        href="data:text/csv;charset=utf-8;base64," + base64.b64encode(results.csv(name)).decode(),
    )


def predictive(results: Results) -> Table:
    """The surest values with their predictions and an example (table 2)."""
    rows = [
        [
            str(row.layer + 1),
            str(row.memory),
            chip(row.token),
            percent(row.top_probability),
            f"{row.matching} of {row.triggers}",
            Markup("{} {}").format(ending(row.prefix, LONGEST), chip(row.next_token)) if row.next_token else "",
        ]
        for row in results.tables["values/predictive"].itertuples()
    ]
    headers = ["layer", "memory", "prediction", "probability", "followed by it", "trigger example and its next token"]
    return Table("values/predictive", headers, [True, True, False, True, True, False], rows, "")


def changes(results: Results) -> Table:
    """The sampled changes of prediction in the last layer."""
    rows = [
        [
            Markup("{} {}").format(ending(row.text, LONGEST), chip(row.next_token)),
            Markup("{} → {}").format(chip(row.residual_token), chip(row.output_token)),
            "–" if pd.isna(row.cosine) else f"{row.cosine:.2f}",
            percent(row.cosine_percentile),
        ]
        for row in results.tables["refinement/changes"].itertuples()
    ]
    headers = ["prefix and its next token", "residual → block output", "cosine", "closer than"]
    return Table("refinement/changes", headers, [False, False, True, True], rows, "")


def chip(text: str) -> Markup:
    """A token set off from the text around it."""
    return Markup('<span class="token">{}</span>').format(token(text))


def _cell(column: str, value: object) -> Markup | str:
    if column == "layer":
        return str(value + 1) if value >= 0 else "all"
    if isinstance(value, str):
        return token(value) if "token" in column else visible(value)
    return number(value)


def exhibits(results: Results) -> dict[str, Exhibit]:
    """All figures with their words and tables, by name."""
    found = {}
    with drawing.look():
        for name, figure in drawn(results).items():
            caption = getattr(captions, name)(results)
            number = name.replace("figure_", "Figure ") if name.startswith("figure_") else ""
            svg = drawing.svg(figure, name, f"{number}. {caption.title}".lstrip(". "), caption.description)
            found[name] = Exhibit(name, number, caption, Markup(svg), [table(results, each) for each in DATA[name]])
    return found


def drawn(results: Results) -> dict[str, Figure]:
    """Every figure from its tables, with the paper's numbers where they are wanted."""
    tables, paper = results.tables, paper_figures() if results.settings.report.paper_curves else {}
    found = {
        "figure_2": figures.figure_2(tables["keys/categories"], paper.get("figure_2")),
        "figure_3": figures.figure_3(tables["keys/removal"], paper.get("figure_3")),
        "figure_4": figures.figure_4(tables["values/agreement"], paper.get("figure_4")),
        "figure_5": figures.figure_5(tables["values/rank"], results.anatomy.vocabulary),
        "figure_6": figures.figure_6(tables["values/probability"], paper.get("figure_6")),
        "figure_7": figures.figure_7(
            tables["composition/active"], tables["composition/effective"], paper.get("figure_7")
        ),
        "figure_8": figures.figure_8(tables["composition/agreement"], paper.get("figure_8")),
        "figure_9": figures.figure_9(tables["refinement/residual"], paper.get("figure_9")),
        "figure_10": figures.figure_10(tables["refinement/probability"], paper.get("figure_10")),
        "figure_11": figures.figure_11(tables["refinement/breakdown"], paper.get("figure_11")),
    }
    return {**found, "training": figures.training(tables[TRAINING])} if TRAINING in tables else found


def render(results: Results, shown: dict[str, Exhibit]) -> str:
    """The whole page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ffkv.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["visible"] = visible
    return environment.get_template("page.html").render(
        results=results,
        exhibits=shown,
        facts=facts(results),
        summary=summary(results),
        predictive=predictive(results),
        predictive_data=table(results, "values/predictive"),
        predictive_layers=table(results, "values/predictive_layers"),
        activity=table(results, "keys/activity"),
        precision=table(results, PRECISION) if PRECISION in results.tables else None,
        changes=changes(results),
        changes_data=table(results, "refinement/changes"),
        cards=cards(results),
        style=Markup(files("ffkv.report").joinpath("style.css").read_text()),
        settings=results.settings.model_dump_json(indent=2).splitlines(),
    )
