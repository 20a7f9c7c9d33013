"""The sections of the page: their words, their figures and their tables."""

from dataclasses import dataclass, field, replace

from markupsafe import Markup

from ffkv.run.report import drawing
from ffkv.run.report.control import describe_control, draw_control
from ffkv.run.report.figure import Caption, paper_numbers
from ffkv.run.report.page_tables import (
    PageTable,
    agreement_of_annotators,
    data_table,
    prediction_changes,
    predictive_values,
    scores_of_machines,
    specific_effects,
)
from ffkv.run.report.registry import FIGURES, load_figure
from ffkv.run.report.wording import course
from ffkv.run.results.run import Run
from ffkv.run.results.text import percent, visible

# Section: its heading and its introduction. The section "run" also has the facts of the run, and is written apart.
SECTIONS = {
    "keys": (
        "Keys",
        "A key is a row of the first matrix of a feed-forward layer. Its memory coefficient says how strongly a prefix "
        "matches the key. The trigger examples of a key are the prefixes of the train split that match it most strongly.",
    ),
    "values": (
        "Values",
        "A value is a row of the second matrix of a feed-forward layer. It is a vector in the space of the residual "
        "stream, so that the model's head turns it into a distribution over the vocabulary.",
    ),
    "composition": (
        "Composition",
        "The output of a layer is the sum of its values, each multiplied by its memory coefficient. These figures ask how "
        "many memories contribute, and whether the sum predicts what one of them predicts.",
    ),
    "refinement": (
        "Refinement",
        "Each block adds to the residual stream. These figures ask at which layer the stream holds the model's "
        "prediction, and how the feed-forward layer changes it.",
    ),
    "intervention": (
        "Interventions",
        "All figures above show what happens together. Here coefficients are changed while the model runs, so that the "
        "figures show what memories cause. A memory that is removed takes some probability from the tokens that its value "
        "promotes. The question is whether it takes more than any other change of the same size.",
    ),
}
NO_PRECISION = "The model runs in {dtype}. What that does to trigger examples was not measured: keys.precision is off."
PRECISION = (
    "The coefficients of the sampled keys' trigger examples were computed again in float32, with the same weights "
    "({dtype}). The table shows the error of the coefficients relative to themselves, the share of keys whose first "
    "trigger example remains the first, and the share of trigger examples in the upper half of a key's list that remain "
    "there. It does not show the effect of rounding the weights themselves."
)
PREDICTIVE = (
    "The {count} values with the highest probability of their top token. The table shows how many of a key's trigger "
    "examples are followed by this token. It also shows the strongest of these examples, or the strongest of all "
    "examples if none of them is followed by the token. Of the 100 such values of the paper, 97 were in its upper six layers, "
    "and 46 had such an example. “Contribution” is the length of what the memory typically adds to the residual stream: its "
    "mean coefficient over its trigger examples times the length of the value."
)
MANY_FIRST_TOKENS = 0.1  # share of a layer's trigger examples that have one token alone, above which the page warns
CHANGES = (
    "A random sample of the validation prefixes in which the last feed-forward layer changes the residual's prediction. "
    "The cosine compares the output embeddings of both tokens. “Closer than” is the share of random pairs of tokens that "
    "have a lower cosine. In the paper, 66 of 100 such changes were judged to be changes to an unrelated word."
)

AGREEMENT = (
    "How far annotators agree about the same keys. Prefixes: whether both give a prefix the same category of figure 2. Patterns: "
    "how many prefixes the patterns of both share, of those that either has (Jaccard index, patterns matched one to one). “Raw” is "
    "the share of equal judgements. Kappa and alpha are 0 if annotators agree as often as by chance, and 1 if they always agree. "
    "The interval is of a bootstrap over keys. People and machines saw neither the layer nor the memory, and some of their keys "
    "were random prefixes."
)
MACHINES = (
    "How good the labels are by which language models explain memories. A label is made from some trigger examples of a memory, "
    "and scored on others, beside prefixes on which the memory is silent. Detection and fuzzing: the mean of the shares of both "
    "kinds that were told rightly. Of “the same word”, both kinds end with the same word. Simulation: the correlation of expected "
    "and true coefficients. Intruder: the share of sets in which the silent prefix was found, without a label. The interval is "
    "of a bootstrap over memories."
)
SPECIFIC = (
    "The memories with the largest specific effects. “Own” is the total effect of the removal on the top tokens of the value. "
    "“Others” is the mean effect of vectors of the same length along other memories of the layer. The specific effect is the "
    "difference. “q” is the p-value of the removal among these controls, adjusted for all memories of the layer. “Changed” is "
    "the share of prefixes in which the model then predicts another token."
)


@dataclass(frozen=True)
class Exhibit:
    """A figure with everything that belongs to it.

    Attributes:
        name: the figure's name, such as "figure_4".
        heading: number and title, such as "Figure 4. Agreement ...". A figure that is not in the paper has no number.
        caption: the words below the figure.
        svg: the drawing.
        tables: the tables that the figure shows.
    """

    name: str
    heading: str
    caption: Caption
    svg: Markup
    tables: list[PageTable]


@dataclass(frozen=True)
class TableBlock:
    """Tables between the figures of a section.

    Attributes:
        anchor: id of the heading; "" where there is none.
        heading: the heading; "" where there is none.
        text: a paragraph; "" where there is none.
        table: a table whose first rows are open; None where there is none.
        folded: tables that the reader opens: what each of them shows, and the table.
    """

    anchor: str = ""
    heading: str = ""
    text: str = ""
    table: PageTable | None = None
    folded: list[tuple[str, PageTable]] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """A section of the page: words, tables, figures, tables.

    Attributes:
        name: id of the section.
        heading: the heading.
        introduction: the paragraph below the heading.
        exhibits: the figures.
        before: the tables above the figures.
        after: the tables below the figures.
    """

    name: str
    heading: str
    introduction: str
    exhibits: list[Exhibit]
    before: list[TableBlock]
    after: list[TableBlock]


def draw_exhibits(run: Run, control: Run | None = None) -> dict[str, Exhibit]:
    """Draws the figures that the run has, in the order of the registry: name to figure. A control run is drawn in grey."""
    paper = paper_numbers() if run.settings.report.paper_curves else {}
    exhibits = {}
    with drawing.look():
        for name in FIGURES:
            figure = load_figure(name)
            if not figure.applies(run):
                continue
            heading, caption = heading_of(name), figure.caption(run)
            drawn = figure.draw(run, paper.get(name))
            if control is not None and figure.applies(control) and draw_control(drawn, figure.curves, control):
                caption = replace(caption, text=f"{caption.text} {describe_control(control)}")
            svg = drawing.svg(drawn, name, heading, caption.description)
            more = [table for table in figure.more_tables if table in run.tables]
            tables = [data_table(run, table) for table in [*figure.tables, *more]]
            exhibits[name] = Exhibit(name, heading, caption, Markup(svg), tables)
    return exhibits


def heading_of(name: str) -> str:
    """Number and title of a figure."""
    number = name.replace("figure_", "Figure ") + ". " if name.startswith("figure_") else ""
    return number + FIGURES[name].title


def arrange(run: Run, exhibits: dict[str, Exhibit]) -> list[Section]:
    """The sections of the page that have figures in this run, but for the run's own."""
    before = {"keys": _key_tables}
    after = {"keys": _agreement, "values": _predictive, "refinement": _changes, "intervention": _specific}
    return [
        Section(name, *words, shown, *(tables[name](run) if name in tables else [] for tables in (before, after)))
        for name, words in SECTIONS.items()
        if (shown := of_section(name, exhibits))
    ]


def of_section(section: str, exhibits: dict[str, Exhibit]) -> list[Exhibit]:
    """The figures of one section."""
    return [exhibit for name, exhibit in exhibits.items() if FIGURES[name].section == section]


def _key_tables(run: Run) -> list[TableBlock]:
    activity = [("How often keys fire, per layer", data_table(run, "activity"))]
    blocks = [TableBlock(text=describe_first_tokens(run), folded=activity)]
    if "precision" in run.tables:
        folded = [("Effect of the weights' type on trigger examples, per layer", data_table(run, "precision"))]
        blocks.append(TableBlock(text=PRECISION.format(dtype=run.anatomy.dtype), folded=folded))
    elif run.settings.model.dtype != "float32":
        blocks.append(TableBlock(text=NO_PRECISION.format(dtype=run.anatomy.dtype)))
    return blocks


def describe_first_tokens(run: Run) -> Markup:
    """Says how many trigger examples have one token alone, and warns if these are many."""
    activity = run.table("activity")
    many = activity[activity["one_token"] > MANY_FIRST_TOKENS]
    text = f"Trigger examples of one token alone: {course(activity, 'one_token')}."
    if len(many):
        layers = ", ".join(map(str, many["layer"]))
        text += (
            f" Warning: they are more than {percent(MANY_FIRST_TOKENS)} in layer{'s' * (len(many) > 1)} {layers}. Many"
            " models treat the first position apart, whatever token is there. Then these keys detect the position, not"
            " the word."
        )
    return Markup("{} {}").format(text, visible(run.files.corpora["train"]["beginning"]))


def _predictive(run: Run) -> list[TableBlock]:
    table = predictive_values(run)
    folded = [
        ("Number of these values per layer", data_table(run, "table_2_predictive_layers")),
        ("All columns", data_table(run, "table_2_predictive_values")),
    ]
    text = PREDICTIVE.format(count=len(table.rows))
    return [TableBlock("predictive", "Table 2. Predictive values", text, table, folded)]


def _specific(run: Run) -> list[TableBlock]:
    folded = [("All columns", data_table(run, "intervention_memories"))]
    return [
        TableBlock("specific", "Memories with the largest specific effects", SPECIFIC, specific_effects(run), folded)
    ]


def _agreement(run: Run) -> list[TableBlock]:
    """How far annotators agree, and how good the labels of machines are, if there are any."""
    found = []
    if "agreement" in run.tables and len(run.table("agreement")):
        folded = [("All columns", data_table(run, "agreement"))]
        table = agreement_of_annotators(run)
        found.append(TableBlock("agreement", "Agreement between annotators", AGREEMENT, table, folded))
    if "machine_scores_by_layer" in run.tables and len(run.table("machine_scores_by_layer")):
        folded = [("All columns", data_table(run, "machine_scores_by_layer"))]
        found.append(TableBlock("machines", "Labels of machines", MACHINES, scores_of_machines(run), folded))
    return found


def _changes(run: Run) -> list[TableBlock]:
    folded = [("All columns", data_table(run, "prediction_changes"))]
    if "related_changes" in run.tables and len(run.table("related_changes")):
        folded.append(("Related changes, by annotator", data_table(run, "related_changes")))
    return [TableBlock("changes", "Changes in the last layer", CHANGES, prediction_changes(run), folded)]
