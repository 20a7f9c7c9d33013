"""What annotators said, where people look for it: figure 2, memory pages, search, notebooks."""

import json

import numpy as np
import pandas as pd
import pytest

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5, tables
from ffkv.branches.keys.section import CATEGORIES
from ffkv.run.annotation_tables import BY_LAYER, LABELS, PATTERNS, SCORES
from ffkv.run.report.registry import load_figure
from ffkv.run.report.step import write_report
from ffkv.run.results import indexes
from ffkv_explorer.shelf import open_shelf
from tests.ffkv_explorer.conftest import Visitor, complete, text_of
from tests.run.report.conftest import write_results
from tests.run.results.conftest import IDENTITY, write_small_run

LAYERS = 6
ANNOTATORS = ("machine:a/very-long-name-of-a-model-8b", "person:an$n$a", "tests")
SHARES = {name: np.roll([0.1, 0.2, 0.3, 0.4], place) for place, name in enumerate(ANNOTATORS)}


def write_annotation(folder) -> None:
    """The tables of two annotators and the tests, in a run of six layers. Nobody judged keys of the last layer."""
    rows = [
        (name, layer, category, *((int(100 * share), 4, share) if layer < LAYERS - 1 else (0, 4, np.nan)))
        for name, shares in SHARES.items()
        for layer in range(LAYERS)
        for category, share in zip(CATEGORIES, shares, strict=True)
    ]
    columns = ["annotator", "layer", "category", "prefixes", "keys", "share"]
    tables.write(pd.DataFrame(rows, columns=columns), folder / "annotation/figure_2_by_annotator.csv")
    about = {"keys": 12, "keys_with_pattern": 9, "patterns_per_key": 1.5, "coverage": 0.5, "controls": [4, 0, 12]}
    about |= {"controls_with_pattern": [1, 0, 6], "false_positive_rate": [0.25, np.nan, 0.5], "low": 0.1, "high": 0.9}
    tables.write(pd.DataFrame({"annotator": ANNOTATORS, **about}), folder / "annotation/annotators.csv")
    statistics = [("prefix", "raw", 0.75), ("prefix", "kappa", -0.5), ("prefix", "alpha", np.nan)]
    statistics += [("pattern", "jaccard", 0.25)]
    agreement = [(*ANNOTATORS[:2], *each, 0.1, 0.9, 12, 300) for each in statistics]
    names = ["first", "second", "unit", "statistic", "value", "low", "high", "keys", "units"]
    tables.write(pd.DataFrame(agreement, columns=names), folder / "annotation/agreement.csv")
    related = pd.DataFrame([("person:an$n$a", "trigger", 100, 34, 3, 0.34, 0.25, 0.44)])
    related.columns = ["annotator", "sample", "changes", "related_changes", "unsure", "share", "low", "high"]
    tables.write(related, folder / "annotation/related_changes.csv")
    rows = [
        ("machine:a", -1, "detection", "other", 8, 40, 38, 2, 0.52, 0.45, 0.6, 0.5),
        ("machine:a", -1, "detection", "own", 8, 40, 39, 1, 0.9, 0.8, 0.95, 0.5),
        ("machine:a", -1, "detection", "own - other", 8, None, None, None, 0.38, 0.2, 0.5, 0.0),
        ("machine:a", -1, "intruder", "none", 8, 16, 16, 0, 0.75, np.nan, np.nan, 0.2),
        ("machine:a", 0, "intruder", "none", 4, 8, 8, 0, 0.99, 0.9, 1.0, 0.2),
    ]
    tables.write(BY_LAYER.frame(rows), folder / "annotation/machine_scores_by_layer.csv")


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = write_results(tmp_path_factory.mktemp("judged") / "results" / "demo")
    write_annotation(folder)
    return folder


def test_figure_2_shows_every_source_side_by_side(judged):
    figure = load_figure("figure_2").draw(ffkv.open(judged), {name: [0.25] * 16 for name in CATEGORIES})
    titles = [axes.get_title() for axes in figure.axes]
    judges = ["an$n$a, a person", "…-long-name-of-a-model-8b, a machine", "the paper's, judged by a person"]
    assert titles == ["trigger examples, by tests", *judges]
    for axes, name in ((figure.axes[1], "person:an$n$a"), (figure.axes[2], ANNOTATORS[0])):
        heights = np.array([[bar.get_height() for bar in bars] for bars in axes.containers])
        np.testing.assert_allclose(heights[:, :-1], np.tile(SHARES[name][:, None], LAYERS - 1))
        np.testing.assert_allclose(heights[:, -1], 0)


def test_without_annotations_figure_2_is_as_before(tmp_path):
    run = ffkv.open(write_results(tmp_path / "demo"))
    figure = load_figure("figure_2").draw(run, None)
    assert [axes.get_title() for axes in figure.axes] == ["trigger examples"]
    assert "Further panels" not in load_figure("figure_2").caption(run).text
    assert not len(indexes.labels(run.files))


@pytest.mark.slow
def test_the_report_tells_who_judged_how_far_they_agree_and_the_scores_of_machines(judged, undrawn, tmp_path):
    write_report(ffkv.open(judged), tmp_path / "index.html")
    text = text_of((tmp_path / "index.html").read_text()).replace("\u00a0", " ")
    told = ["an$n$a, a person (12 keys);", "a pattern in 25 % of 4 keys of random prefixes"]
    told += ["Agreement between annotators", *(f"{value} (0.10 to 0.90)" for value in ("0.75", "−0.50", "0.25"))]
    told += ["Related changes, by annotator", "Labels of machines", "machine:a intruder 8 0.75 – – 0.2 0 of 16"]
    told += ["machine:a detection 8 0.90 (0.80 to 0.95) 0.52 (0.45 to 0.60) 0.38 (0.20 to 0.50) 0.5 1 of 40"]
    assert [each for each in told if each not in text] == []


HOSTILE = "<script>alert(2)</script> cats"


@pytest.fixture
def labelled(tmp_path):
    """The small run of the explorer, in which anna and a machine saw patterns in L1.1, and anna again on another day."""
    folder = complete(write_small_run(tmp_path / "results" / "small"))
    with hdf5.open(folder / "corpus/train.h5", "corpus") as corpus:
        identity = {**IDENTITY, "corpus_hash": corpus.attrs["corpus_hash"]}
    rows = [
        ("person:anna", 0, "trigger", "keys", 1, 1, 0, "semantic", HOSTILE, 2, [0, 1]),
        ("machine:m", 0, "trigger", "keys", 1, 1, 0, "shallow", "", 2, [0, 1]),
        ("person:anna", 1, "trigger", "keys", 1, 1, 0, "shallow", "another day", 2, [0, 1]),
        ("person:anna", 0, "random", "keys", 1, 1, 0, "shallow", "a control", 2, [0, 1]),
    ]
    table = PATTERNS.frame(rows)
    tables.write(tables.identify(table, identity), folder / "annotation/patterns.parquet")
    return folder


def test_a_memory_and_a_search_know_what_annotators_said_beside_what_tests_found(labelled):
    run = ffkv.open(labelled)
    labels = run.memory("L1.1").labels
    assert list(labels) == ["annotator", "pattern", "family", "label", "prefixes", "ranks"]
    assert labels["annotator"].tolist() == ["machine:m", "person:anna"] and labels["label"].tolist() == ["", HOSTILE]
    assert not len(run.memory("L0.0").labels)
    found = run.memories(pattern="CATS")
    assert found["name"].tolist() == ["L1.1"] and found["pattern_found"].tolist() == [HOSTILE]
    assert run.memories(pattern="ends with")["name"].tolist() == ["L0.0", "L1.0"]
    assert "explanation_detection" not in found  # nobody explained anything
    assert not len(run.memories(pattern="another day")) and not len(run.memories(pattern="a control"))


def test_the_pages_show_them_escaped(labelled):
    visitor = Visitor(open_shelf([labelled]))
    page = visitor.get("/r/small/m/1/1")
    assert "What people and machines see" in page
    assert "&lt;script&gt;alert(2)" in page and "<script>alert(2)" not in page
    assert "without words in 2, says machine:m" in text_of(page)
    assert "What people and machines see" not in visitor.get("/r/small/m/0/0")
    found = json.loads(visitor.get("/r/small/m/1/1?format=json"))["labels"]
    assert [each["annotator"] for each in found] == ["machine:m", "person:anna"]
    assert "L1.1" in text_of(visitor.get("/r/small/memories?pattern=cats"))


def test_labels_of_another_run_are_refused(labelled):
    path = labelled / "annotation/patterns.parquet"
    tables.write(tables.identify(tables.read(path), {"model_hash": "f" * 16}), path)
    with pytest.raises(UserError, match="another model"):
        indexes.labels(ffkv.open(labelled).files)


EXPLAINED = "<b>cats</b> of a machine"


@pytest.fixture
def explained(labelled):
    """Two machines explained memories: one L1.1 and L0.1, the other one gave no label for L1.1."""
    labels = [
        ("machine:a", 0, 1, "about Cats, too", "", 10, 8, 20, 0.1),
        ("machine:a", 1, 1, EXPLAINED, "", 10, 8, 20, 0.1),
        ("machine:b", 1, 1, "", "not JSON", 10, 8, 20, 0.1),
    ]
    of_one = {("detection", "own"): 0.9, ("detection", "other"): 0.45, ("detection of the same word", "own"): 0.6}
    of_one |= {("simulation", "own"): -0.25, ("fuzzing", "own"): np.nan}
    scores = [(("machine:a", 0, 1, "detection", "own"), 0.7), (("machine:b", 1, 1, "intruder", "none"), 0.8)]
    scores += [(("machine:a", 1, 1, *score), value) for score, value in of_one.items()]
    scores = [(*about, 4, 3, 1, 12, value, 0.5, 0.5, 0.5) for about, value in scores]
    identity = tables.read(labelled / "annotation/patterns.parquet").attrs
    for name, rows, described in (("labels", labels, LABELS), ("scores", scores, SCORES)):
        table = described.frame(rows)
        tables.write(tables.identify(table, identity), labelled / f"annotation/machine_{name}.parquet")
    return labelled


def test_a_memory_and_a_search_know_how_machines_explain_it(explained):
    run = ffkv.open(explained)
    first, second = run.memory("L1.1").explanations.to_dict("records")
    assert (first["annotator"], first["label"], first["refusal"]) == ("machine:a", EXPLAINED, "")
    assert [first[name] for name in ("detection", "same_word", "simulation")] == [0.9, 0.6, -0.25]
    assert first["detection_of_other"] == 0.45
    assert all(np.isnan(first[name]) for name in ("fuzzing", "intruder", "simulation_of_other"))
    assert (second["label"], second["refusal"], second["intruder"]) == ("", "not JSON", 0.8)
    assert not len(run.memory("L0.0").explanations)
    found = run.memories(pattern="cats")
    # What a person marked in trigger examples comes first; an explanation marks none.
    assert found["name"].tolist() == ["L1.1", "L0.1"]
    assert found["pattern_found"].tolist() == [HOSTILE, "about Cats, too"]
    assert found["examples_with_pattern"].tolist() == [2, 0]
    assert found["explanation_detection"].tolist() == [0.9, 0.7]
    by_score = run.memories(pattern="cats", sort="explanation_detection", minimum=0.8)
    assert by_score["name"].tolist() == ["L1.1"]
    assert run.memories(pattern="ends with")["explanation_detection"].isna().all()


def test_the_pages_show_explanations_and_scores_escaped(explained):
    visitor = Visitor(open_shelf([explained]))
    page = visitor.get("/r/small/m/1/1")
    assert "&lt;b&gt;cats&lt;/b&gt; of a machine" in page and "<b>cats" not in page
    text = text_of(page)
    assert "machine:a ; detection 0.90 (0.45), detection of the same word 0.60, simulation −0.25 explained" in text
    assert "explained without a label says machine:b ; intruder 0.80" in text
    rows = json.loads(visitor.get("/r/small/m/1/1?format=json"))["explanations"]
    assert [(row["annotator"], row["detection"]) for row in rows] == [("machine:a", 0.9), ("machine:b", None)]
    found = text_of(visitor.get("/r/small/memories?pattern=cats"))
    assert "explanation detection" in found and "about Cats, too" in found and "0.9" in found
