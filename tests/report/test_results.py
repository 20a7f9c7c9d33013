"""What the report reads, and what it refuses."""

import json
import shutil
import xml.etree.ElementTree as ElementTree

import pandas as pd
import pytest
from click.testing import CliRunner

from ffkv.errors import UserError
from ffkv.files import tables
from ffkv.report.cards import cards
from ffkv.report.commands import report
from ffkv.report.page import exhibits, render
from ffkv.report.results import TABLES, TRAINING, benchmarks, read_results
from ffkv.settings import Settings


@pytest.mark.parametrize("layers", [1, 48])
def test_models_of_any_depth_draw(write, layers):
    folder = write(layers=layers, report={"cards": 3})
    results = read_results(folder, folder / "settings.json")
    shown = exhibits(results)
    assert render(results, shown)
    for exhibit in shown.values():
        ElementTree.fromstring(exhibit.svg)


def test_without_cards_and_changes_there_is_still_a_page(write):
    folder = write(layers=2, report={"cards": 0, "paper_curves": False})
    changes = tables.read(folder / "refinement/changes.csv")
    tables.write(changes.head(0), folder / "refinement/changes.csv")
    tables.write(tables.read(folder / "values/predictive.csv").head(0), folder / "values/predictive.csv")
    shutil.rmtree(folder / "benchmarks")
    results = read_results(folder, folder / "settings.json")
    page = render(results, exhibits(results))
    assert "Changes in the last layer" in page
    assert "Time and memory" not in page


def blank(path, *columns, rows=None):
    """Takes away a table's values in some columns, and its rows after the first `rows`."""
    table = tables.read(path)
    tables.write(table.assign(**dict.fromkeys(columns, None)).head(len(table) if rows is None else rows), path)


def test_tables_without_a_single_value_still_make_a_page(write):
    folder = write(layers=2, report={"cards": 1})
    blank(folder / "keys/removal.csv", "change", "low", "high")
    blank(folder / "values/rank.csv", "whisker_low", "q1", "median", "q3", "whisker_high")
    blank(folder / "values/probability.csv", rows=0)
    blank(folder / "values/predictive.csv", "prefix", "next_token")
    blank(folder / "composition/cases.csv", "stop_word_share", "short_share")
    blank(folder / "refinement/changes.csv", "cosine", "cosine_percentile")
    results = read_results(folder, folder / "settings.json")
    page = render(results, exhibits(results))
    assert "nothing to show" in page
    assert "no value to show" in page
    assert ">nan<" not in page.lower()
    assert "None" not in page


def test_a_checkpoint_that_was_not_trained_here_has_no_training_curve(write):
    folder = write(layers=1, model={"checkpoint": "gpt2"})
    shutil.rmtree(folder / "checkpoint")
    assert "training" not in exhibits(read_results(folder, folder / "settings.json"))


READ = [*(f"{table}.csv" for table in (*TABLES, TRAINING)), "corpus/train.h5", "model/anatomy.json"]
SHOWN_ON_CARDS = ["triggers.h5", "keys/patterns", "values/memories", "values/projections", "model/vocabulary.h5"]


@pytest.mark.parametrize("name", READ)
def test_a_missing_file_is_named(folder, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "demo")
    (copy / name).unlink()
    with pytest.raises(UserError, match=name):
        read_results(copy, copy / "settings.json")


@pytest.mark.parametrize("name", SHOWN_ON_CARDS)
def test_what_the_cards_need_is_named_where_it_is_missing(folder, tmp_path, name):
    copy = shutil.copytree(folder, tmp_path / "demo")
    for path in (copy / name).iterdir() if (copy / name).is_dir() else [copy / name]:
        path.unlink()
    with pytest.raises(UserError, match=name):
        cards(read_results(copy, copy / "settings.json"))


def test_where_something_is_missing_nothing_is_written(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "demo")
    (copy / "triggers.h5").unlink()
    arguments = ["--results", copy, "--settings", copy / "settings.json", "--output", tmp_path / "out" / "index.html"]
    outcome = CliRunner().invoke(report, [str(argument) for argument in arguments])
    assert isinstance(outcome.exception, UserError)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["{", json.dumps({"values": {"bins": 0}}), json.dumps({"unknown": 1})])
def test_settings_that_are_none_are_refused(folder, tmp_path, content):
    path = tmp_path / "settings.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"settings\.json"):
        read_results(folder, path)


def test_missing_settings_are_named(folder, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_results(folder, tmp_path / "settings.json")


def test_benchmarks_add_up_by_rule(folder):
    found = benchmarks(folder, Settings(shards=2)).set_index("rule")
    assert found.loc["triggers"].tolist() == [2, 120.0, 61.5, 812.3]
    assert found.loc["values", "jobs"] == 1


def test_without_benchmarks_there_is_no_cost(tmp_path):
    assert benchmarks(tmp_path, Settings()).empty
    assert isinstance(benchmarks(tmp_path, Settings()), pd.DataFrame)
