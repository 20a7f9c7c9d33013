"""What the captions of a behaviour's figures say: of candidates and their p-values, of sets, and of what writes."""

import re

import numpy as np
import pandas as pd
import pytest

from ffkv.base.multiple_tests import q_values
from ffkv.branches.behaviours import section as section_behaviours
from ffkv.branches.behaviours import told as behaviour_words
from ffkv.branches.behaviours.summary_tables import OF_WRITERS
from ffkv.branches.behaviours.told import caption_layers, caption_sets, caption_writers, significant
from tests.run.report.conftest import TOLD
from tests.run.report.made_up_rows import BEHAVIOUR as NAME


def test_where_nothing_was_measured_few_groups_make_no_candidate_significant(having):
    its = having(
        explained=False,
        smallest_p=0.125,
        memories=lambda table: table.assign(effect=np.nan, effect_q=np.nan, q_value=0.5),
    )
    shows = caption_layers(its).shows
    assert re.fullmatch(
        r"agreement: \d+ candidates, of which none can be significant with so few groups of prompts; no exact effect was measured\.",
        shows,
    )


@pytest.mark.parametrize(("whole", "said"), [(0.41, "128 memories carry 41"), (np.nan, "100 memories carry 50")])
def test_the_largest_set_with_a_share_is_told_with_the_number_of_its_memories(having, whole, said):
    """The set of all memories has no share where the behaviour is measured from it. More memories than there are were asked for."""
    shares = {"choice": "screen", "size": [100, 200], "memories": [100, 128], "completeness": [0.5, whole]}
    its = having(sets=lambda table: table.iloc[[0, 0]].assign(behaviour=NAME, **shares))
    assert caption_sets(its).shows.startswith(f"agreement: {said}")


def of_writers(last: dict[str, list[float]], everywhere: dict[str, list[float]], **changes):
    """A table of writers: at the last token and at all, shares of all layers together, then of each; intervals 1 % to each side."""
    rows = [
        {
            "behaviour": NAME,
            "reach": reach,
            "positions": positions,
            "layer": n - 1,
            "writer": writer,
            "share": share,
            "prompts": 9,
        }
        for reach, positions, shares in (
            ("total", "last", last),
            ("total", "all", everywhere),
            ("direct", "last", last),
        )
        for writer, own in shares.items()
        for n, share in enumerate(own)
    ]
    table = OF_WRITERS.frame(
        [row | {"share_low": row["share"] - 0.01, "share_high": row["share"] + 0.01} for row in rows]
    )
    return table.assign(**changes)


LAST = {"memories": [0.07, 0.05, 0.1], "attention": [0.93, 0.6, 0.1]}
EVERYWHERE = {"memories": [1.0, 0.7, 0.2], "attention": [0.5, -0.1, 0.4]}


def test_who_carries_a_behaviour_is_one_sentence(run, change):
    own = change(tables={"behaviour_writers": of_writers(LAST, EVERYWHERE)})
    assert caption_writers(own).shows.replace("\u00a0", " ") == (
        "agreement: at the last token memories carry 7 % (6 % to 8 %), that of layer 1 most (10 %), and attention carries 93 %"
        " (92 % to 94 %), that of layer 0 most (60 %); at all tokens memories carry 100 % (99 % to 101 %), that of layer 0 most"
        " (70 %), and attention carries 50 % (49 % to 51 %), that of layer 1 most (40 %)."
    )
    none = change(tables={"behaviour_writers": of_writers(LAST, {})[:0]})
    (panel,) = section_behaviours.draw_writers(none, None).axes
    assert [each.get_text() for each in panel.texts] == ["nothing was measured"] and not panel.axison
    unsure = change(tables={"behaviour_writers": of_writers(LAST, {}, share=np.nan)})
    assert caption_writers(unsure).shows == (
        "agreement: at the last token no share can be told, because the difference of the two prompts is not surely above 0."
    )


def test_figures_show_the_control(having, monkeypatch):
    """Its candidates and its sets are grey, and named in the legend; the details of the captions have its numbers."""
    run = having()
    control = having(explained=True, sets=lambda table: table.assign(completeness=0.25))
    control.name = "other"
    for module in (behaviour_words, section_behaviours):
        monkeypatch.setattr(module, "open_control", lambda _: control)
    for draw, caption in (
        (section_behaviours.draw_layers, caption_layers),
        (section_behaviours.draw_sets, caption_sets),
    ):
        figure = draw(run, None)
        labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert labels.count("control: other") == 1
        assert "other" not in caption(run).shows and "In grey the control run other" in caption(run).more
        assert caption(run).more.endswith(f": {caption(control).shows.partition(' A p-value')[0]}")
    lines = [line.get_ydata() for line in figure.axes[0].lines if line.get_label() == "control: other"]
    assert len(lines) == 1 and (lines[0] == 0.25).all()
    control._tables["behaviour_writers"] = of_writers(LAST, EVERYWHERE)
    figure, caption = section_behaviours.draw_writers(run, None), caption_writers(run)
    grey = [line.get_ydata()[:2].tolist() for line in figure.axes[0].lines if "control" in str(line.get_label())]
    assert grey == [[0.6, 0.1], [0.05, 0.1]]  # attention and memories of each layer, at the last token
    assert caption.more.endswith(f": {caption_writers(control).shows}")
    rows = section_behaviours._asked(run).rows
    assert [str(row[0]) for row in rows] == ["<bdi>agreement</bdi>", "<bdi>agreement, other</bdi>"]


def test_no_count_of_effects_that_can_never_be_significant(having):
    """Candidates with too few random memories have no q-value. Of those that have one, the significant ones are counted."""
    few = having(memories=lambda table: table.assign(effect=1.0, effect_q=np.nan))
    assert significant(few, NAME) is None
    assert " candidates, of which none can be significant with so few random memories." in caption_layers(few).shows
    (row,) = section_behaviours._asked(few).rows
    assert row[8] == "–"
    some = having(memories=lambda table: table.assign(effect=-2.0, effect_q=np.where(table["layer"] == 1, 0.04, 0.3)))
    count = len(some.table("behaviour_memories").query("reach == 'total' and layer == 1"))
    assert re.match(
        rf"agreement: {count} of \d+ candidates are significant, L1\.\d+ most \(−2 logits\)\.",
        caption_layers(some).shows,
    )
    (row,) = section_behaviours._asked(some).rows
    assert row[8] == str(count)


def test_so_many_or_none(having):
    """Of 30 candidates with 99 random memories each, 6 or more are significant or none: k p-values of 1/100 give q = 0.3 / k."""
    its = having(memories=lambda table: table.query("reach == 'total'").iloc[[0] * 30].assign(effect=1.0, effect_q=1.0))
    assert (
        " A p-value is at least 1/100: so 6 or more of them are significant, or none is. With 599 controls, one alone can be."
        in caption_layers(its).shows
    )
    assert q_values(np.repeat([0.01, 1], [6, 24]), 30).min() <= 0.05 < q_values(np.repeat([0.01, 1], [5, 25]), 30).min()


def test_of_several_behaviours_a_floor_of_p_values_names_its_own(run, change):
    """`other` has enough controls for its candidates, so that the sentence is about `agreement` alone."""

    def both(table, **own):
        return pd.concat([table.assign(**own), table.assign(**own, behaviour="other")])

    measured = both(run.table("behaviour_memories").query("reach == 'total'").iloc[[0] * 30], effect=1.0, effect_q=1.0)
    tables = {"behaviours": both(run.table("behaviours"), **TOLD), "behaviour_memories": measured}
    behaviours = {NAME: {"prompts": "a.jsonl"}, "other": {"prompts": "b.jsonl", "controls": 599}}
    shows = caption_layers(change({"behaviours": behaviours}, tables=tables)).shows
    assert " agreement: A p-value is at least 1/100: so 6 or more of them" in shows and shows.count("A p-value") == 1
