"""What the report and a notebook show of a run: what they read, any numbers, and what they refuse."""

import re
import shutil
import xml.etree.ElementTree as ElementTree
from html import unescape
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from cycler import cycler
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from support import FULL

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.branches.registry import BRANCHES
from ffkv.run.commands import report
from ffkv.run.report import drawing
from ffkv.run.report.cards import make_cards
from ffkv.run.report.claims import judge_claims
from ffkv.run.report.page_tables import OPEN_ROWS, whole_table
from ffkv.run.report.registry import FIGURES, has_figure, load_figure
from ffkv.run.report.section import draw_exhibits
from ffkv.run.report.step import render, write_report
from ffkv.run.results.expected import TABLES
from ffkv.run.results.memory_name import memory_name, parse_memory_name
from ffkv.run.results.run import open
from ffkv.run.results.text import ending, token
from tests.run.report.conftest import ChangedRun, write_results
from tests.run.report.made_up_rows import made_up

pytestmark = pytest.mark.slow


def page_of(folder) -> str:
    run = open(folder)
    return render(run, draw_exhibits(run), judge_claims(run))


@pytest.mark.many
@pytest.mark.skipif(not FULL, reason="48 layers: with FFKV_FULL only; test_figures.py draws those of 1 and 80 layers")
def test_models_of_48_layers_draw(write):
    run = open(write(layers=48, report={"cards": 3}))
    exhibits = draw_exhibits(run)
    assert render(run, exhibits, judge_claims(run))
    for exhibit in exhibits.values():
        ElementTree.fromstring(exhibit.svg)


def test_the_head_of_the_page_names_a_folder_without_its_path(write, undrawn):
    run = open(write(layers=1, report={"cards": 0}))
    exhibits, judged = draw_exhibits(run), judge_claims(run)
    names = {"/data/models/gpt2/": "gpt2", "../llama": "llama", "embedded": "the small GPT-2 that ffkv trains"}
    for checkpoint, shown in names.items():
        model = run.settings.model.model_copy(update={"checkpoint": checkpoint})
        named = ChangedRun(run, settings=run.settings.model_copy(update={"model": model}))
        assert f": <bdi>{shown}</bdi></h1>" in render(named, exhibits, judged), checkpoint


def test_without_cards_and_changes_there_is_still_a_page(write, undrawn):
    folder = write(layers=2, report={"cards": 0, "paper_curves": False})
    changes = tables.read(folder / "refinement/prediction_changes.csv")
    tables.write(changes.head(0), folder / "refinement/prediction_changes.csv")
    tables.write(tables.read(folder / "values/table_2_predictive_values.csv").head(0), folder / "values/predictive.csv")
    shutil.rmtree(folder / "benchmarks")
    page = page_of(folder)
    assert "Changes in the last layer" in page
    assert "Time and memory" not in page


def blank(path, *columns, rows=None):
    """Takes away a table's values in some columns, and its rows after the first `rows`."""
    table = tables.read(path)
    tables.write(table.assign(**dict.fromkeys(columns, None)).head(len(table) if rows is None else rows), path)


def test_tables_without_a_single_value_still_make_a_page(write):
    """Of a model of one layer, whose figures are drawn."""
    folder = write(layers=1, report={"cards": 1})
    blank(folder / "keys/figure_3_removal.csv", "change", "low", "high")
    blank(folder / "values/figure_5_rank.csv", "whisker_low", "q1", "median", "q3", "whisker_high")
    blank(folder / "values/figure_6_top_probability.csv", rows=0)
    blank(folder / "values/table_2_predictive_values.csv", "prefix", "next_token")
    blank(folder / "composition/figure_8_agreement_cases.csv", "stop_word_share", "short_share")
    blank(folder / "refinement/prediction_changes.csv", "cosine", "cosine_percentile")
    run = open(folder)
    exhibits = draw_exhibits(run)
    for exhibit in exhibits.values():
        ElementTree.fromstring(exhibit.svg)
    page = render(run, exhibits, judge_claims(run))
    assert "nothing to show" in page
    assert "no value to show" in page
    assert ">nan<" not in page.lower()
    assert "None" not in page.replace("\nNone.\n", "")  # a memory of table 2 has no negative trigger example


def test_a_language_without_stop_words_has_no_sentence_about_them(write):
    folder = write(layers=2)
    assert "a stop word" in load_figure("figure_8").caption(open(folder)).more
    blank(folder / "composition/figure_8_agreement_cases.csv", "stop_word", "stop_word_share", "base_stop_word_share")
    text = load_figure("figure_8").caption(open(folder)).more
    assert "stop word" not in text and "has fewer than 5 words" in text


def test_a_checkpoint_that_was_not_trained_here_has_no_training_curve(write):
    folder = write(layers=1, model={"checkpoint": "gpt2"})
    shutil.rmtree(folder / "checkpoint")
    assert not has_figure(open(folder), "training")


def cards_of(folder) -> list:
    return [(card.triggers, card.top) for card in make_cards(open(folder))]


# What reads a file, and what it names if that is missing.
MISSING = [
    (page_of, ["figure_2_categories", "activity", "prediction_changes", "corpus/train.h5", "model/anatomy.json", "settings.json"]),
    (cards_of, ["triggers.h5", "keys/patterns", "values/by_memory", "values/projections", "model/vocabulary.h5"]),
]  # fmt: skip


@pytest.mark.parametrize("read, name", [(read, name) for read, names in MISSING for name in names])
def test_what_is_missing_is_named(folder, undrawn, tmp_path, read, name):
    copy = shutil.copytree(folder, tmp_path / "demo")
    for path in copy.glob(f"{name}/*") if (copy / name).is_dir() else [*copy.glob(f"*/{name}.csv"), *copy.glob(name)]:
        path.unlink()
    with pytest.raises(UserError, match=name):
        read(copy)


def test_where_something_is_missing_nothing_is_written(folder, undrawn, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "demo")
    (copy / "triggers.h5").unlink()
    outcome = CliRunner().invoke(report, f"--results {copy} --output {tmp_path}/out/index.html".split())
    assert isinstance(outcome.exception, UserError)
    assert not (tmp_path / "out").exists()


def test_the_step_writes_the_page_and_the_figures(write, undrawn, tmp_path):
    write_report(open(write(layers=1, report={"cards": 0})), str(tmp_path / "out" / "index.html"))
    names = {path.name for path in Path(tmp_path / "out").rglob("*") if path.is_file()}
    assert names == {"index.html", "verdicts.csv", *(f"{name}.svg" for name in FIGURES)}


def test_cards_and_tables_link_to_pages_that_were_exported(write, undrawn, tmp_path):
    """A table links a memory to its card, else to its page, else to a line that tells where the memory is shown."""
    run, output = open(write(layers=2, report={"cards": 4})), tmp_path / "report" / "index.html"
    table = run.table("table_2_predictive_values")
    exported = memory_name(*table[["layer", "memory"]].iloc[-1])  # no open row names it
    card = make_cards(run)[0].memory.name
    write_report(run, output)
    assert "memories/" not in output.read_text()
    (output.parent / "memories").mkdir()
    for name in (card, exported):
        (output.parent / "memories" / f"{name}.html").touch()
    write_report(run, output)
    page = output.read_text()
    assert page.count(">the page of") == 1
    assert f'<a href="memories/{card}.html">the page of {card}</a>' in page
    carded = {*re.findall('<p class="note" id="([^"]*)">', page)}
    assert carded > {card.memory.name for card in make_cards(run)}
    shown = table.head(OPEN_ROWS)
    assert carded >= {*map(memory_name, shown["layer"], shown["memory"])}
    found = {"page": 0, "card": 0, "line": 0}
    for place, (layer, memory) in enumerate(table[["layer", "memory"]].itertuples(index=False)):
        name = f"L{layer}.{memory}"
        where = "card" if name in carded else "page" if name == exported else "line"
        address = f"memories/{name}.html" if where == "page" else f"#{name}"
        # the table of the section, and the one with all columns, of which the page has the first rows
        cells = [("", name), (' class="number"', memory)]
        for kind, text in cells[: 2 if place < 15 else 1]:
            assert f'<td{kind}><a href="{address}">{text}</a></td>' in page
        line = re.search(f'<li id="{re.escape(name)}">(.*)</li>', page)
        assert (where == "line") == bool(line)
        if line:
            example, value = run.memory(name).triggers["text"].iloc[0], run.memory(name).promotes(2)["token"]
            assert f" · {ending(example, 60)} · promotes {token(value[0])}, {token(value[1])}" in line[1]
            assert line[1].startswith(name) and line[1].endswith(f" · /r/{run.name}/m/{layer}/{memory}")
        found[where] += 1
    assert found["page"] == 1 and found["card"] and found["line"]
    lines, led = re.findall('<li id="([^"]*)">', page), {*re.findall('<a href="#(L[^"]*)">', page)}
    assert led - carded == {*lines} and len(lines) == len({*lines} - carded)  # each name leads to one place
    assert lines == sorted(lines, key=parse_memory_name)


def test_a_row_about_no_memory_leads_nowhere():
    """As of a role that no memory has: its memory is -1."""
    rows = whole_table("strongest", pd.DataFrame({"layer": [0, 1], "memory": [3, -1], "share": [0.5, 0.0]})).rows
    assert [row[1] for row in rows] == [("L0.3", "3"), "−1"]


def test_a_run_that_is_older_than_a_table_is_to_be_made_again(write, undrawn, tmp_path):
    folder = write(layers=2, report={"cards": 0})
    (folder / "refinement/figure_11_breakdown.csv").unlink()
    with pytest.raises(
        UserError, match=r"has no refinement/figure_11_breakdown\.csv, which .* made before .* Run `snakemake` again"
    ):
        write_report(open(folder), tmp_path / "out" / "index.html")
    assert not (tmp_path / "out").exists()


def test_every_figure_is_drawn_alone_and_into_a_readers_own_panels_in_the_own_style(tmp_path):
    """Each line of it says what it is."""
    write_results(tmp_path / "results/other")
    run = ffkv.open(write_results(tmp_path / "results/own", report={"control": "other"}))
    with matplotlib.rc_context({"axes.prop_cycle": cycler(color=["#ff0000", "#00ff00"]), "figure.figsize": (4, 3)}):
        for name in (name for name in FIGURES if has_figure(run, name)):
            drawn = ffkv.figure(run, name)
            assert isinstance(drawn, Figure) and drawn.axes
            labels = [str(each.get_label()) for axes in drawn.axes for each in axes.lines]
            assert not {"", "_nolegend_"} & {*labels}, name
            assert not any(label.startswith("_child") for label in labels), name
            panels = len([axes for axes in drawn.axes if axes.get_visible()])
            own, (other, *axes) = plt.subplots(1, panels + 1)  # the other one stays as it is
            assert ffkv.figure(run, name, ax=np.array(axes)) is own and not own.legends
            assert all(each.has_data() for each in axes) and not other.has_data()
            own.draw_without_rendering()
            alone = ffkv.figure(run, name, style="own")
            assert tuple(alone.get_size_inches()) == (4, 3)
            plt.close("all")
        line = ffkv.figure(run, "figure_4", style="own").axes[0].lines[0]
        assert to_hex(line.get_color()) == "#ff0000"
    drawn = ffkv.figure(run, "figure_4")
    drawn.savefig(tmp_path / "figure.png")
    lines = drawn.axes[0].lines
    assert to_hex(lines[0].get_color()) != "#ff0000"
    labels = {line.get_label() for line in lines}
    assert {"values and their keys", "_intervals of values and their keys", "control: agreement rate"} <= labels
    assert "control: other" in [text.get_text() for text in drawn.legends[0].get_texts()]


def test_panels_and_styles_that_do_not_fit_are_refused(folder):
    run, axes = ffkv.open(folder), Figure().subplots(1, 2)
    for given, message in (
        ({"ax": axes}, r"^This figure needs 1 Axes, and ax has 2\. Give 1, such as plt\.subplots\(1, 1\)\[1\]"),
        ({"ax": 5}, r"^ax is 5\. Give the Axes of your figure"),
        ({"ax": []}, r"^ax is \[\]\. Give the Axes"),
        ({"style": "ow"}, r"^There is no style 'ow'\. Did you mean 'own'\? Choose one of: report, own\."),
    ):
        with pytest.raises(ffkv.UserError, match=message):
            ffkv.figure(run, "figure_9", **given)


@pytest.mark.parametrize("name", ["figure_99", None, []])
def test_a_figure_that_does_not_exist_is_refused(folder, name):
    with pytest.raises(ffkv.UserError, match=r"There is no figure of demo called .*figure_2, figure_3, figure_4"):
        ffkv.figure(ffkv.open(folder), name)


def test_the_page_is_shown_in_a_frame_of_its_own(tmp_path):
    run = ffkv.open(write_results(tmp_path / "results/own"))
    with pytest.raises(ffkv.UserError, match=r"reports/own/index.html does not exist. `snakemake` writes it"):
        ffkv.report(run)
    page = tmp_path / "reports/own/index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p class=\"a\">ü & 'x'</p>")
    shown = ffkv.report(run)
    assert repr(shown) == f"<Page {page}>"
    inside = shown._repr_html_().partition('srcdoc="')[2].partition('"')[0]
    assert unescape(inside) == page.read_text()


def test_made_up_tables_have_the_columns_that_are_described(run):
    made = {str(path.relative_to(run.folder)): tables.read(path) for path in run.folder.rglob("*.csv")}
    assert len(made) > 15
    for path, table in made.items():
        TABLES[path].check(table)


def test_figures_and_captions_take_any_numbers_within_the_limits_of_their_columns(run, change):
    generator, layers = np.random.default_rng(3), len(run.anatomy.layers)
    made = {
        table.name: made_up(table, layers, generator)
        for branch in BRANCHES.values()
        for table in branch.tables
        if table.path.endswith(".csv")
    }
    other = change(tables=made)
    with drawing.look():
        for name in (name for name in FIGURES if has_figure(run, name)):
            figure = load_figure(name)
            assert figure.draw(other, None).axes
            assert len(figure.caption(other).text) > 40
