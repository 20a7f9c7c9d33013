"""The page as a browser's parser sees it."""

import base64
import hashlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from markupsafe import escape

from ffkv.base.terminal import plain
from ffkv.run.commands import report
from ffkv.run.report.cards import make_cards
from ffkv.run.report.page_tables import PageTable
from ffkv.run.report.registry import FIGURES, load_figure
from ffkv.run.report.wording import make_environment
from ffkv.run.results.text import LONGEST_TOKEN, MINUS, column, ending, percent, shortened, token, visible
from tests.run.report.made_up import TITLE

pytestmark = pytest.mark.slow

PAPER = "https://arxiv.org/abs/2012.14913"  # a link that the reader may follow
VOID = {"meta", "br", "rect", "use"}


class Page(HTMLParser):
    """Every element with its attributes, and all text outside style sheets."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & {*self.open}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def make(folder, output) -> str:
    arguments = f"--results {folder} --output {output}".split()
    outcome = CliRunner().invoke(report, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return output.read_text()


@pytest.fixture(scope="module")
def output(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("reports") / "demo" / "index.html"
    make(folder, path)
    return path


@pytest.fixture(scope="module")
def page(output):
    return Page(output.read_text())


def test_elements_are_closed_in_order(page):
    assert page.open == []


def test_the_page_s_own_script_runs_nothing_else_does_and_nothing_is_fetched(page, output):
    tags = {tag for tag, _ in page.elements}
    (script,) = re.findall("<script>(.*?)</script>", output.read_text(), re.DOTALL)
    assert page.attributes("script") == [{}]
    assert not re.search(r"https?:|fetch|import|XMLHttp|eval|innerHTML|\bopen\(", script)
    assert not tags & {"iframe", "object", "embed", "link", "img", "form", "base", "foreignobject", "image"}
    (policy,) = [each["content"] for each in page.attributes("meta") if "http-equiv" in each]
    assert "default-src 'none'" in policy
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.count("script") == 1 and f"script-src 'sha256-{digest}';" in policy
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "xlink:href", "src", "action", "style", "fill", "clip-path"):
            value = (attributes.get(name) or "").replace(PAPER, "")
            assert "//" not in value.split(",")[0]
            assert "javascript" not in value.lower()
        for name in ("href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:text/csv;", "figures/", PAPER))


def test_style_sheets_fetch_nothing(output):
    for style in re.findall("<style.*?</style>", output.read_text(), re.DOTALL):
        assert "@import" not in style
        assert "http" not in style


def test_hostile_text_is_shown_as_text(page, hostile):
    for text in hostile:
        shown = shortened(text.strip(), LONGEST_TOKEN - 1).removesuffix("…")  # of a token, which may begin with a blank
        for character, spelled in {
            "\u202e": r"\u202e",
            "\u202d": r"\u202d",
            "\x00": r"\x00",
            "\x07": r"\x07",
            "\n": r"\n",
        }.items():
            shown = shown.replace(character, spelled)
        assert shown in page.text
    assert {character for character in page.text if not character.isprintable()} == {"\n", "\u00a0"}


def test_titles_of_the_report_and_of_the_corpus_are_text_too(write, undrawn, tmp_path):
    """That of the corpus is in titles and on the first screen."""
    titles = {"report": {"title": "</title><script>alert(1)</script>", "cards": 0}, "corpus": {"title": "my <text>"}}
    page = Page(make(write(layers=1, **titles), tmp_path / "index.html"))
    assert page.attributes("script") == [{}]  # the page's own
    assert "</title><script>alert(1)</script>" in page.text
    assert page.text.count(" on my <text>") == 2 and "tokens of my <text>." in page.text


def test_links_inside_the_page_have_a_target_and_ids_are_unique(page):
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {each["href"][1:] for each in page.attributes("a") if each["href"].startswith("#")} <= set(ids)


def test_every_figure_has_a_title_and_a_description(page, output):
    figures = [each for each in page.attributes("svg") if "aria-labelledby" in each]
    assert len(figures) - 1 == len(page.attributes("figure")) == len(FIGURES)  # and the overview
    ids = {attributes.get("id") for _, attributes in page.elements}
    for figure in figures:
        assert figure["role"] == "img"
        assert set(figure["aria-labelledby"].split()) <= ids
    for each in page.attributes("svg"):
        assert each in figures or "aria-label" in each or each["aria-hidden"] == "true"
    text = output.read_text()
    assert all(f'<desc id="{name}-description">' in text for name in FIGURES)


def test_below_every_figure_stands_what_it_shows_and_where_its_parts_are(page, output, run):
    addresses = [each["href"] for each in page.attributes("a")]
    for name in FIGURES:
        assert (output.parent / f"figures/{name}.svg").exists() and addresses.count(f"figures/{name}.svg") == 1
        assert addresses.count(f"#{name}-definition") == 1
        shows = load_figure(name).caption(run).shows
        assert shows in page.text and re.search(r"\d", shows) and shows.endswith(".")
    assert addresses.count(PAPER) == 1 + sum(name.startswith("figure_") for name in FIGURES)  # the lead
    assert page.text.count("the paper's figure 4") == 1


def test_the_first_screen_says_who_found_what_and_how_many_claims_hold(page):
    text = re.sub(r"\s+", " ", page.text)
    lead = "Geva et al. (2021) found that each feed-forward layer of a language model works as many memories."
    assert text.index(lead) < text.index("the key detects patterns in the text") < text.index("Of eight claims, ")
    assert text.index("Of eight claims, ") < text.index("The paper’s claims") < text.index("How a claim is judged")
    assert text.count("not of the paper") == 1 and "a fifth of the paper’s, also without any one layer" in text


def test_one_card_is_open_and_methods_and_rules_are_closed(page):
    details = page.attributes("details")
    assert [each.get("class") for each in details if "open" in each] == ["card"]
    assert len([each for each in details if each.get("class") == "card"]) > 1


def test_of_a_long_table_the_page_has_the_first_rows_and_its_file(page, run):
    rows = len(run.table("figure_3_removal"))
    assert rows > 15 and f"Data, figure_3_removal: {rows} rows" in page.text
    assert "The first 15 rows. All rows: figure_3_removal.csv" in re.sub(r"\s+", " ", page.text)
    assert "All rows: roles/by_layer, in the folder of the results" in re.sub(r"\s+", " ", page.text)


def test_the_csv_links_are_the_tables(page, folder):
    links = {each["download"]: each["href"] for each in page.attributes("a") if "download" in each}
    names = {table for name in FIGURES for table in load_figure(name).tables}
    others = {"table_2_predictive_values", "table_2_predictive_layers", "activity", "prediction_changes"} | {
        "intervention_memories",
        "behaviours",
        "behaviour_prompts",
        "translation_differences",
    }
    others |= {f"concept_{name}" for name in ("tasks", "layers", "nulls", "memories")}
    others |= {"routing_experts", "routing_patterns"}
    assert set(links) == {f"{name}.csv" for name in names | others}
    for name, link in links.items():
        head, body = link.split(",")
        assert head == "data:text/csv;charset=utf-8;base64"
        (file,) = folder.glob(f"*/{name}")
        assert base64.b64decode(body) == file.read_bytes()


def test_a_behaviour_has_a_graph(page, run):
    """Lines of the made-up graph: five edges are there, four are shown, and one of these is not stable."""
    (drawn,) = [each for each in page.attributes("svg") if each.get("class") == "graph"]
    label = drawn["aria-label"]
    assert label.startswith("Graph of the behaviour agreement. Layers from below. On the prompts that did not choose")
    assert " 4 memories keep 80" in label
    assert "Graphs of groups of prompts that are drawn again share 75" in page.text
    paths = [each for each in page.attributes("path") if "stroke-opacity" in each]
    assert len(paths) == 4 and sum("stroke-dasharray" in each for each in paths) == 1


def test_layers_and_memories_count_from_zero(page):
    names = [text for text in page.texts if re.fullmatch(r"L\d+\.\d+", text)]
    assert {int(name[1:].split(".")[0]) for name in names} == set(range(6))
    assert "L0.0" in names
    assert "Layers and memories count from 0" in page.text
    assert "in layer 0" in page.text
    assert "layer 6" not in page.text.replace("the paper's layer 6", "")


def test_cards_show_both_signs_apart(page):
    cards = len([each for each in page.attributes("details") if each.get("class") == "card"])
    assert page.text.count("Trigger examples of positive coefficients") == cards
    assert page.text.count("Trigger examples of negative coefficients") == cards
    assert page.text.count("A negative coefficient promotes the bottom of the value.") == cards
    of_none = page.text.count("\nNone.\n")  # memories that tables name may have no negative trigger example
    assert len([each for each in page.attributes("table") if each.get("class") == "triggers"]) == 2 * cards - of_none
    assert "gate and up. Their signs" not in page.text


def test_a_trigger_example_shows_its_last_token_apart_and_the_next_token(output, run):
    card, text = make_cards(run)[0], output.read_text()
    for line in card.triggers:
        before, next_token = line.text.removesuffix(line.last_token), line.next_token
        assert f"{ending(before, 240)}<mark>{visible(line.last_token)}</mark> → {token(next_token)}" in text
    for coefficient in column(line.coefficient for line in card.negative):
        assert f'<td class="number">{coefficient}</td>' in text
        assert coefficient.startswith(MINUS)


def test_a_trigger_example_shows_the_name_of_its_document_and_the_whole_on_hover(output, run):
    """A name is a text of strangers. Behind the examples of documents without one there is nothing."""
    text, examples = output.read_text(), [line for card in make_cards(run) for line in [*card.triggers, *card.negative]]
    shown, whole = escape(plain(shortened(TITLE, 30))), escape(plain(TITLE))
    told = f'</bdi> <small dir="auto" title="{whole}">{shown}</small></td>'  # isolated, as <bdi> is
    named = sum(line.title == TITLE for line in examples)
    assert 0 < named < len(examples) and text.count(told) >= named
    assert text.count("<small") == text.count(told) and "" in {line.title for line in examples}


@pytest.mark.parametrize(("signed", "gated"), [(False, False), (True, True), (False, True)])
def test_a_page_of_any_kind_of_model_is_whole_and_tells_its_signs(write, undrawn, tmp_path, signed, gated):
    page = Page(make(write(layers=1, signed=signed, gated=gated, report={"cards": 2}), tmp_path / "index.html"))
    assert page.open == []
    assert ("Trigger examples of negative coefficients" in page.text) is signed
    assert bool([each for each in page.attributes("td") if each.get("class") == "sign"]) is gated
    assert ("gate and up. Their signs" in page.text) is gated


def test_the_run_is_described(page):
    for fact in ("GPT2LMHeadModel", "0123456789abcdef", "duplicate sentences: 3", "812 MiB"):
        assert fact in page.text


def test_every_figure_is_drawn_and_stands_beside_the_page(output, page):
    files = {path.stem: path.read_text() for path in (output.parent / "figures").glob("*.svg")}
    assert files.keys() == {*FIGURES} >= {f"figure_{number}" for number in range(2, 12)}, "the figures of the paper"
    for name, text in files.items():
        number = name.replace("figure_", "Figure ") + ". " if name.startswith("figure_") else ""
        assert f"{number}{FIGURES[name].title}" in page.text
        assert text.startswith('<?xml version="1.0" encoding="utf-8"?>\n<svg role="img"') and len(text) < 100_000
        # labels of logarithmic axes; no name in this run has a $
        assert "$" not in "".join(ElementTree.fromstring(text).itertext()), name


def test_the_same_tables_give_the_same_bytes(folder, output, tmp_path):
    again = tmp_path / "again" / "index.html"
    make(folder, again)
    assert again.read_bytes() == output.read_bytes()
    for path in (output.parent / "figures").iterdir():
        assert (again.parent / "figures" / path.name).read_bytes() == path.read_bytes()


def test_headings_lead_to_themselves(page):
    """Whoever points at one can copy its address."""
    here = [each["href"] for each in page.attributes("a") if each.get("class") == "here"]
    assert len(here) == len({*here}) and {"#claims", "#keys", "#figure_4", "#predictive", "#cards"} <= {*here}


def test_points_of_figures_have_their_values(page, run):
    """The title of a layer of figure 9 has the number of its table, as the page writes shares."""
    table = run.table("figure_9_residual_agreement")
    for row in table.itertuples():
        assert sum(text.startswith(f"layer {row.layer}\n") and percent(row.share) in text for text in page.texts)


def test_the_navigation_leads_to_every_section_and_figure(page):
    targets = [each["href"][1:] for each in page.attributes("a") if each["href"].startswith("#")]
    assert set(targets) >= {"keys", "values", "composition", "refinement", "predictive", "changes", "cards"}
    assert set(targets) >= {name for name, entry in FIGURES.items() if entry.every_run}


def test_the_report_does_without_torch():
    code = "import sys, ffkv.run.report.step; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_of_a_long_table_that_is_a_file_the_page_shows_a_thousand_rows():
    """A step of a package of others may write millions. Without a file nothing else would have the rows."""
    environment = make_environment(("ffkv.run.report", "."))
    environment.filters["linked"] = str
    template = environment.from_string('{% from "tables.html" import long with context %}{{ long(table, 8) }}')
    for file, shown in (("many.csv", 1000), ("", 3000)):
        table = PageTable("many", ["row"], [True], [[f"row {place}"] for place in range(3000)], file)
        page = template.render(table=table)
        assert page.count("<td") == shown and ("The first 1000 rows. All rows: " in page) == bool(file)
