"""What the page shows of concepts, on made-up tables."""

import numpy as np
import pandas as pd
import pytest

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.branches.concepts.section import SECTION
from ffkv.branches.concepts.tables import CURVES, MEMORIES, TASKS
from ffkv.branches.registry import BRANCHES
from ffkv.run.report.section import arrange, draw_exhibits, summary
from tests.run.report.conftest import write_results

ONE = {"task": "french", "concept": "french", "positive": "<b>yes", "train": 20, "test": 20, "positives": 20, "documents": 40,
       "tokens": 9.0, "length_auc": 0.5, "examples": np.nan, "left_out": "", "one": 0.9, "many": 0.95, "whole": 0.97, "best_layer": 1, "best_memory": 3,
       "auc": 0.93, "shuffled": 0.7, "p": 0.01, "q": 0.02}  # fmt: skip
WITHOUT = {
    **ONE,
    "task": "x",
    "train": 0,
    "test": 0,
    **dict.fromkeys(("one", "best_layer", "best_memory", "auc", "q"), np.nan),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_results(tmp_path_factory.mktemp("results") / "made", concepts={"french": {"labels": "french.csv"}})
    rows = [
        {
            "features": name,
            "size": size,
            "tasks": 1,
            "auc": 0.8,
            "low": 0.7,
            "high": 0.9,
            "error": 0.05,
            "f1": 0.7,
            "accuracy": 0.7,
        }
        for name, sizes in {"memories": (1, 2, 4), "residual": (1, 2), "directions": (1, 2, 4), "whole": (8,)}.items()
        for size in sizes
    ]
    tables.write(CURVES.frame(rows), folder / CURVES.path)
    tables.write(TASKS.frame(pd.DataFrame([ONE, WITHOUT])), folder / TASKS.path)
    names = ("task", "layer", "memory", "rank", "difference", "auc", "examples", "alone")
    found = [
        ("french", 0, 2, 0, 0.9, 0.6, np.nan, False),
        ("french", 1, 3, 0, 0.9, 0.93, np.nan, True),
        ("b/c", 1, 3, 40, -0.1, 0.02, np.nan, True),
    ]
    path = MEMORIES.path.format(concept="french")
    table = MEMORIES.frame([dict(zip(names, row)) for row in found])
    tables.write(tables.identify(table, ffkv.open(folder).files.identity("train")), folder / path)
    return ffkv.open(folder)


def test_a_memory_tells_what_it_separates_and_is_found_by_it(run):
    assert run.memory("L1.3").concepts["task"].tolist() == ["b/c", "french"]  # 0.02 is as good as 0.98
    assert run.memory("L0.2").concepts.empty
    counts = run.memories()["concepts"]
    assert counts.sum() == 2 and run.memories(between={"concepts": (2, None)})["name"].tolist() == ["L1.3"]
    assert run.memories(concept="french")[["name", "concept_auc"]].to_numpy().tolist() == [["L1.3", 0.93]]
    with pytest.raises(UserError, match=r"no task of a concept .* 'frensh'\. Did you mean 'french'"):
        run.memories(concept="frensh")


def test_the_figure_has_a_line_for_each_kind_of_features(run):
    exhibit = draw_exhibits(run, only="concepts")["concept_curves"]
    for name in ("memories", "coordinates of the residual", "random directions", "all of the residual"):
        assert name in exhibit.svg
    assert "0.80 with 1 of them to 0.80 with 4" in exhibit.caption.shows and "0.97" not in exhibit.caption.text


def test_the_table_has_the_tasks_that_have_texts(run):
    section = arrange(run, BRANCHES["concepts"], {})
    (block,) = section["after"]
    ((task, label, memory, texts, auc, *_),) = block.table.rows
    assert (memory.memory, texts, auc) == ("L1.3", "40", "0.93")
    assert ">french<" in task and "&lt;b&gt;yes" in label
    assert next(name for name, _ in block.folded) == "All columns, and tasks without texts"


def test_the_main_numbers(run):
    assert SECTION.numbers(run)["tasks of concepts that a memory separates"] == "1 of 1"
    assert any("concepts" in what for what, *_ in summary(run))
