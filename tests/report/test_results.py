"""What the report reads, and what it refuses."""

import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner
from report.conftest import ChangedRun
from support import FULL

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.run.report.cards import make_cards
from ffkv.run.report.claims import judge_claims
from ffkv.run.report.commands import report
from ffkv.run.report.registry import FIGURES, has_figure, load_figure
from ffkv.run.report.sections import draw_exhibits
from ffkv.run.report.step import render, write_report
from ffkv.run.results.run import open

pytestmark = pytest.mark.slow


def page_of(folder) -> str:
    run = open(folder)
    return render(run, draw_exhibits(run), judge_claims(run))


@pytest.mark.many
@pytest.mark.parametrize("layers", [1, 48] if FULL else [1])  # test_figures.py draws those of 80 layers
def test_models_of_any_depth_draw(write, layers):
    folder = write(layers=layers, report={"cards": 3})
    run = open(folder)
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
    folder = write(layers=2, report={"cards": 1})
    blank(folder / "keys/figure_3_removal.csv", "change", "low", "high")
    blank(folder / "values/figure_5_rank.csv", "whisker_low", "q1", "median", "q3", "whisker_high")
    blank(folder / "values/figure_6_top_probability.csv", rows=0)
    blank(folder / "values/table_2_predictive_values.csv", "prefix", "next_token")
    blank(folder / "composition/figure_8_agreement_cases.csv", "stop_word_share", "short_share")
    blank(folder / "refinement/prediction_changes.csv", "cosine", "cosine_percentile")
    page = page_of(folder)
    assert "nothing to show" in page
    assert "no value to show" in page
    assert ">nan<" not in page.lower()
    assert "None" not in page


def test_a_language_without_stop_words_has_no_sentence_about_them(write):
    folder = write(layers=2)
    assert "a stop word" in load_figure("figure_8").caption(open(folder)).text
    blank(folder / "composition/figure_8_agreement_cases.csv", "stop_word", "stop_word_share", "base_stop_word_share")
    text = load_figure("figure_8").caption(open(folder)).text
    assert "stop word" not in text and "has fewer than 5 words" in text


def test_a_checkpoint_that_was_not_trained_here_has_no_training_curve(write):
    folder = write(layers=1, model={"checkpoint": "gpt2"})
    shutil.rmtree(folder / "checkpoint")
    assert not has_figure(open(folder), "training")


SHOWN_ON_CARDS = ["triggers.h5", "keys/patterns", "values/by_memory", "values/projections", "model/vocabulary.h5"]


@pytest.mark.parametrize("name", ["figure_2_categories", "activity", "prediction_changes"])
def test_a_missing_table_is_named(folder, undrawn, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "demo")
    next(copy.glob(f"*/{name}.csv")).unlink()
    with pytest.raises(UserError, match=name):
        page_of(copy)


@pytest.mark.parametrize("name", ["corpus/train.h5", "model/anatomy.json", "settings.json"])
def test_a_missing_file_is_named(folder, undrawn, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "demo")
    (copy / name).unlink()
    with pytest.raises(UserError, match=name):
        page_of(copy)


@pytest.mark.parametrize("name", SHOWN_ON_CARDS)
def test_a_missing_file_of_the_cards_is_named(folder, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "demo")
    for path in (copy / name).iterdir() if (copy / name).is_dir() else [copy / name]:
        path.unlink()
    with pytest.raises(UserError, match=name):
        _ = [(card.triggers, card.top) for card in make_cards(open(copy))]


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


def test_cards_link_to_pages_of_memories_that_were_exported(write, undrawn, tmp_path):
    run, output = open(write(layers=2, report={"cards": 4})), tmp_path / "report" / "index.html"
    write_report(run, output)
    names = [card.memory.name for card in make_cards(run)]
    assert "memories/" not in output.read_text()
    (output.parent / "memories").mkdir()
    (output.parent / "memories" / f"{names[0]}.html").touch()
    write_report(run, output)
    page = output.read_text()
    assert page.count(">the page of") == 1
    assert f'<a href="memories/{names[0]}.html">the page of {names[0]}</a>' in page


def test_tables_link_a_memory_to_its_page_else_to_its_card(write, undrawn, tmp_path):
    run, output = open(write(layers=2, report={"cards": 4})), tmp_path / "report" / "index.html"
    table, exported = run.table("table_2_predictive_values"), "L0.0"
    (output.parent / "memories").mkdir(parents=True)
    (output.parent / "memories" / f"{exported}.html").touch()
    write_report(run, output)
    page, carded = output.read_text(), {card.memory.name for card in make_cards(run)}
    found = {"page": 0, "card": 0, "nowhere": 0}
    for layer, memory in table[["layer", "memory"]].itertuples(index=False):
        name = f"L{layer}.{memory}"
        where = "page" if name == exported else "card" if name in carded else "nowhere"
        address = {"page": f"memories/{name}.html", "card": f"#{name}", "nowhere": ""}[where]
        for kind, text in (
            ("", name),
            (' class="number"', memory),
        ):  # the table of the section, and the one with all columns
            cell = f'<a href="{address}">{text}</a>' if address else text
            assert f"<td{kind}>{cell}</td>" in page
        found[where] += 1
    assert found["page"] == 1 and found["card"] and found["nowhere"]


def test_a_run_that_is_older_than_a_table_is_to_be_made_again(write, undrawn, tmp_path):
    folder = write(layers=2, report={"cards": 0})
    (folder / "refinement/figure_11_breakdown.csv").unlink()
    with pytest.raises(
        UserError, match=r"has no refinement/figure_11_breakdown\.csv, which .* made before .* Run `snakemake` again"
    ):
        write_report(open(folder), tmp_path / "out" / "index.html")
    assert not (tmp_path / "out").exists()
