"""Behaviours that several runs have by the same name: their numbers, their memories, and the page that shows them."""

import itertools
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from markupsafe import Markup

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.branches.behaviours.summary_tables import OF_MEMORIES, OF_SETS, SUMMARY
from ffkv.branches.behaviours.tables import ANSWERS, PROMPTS
from ffkv.branches.settings import Behaviour, Comparison
from ffkv_comparison.comparison_file import (
    Measured,
    compare_behaviours,
    jaccard_by_chance,
    read_comparison,
    write_comparison,
)
from ffkv_comparison.page import behaviour_tables, draw_all_behaviours, note_behaviours, render, summarize
from ffkv_comparison.tables import RUNS as TABLE
from tests.ffkv_comparison.conftest import opened
from tests.run.results.conftest import write_small_run

RUNS = ["early", "middle", "late"]
# Of the behaviour "number" in each run that has it: candidates (layer, memory) with their effects; the logit differences of
# five groups of two prompts; and the shares that are lost, or None if no set was measured.
HAVE = {
    "early": ({(0, 0): np.nan, (0, 1): np.nan}, [-1.0, -0.5, 0.0, 0.5, 1.0], None),
    "late": ({(0, 0): -0.5, (1, 1): 2.0, (1, 0): 0.25}, [1.0, 1.5, 2.0, 2.5, 3.0], (0.75, 0.125, 1.5)),
}


def give(folder, candidates, differences, lost, **others):
    """Gives the behaviour "number" to a small run."""

    def write(table, rows):
        frame = table.frame([dict.fromkeys(table.names, 0) | {"behaviour": "number"} | row for row in rows])
        tables.write(frame, folder / table.path.format(behaviour="number"))

    settings = json.loads((folder / "settings.json").read_text())
    settings["behaviours"] = {"number": Behaviour(prompts="number.jsonl", **others).model_dump()}
    (folder / "settings.json").write_text(json.dumps(settings))
    accuracy = np.mean(np.array(differences) > 0)
    summary = {
        "kind": "pairs",
        "prompts": 10,
        "groups": 5,
        "accuracy": accuracy,
        "low": 0.1,
        "high": 1,
        "difference": np.mean(differences),
    }
    write(SUMMARY, [summary])
    of_prompts = [each + one for each in differences for one in (-0.1, 0.1)]
    write(ANSWERS, [{"prompt": number, "label": "", "part": "choose", "difference": each} for number, each in enumerate(of_prompts)])  # fmt: skip
    write(PROMPTS, [{"prompt": number, "group": str(number // 2), "clean": [1], "patch": []} for number in range(10)])
    places = [
        {"layer": layer, "memory": memory, "token": f"{folder.name}{memory}", "reach": reach, "effect": factor * effect}
        for (layer, memory), effect in candidates.items()
        for reach, factor in (("direct", 0.5), ("total", 1))
    ]
    write(OF_MEMORIES, places)
    choices = [("screen", 2), ("screen", 4), ("random", 2), ("random", 4), ("all", 5)] if lost else []
    of = dict(zip(("screen", "random", "all"), lost or ()))
    write(OF_SETS, [
        {"choice": choice, "size": size, "completeness": share, "completeness_low": share - 0.1, "completeness_high": share + 0.1}
        for choice, size in choices for share in [of[choice] if size > 2 else 0.01]
    ])  # fmt: skip


@pytest.fixture
def folders(tmp_path):
    first = write_small_run(tmp_path / "results" / RUNS[0])
    found = [first, *(shutil.copytree(first, first.with_name(name)) for name in RUNS[1:])]
    for folder in found:
        if folder.name in HAVE:
            give(folder, *HAVE[folder.name], **({"count": 3} if folder.name == "late" else {}))
    return found


def measure(folders, **options) -> Measured:
    settings = Comparison(runs=RUNS, memories="by_number", **options)
    compared = opened(folders, settings)
    runs = pd.DataFrame(dict.fromkeys(TABLE.names, "x") | {"run": RUNS, "label": compared.labels, "layers": 2})
    found = compare_behaviours(compared)
    nothing = {
        name: pd.DataFrame(columns=["figure", "curve"])
        for name in ("claims", "costs", "curves", "differences", "by_memory", "by_layer", "matches")
    }
    return Measured(name="by hand", settings=settings, memories="by_number", runs=runs, **nothing, **found)


def test_the_numbers_of_each_run_are_those_of_its_tables(folders):
    found = measure(folders, axis="step", values=[0, 5, 20]).behaviours.set_index("run")
    assert [*found.index] == ["early", "late"] and found["axis"].tolist() == [0, 20]
    assert found["other_settings"].tolist() == ["", "count"]
    assert found["accuracy"].tolist() == pytest.approx([2 / 5, 1]) and found["difference"].tolist() == [0, 2]
    # Student's t of the means of five groups, with standard deviation sqrt(5 / 8): 2.7764 x 0.79057 / sqrt(5) = 0.98162; they are
    # symmetric, so nothing is corrected. Ten independent prompts would give 0.54.
    assert found["difference_low"].to_numpy() == pytest.approx([-0.98162, 1.01838], abs=1e-4)
    assert found["difference_high"].to_numpy() == pytest.approx([0.98162, 2.98162], abs=1e-4)
    late = found.loc["late"]
    assert late[["size", "lost", "random_lost", "all_lost"]].tolist() == [4, 0.75, 0.125, 1.5]  # of the largest set
    assert late[["lost_low", "random_lost_high", "all_lost_low"]].tolist() == pytest.approx([0.65, 0.225, 1.4])
    assert found.loc["early", ["size", "lost", "random_lost", "all_lost"]].isna().all()


def test_tables_that_lack_a_behaviour_of_the_settings_are_told(folders):
    """A run that is not finished, or whose tables were changed by hand: in each of its tables."""
    path = folders[2] / SUMMARY.path
    whole = tables.read(path)
    tables.write(whole.head(0), path)
    with pytest.raises(UserError, match="late has tables of the behaviours none, and its settings name number"):
        measure(folders)
    tables.write(whole, path)
    tables.write(tables.read(folders[2] / OF_MEMORIES.path).head(0), folders[2] / OF_MEMORIES.path)
    with pytest.raises(UserError, match="late has no candidates of the behaviour number"):
        measure(folders)


@pytest.mark.parametrize("label", ["$x^{2$", "a $5 and $6", r"\frac{", r"$\foo$"])
def test_a_dollar_in_a_label_is_a_dollar_on_the_whole_page(folders, label):
    """Also in texts that matplotlib makes when it writes a figure, such as labels of an axis of runs."""
    measured = measure(folders, labels=["early", "middle", label])
    page = render(measured)
    texts = re.findall("<text [^>]*>([^<]*)</text>", page)
    assert texts.count(label) >= 4  # a label below each panel


def test_memories_are_followed_by_number(folders):
    measured = measure(folders)
    memories = measured.behaviour_memories
    assert memories[["run", "layer", "memory"]].to_numpy().tolist() == [
        ["early", 0, 0], ["early", 0, 1], ["late", 0, 0], ["late", 1, 0], ["late", 1, 1],
    ]  # fmt: skip
    assert memories["effect"].tolist()[2:] == [-0.5, 0.25, 2.0]  # total effects
    (row,) = measured.behaviour_overlaps.to_dict("records")
    assert (row["run"], row["next_run"], row["candidates"], row["next_candidates"]) == ("early", "late", 2, 3)
    assert row["shared"] == 1 and row["jaccard"] == 1 / 4
    # Layer 0 has three memories, of which one run has two and the other one: they share one in 2 of 3 cases.
    assert row["chance"] == pytest.approx(2 / 3 * 1 / 4)
    of_memories = behaviour_tables(measured)[1][1]
    assert of_memories.headers == ["memory", "promotes", "<bdi>early</bdi>", "<bdi>late</bdi>"]
    assert [row[0].memory for row in of_memories.rows] == ["L1.1", "L0.0", "L1.0", "L0.1"]  # the largest effect first
    assert [row[2:] for row in of_memories.rows] == [["–", "2.000"], ["–", "−0.500"], ["–", "0.250"], ["–", "–"]]
    assert "late1" in of_memories.rows[0][1] and "early1" in of_memories.rows[3][1]


def test_chance_is_what_random_sets_share():
    """Beside all pairs of sets: 2 of 4 memories and 3 of 4, and 1 of 3 and 2 of 3 in another layer."""
    pairs = [
        itertools.product(itertools.combinations(range(size), one), itertools.combinations(range(size), other))
        for one, other, size in ((2, 3, 4), (1, 2, 3))
    ]
    found = []
    for (a, b), (c, d) in itertools.product(*pairs):
        shared = len({*a} & {*b}) + len({*c} & {*d})
        found.append(shared / (2 + 3 + 1 + 2 - shared))
    assert jaccard_by_chance([(2, 3, 4), (1, 2, 3)]) == pytest.approx(np.mean(found))
    assert jaccard_by_chance([(1, 0, 3), (0, 1, 3)]) == 0


def test_runs_without_the_behaviour_are_named_and_left_out(folders):
    measured = measure(folders)
    assert note_behaviours(measured) == [
        "number: left out because they do not have it: middle.",
        "number: late has other settings than early: count.",
    ]
    assert "number: accuracy, and share that is lost when all memories are patched: 40\u00a0% and – in early, 100\u00a0% and 150\u00a0% in late." in summarize(measured)  # fmt: skip
    alone = [folders[1], folders[2]]
    found = compare_behaviours(opened(alone, Comparison(runs=RUNS[1:])))
    assert [len(each) for each in found.values()] == [0, 0, 0]  # only one run has it


@pytest.mark.parametrize("options", [{}, {"axis": "step", "values": [0, 5, 20]}])
def test_the_figure_and_the_tables_show_each_run(folders, options):
    measured = measure(folders, **options)
    (exhibit,) = draw_all_behaviours(measured)
    assert all(title in str(exhibit.inline) for title in ("mean logit difference", "lost with all memories"))
    by_run = behaviour_tables(measured)[0][1]
    assert by_run.same == (
        ("behaviour", "number"),
        ("patched", "at the last token"),
        ("prompts", "10"),
        ("groups", "5"),
    )
    label = "step 20" if options else "late"
    assert dict(zip(by_run.headers, by_run.rows[1], strict=True)) == {
        "run": f"<bdi>{label}</bdi>",
        "accuracy": "100\u00a0% (10\u00a0% to 100\u00a0%)",
        "logit difference": "2.00 (1.02 to 2.98)",
        "n": "4",
        "lost with n": "75\u00a0% (65\u00a0% to 85\u00a0%)",
        "random sets": "12\u00a0% (2.5\u00a0% to 22\u00a0%)",
        "lost with all": "150\u00a0% (140\u00a0% to 160\u00a0%)",
    }
    assert len(by_run.rows) == 2 and by_run.rows[0][3:] == ["–", "–", "–", "–"]
    assert isinstance(by_run.rows[0][0], Markup)  # else the page would escape it again
    none = replace(measured, behaviours=measured.behaviours.head(0))
    assert draw_all_behaviours(none) == behaviour_tables(none) == []


def test_behaviours_are_written_and_read_back(folders, tmp_path):
    measured = measure(folders)
    write_comparison(measured, tmp_path / "tables")
    found = read_comparison(tmp_path / "tables")
    for name in ("behaviours", "behaviour_memories", "behaviour_overlaps"):
        pd.testing.assert_frame_equal(getattr(found, name), getattr(measured, name), check_dtype=False)
    assert note_behaviours(found) == note_behaviours(measured)
