import re
import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgb
from matplotlib.patches import PathPatch
from support import FULL

from ffkv.branches.refinement.section import CASES
from ffkv.run.report import drawing
from ffkv.run.report.curve import draw_control
from ffkv.run.report.registry import FIGURES, load_figure
from ffkv.run.report.section import draw_exhibits, paper_numbers
from ffkv.run.report.svg import write_svg
from ffkv.run.results.run import open


def draw(name, run, paper=False):
    """The figure of a run; with the paper's own numbers if `paper`."""
    return load_figure(name).draw(run, paper_numbers()[name] if paper else None)


def lines(axes):
    """Label to x and y of every line that stands in the legend."""
    return {line.get_label(): line.get_xydata().T for line in axes.lines if not line.get_label().startswith("_")}


def bars(axes):
    """Label to the heights of its bars."""
    return {each.get_label(): [bar.get_height() for bar in each] for each in axes.containers if len(each.get_label())}


def medians(axes):
    """Height of the median of every box, from the left."""
    return [line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 1.8]


def test_figure_2_stacks_the_shares_and_marks_what_random_prefixes_have(run):
    table = run.table("figure_2_categories")
    axes, of_paper = draw("figure_2", run, paper=True).axes
    found = bars(axes)
    for category, heights in found.items():
        rows = table[(table["sample"] == "trigger") & (table["category"] == category)]
        np.testing.assert_allclose(heights, rows.sort_values("layer")["share"])
    assert axes.patches[-1].get_y() + axes.patches[-1].get_height() == pytest.approx(1)
    (marks,) = axes.collections
    without = table[(table["sample"] == "random") & (table["category"] == "none")].sort_values("layer")["share"]
    np.testing.assert_allclose(marks.get_offsets()[:, 1], 1 - without)
    assert len(bars(of_paper)["shallow"]) == 16


def test_figure_3_draws_the_median_change_and_the_interval_of_the_mean(run):
    table = run.table("figure_3_removal")
    axes = draw("figure_3", run).axes[0]
    for removed in ("first", "last", "random"):
        rows = table[table["removed"] == removed]
        np.testing.assert_allclose(lines(axes)[f"{removed} token"][1], rows["median"])
    ends = [segment[:, 1] for collection in axes.collections for segment in collection.get_segments()]
    assert [-14, -10] in np.round(ends, 6).tolist()


def test_a_wide_interval_does_not_set_the_axis(run, change):
    """Medians from -71 to -8, so that intervals have room from -106.5 to 35.5 (0 counts as a point)."""
    table = run.table("figure_3_removal").copy()
    assert draw("figure_3", run).axes[0].get_xlabel() == "layer"
    table.loc[(table["removed"] == "first") & (table["layer"] == 3), ["change", "high"]] = [24, 247]
    table.loc[table["layer"] == 5, ["low", "high"]] = np.nan  # unknown
    axes = draw("figure_3", change(tables={"figure_3_removal": table})).axes[0]
    assert axes.get_ylim()[1] == pytest.approx(35.5 + 3.55)
    assert axes.get_xlabel() == "layer (intervals longer than shown: 1)"


def test_figure_4_draws_the_rate_its_baselines_and_the_negative_side(run, change):
    table = run.table("figure_4_agreement")
    sources = ["trigger", "negative", "permuted", "unigram", "uniform"]
    axes = draw("figure_4", run, paper=True).axes[0]
    for (_, y), source in zip(lines(axes).values(), sources):
        np.testing.assert_allclose(y, table[table["source"] == source]["rate"])
    shown = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert len(shown) == 6  # with the paper's
    assert len({line.get_marker() for line in shown}) == len({str(line._dash_pattern) for line in shown}) == 6
    changed = change(tables={"figure_4_agreement": table[table["source"] != "negative"]})
    without = lines(draw("figure_4", changed).axes[0])
    assert len(without) == 4
    assert not any("negative" in label for label in without)


def test_figures_5_7_and_10_draw_boxes_from_their_summaries(run):
    for name in ("figure_5_rank", "figure_7_active_memories", "figure_10_final_probability"):
        table, axes = run.table(name), draw(re.match(r"figure_\d+", name)[0], run).axes[0]
        assert medians(axes) == pytest.approx(table["median"].tolist())
        boxes = [patch.get_path().get_extents() for patch in axes.patches if isinstance(patch, PathPatch)]
        assert [box.y0 for box in boxes] == pytest.approx(table["q1"].tolist())
        assert [box.y1 for box in boxes] == pytest.approx(table["q3"].tolist())
        assert [(box.x0 + box.x1) / 2 for box in boxes] == pytest.approx(table["layer"].tolist())


def test_a_layer_without_a_box_is_left_out(run, change):
    table = run.table("figure_5_rank")
    table.loc[2, ["whisker_low", "q1", "median", "q3", "whisker_high"]] = np.nan
    assert len(medians(draw("figure_5", change(tables={"figure_5_rank": table})).axes[0])) == len(table) - 1


def test_figure_6_says_how_many_values_are_in_each_bin(run):
    table = run.table("figure_6_top_probability")
    axes = draw("figure_6", run).axes[0]
    assert [text.get_text() for text in axes.texts] == [f"{count:,}" for count in table["values"]]
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], table["rate"])
    np.testing.assert_allclose([bar.get_x() for bar in axes.patches], table["low"])


def test_a_bin_of_few_values_does_not_set_the_axis_of_figure_6(run, change):
    """Three bins without agreement: of 100,000 values, of none, of 4. The interval of 4 ends at 49 %."""
    high = [0.00004, 1.0, 0.49]
    bins = {"low": [0, 1, 2], "high": [1, 2, 3], "values": [100_000, 0, 4], "rate": [0, np.nan, 0]}
    table = pd.DataFrame({**bins, "rate_low": 0.0, "rate_high": high})
    axes = draw("figure_6", change(tables={"figure_6_top_probability": table})).axes[0]
    assert axes.get_ylim() == pytest.approx((0, 0.0011))
    assert axes.get_xlabel() == "top probability of the value (intervals longer than shown: 1)"
    assert [text.xy[1] for text in axes.texts] == [0.00004, 0, 0.001]


def test_figure_7_draws_how_many_memories_carry_the_sum(run):
    table = run.table("figure_7_effective_number")
    right = lines(draw("figure_7", run).axes[1])
    np.testing.assert_allclose(right["effective number"][1], table["effective_median"])
    np.testing.assert_allclose(right["participation ratio"][1], table["participation_median"])


def test_figures_8_and_9_draw_shares(run):
    table = run.table("figure_8_no_agreement")
    by_reading = lines(draw("figure_8", run).axes[0])
    np.testing.assert_allclose(by_reading["no active memory agrees"][1], table[table["reading"] == "active"]["share"])
    np.testing.assert_allclose(by_reading["no memory agrees"][1], table[table["reading"] == "all"]["share"])
    ((x, y),) = lines(draw("figure_9", run).axes[0]).values()
    np.testing.assert_allclose(y, run.table("figure_9_residual_agreement")["share"])
    np.testing.assert_allclose(x, range(6))


def test_figure_11_stacks_five_cases(run):
    table = run.table("figure_11_breakdown")
    ours, paper = draw("figure_11", run, paper=True).axes
    assert list(bars(ours)) == list(bars(paper)) == CASES
    for case, heights in bars(ours).items():
        np.testing.assert_allclose(heights, table[table["case"] == case]["share"])


def test_the_papers_layers_stand_at_the_same_relative_depth(run):
    axes = draw("figure_9", run, paper=True).axes[0]
    x, y = lines(axes)["the paper"]
    assert (x[0], x[-1], len(x)) == (0, 5, 16)
    assert y.tolist() == paper_numbers()["figure_9"]
    (above,) = axes.child_axes
    assert above._functions[0](5) == pytest.approx(16)
    assert above._functions[1](1) == pytest.approx(0)


def test_layers_count_from_0_but_on_the_papers_own_axis(run):
    for name in FIGURES:
        for axes in draw(name, run, paper=name in paper_numbers()).axes:
            if "layer" in axes.get_xlabel():
                of_paper = "paper" in axes.get_xlabel()
                assert ("counted from 1" in axes.get_xlabel()) is of_paper
                assert axes.get_xlim()[0] == pytest.approx(0.4 if of_paper else -0.6)
            for above in axes.child_axes:
                assert above.get_xlabel() == "the paper's layer, counted from 1"


def test_a_model_of_the_papers_depth_shares_its_axis(run, change):
    table = pd.DataFrame({"layer": range(16), "share": 0.5, "low": 0.4, "high": 0.6})
    anatomy = replace(run.anatomy, layers=run.anatomy.layers[:1] * 16)
    changed = change(tables={"figure_9_residual_agreement": table}, anatomy=anatomy)
    assert not draw("figure_9", changed, paper=True).axes[0].child_axes


def test_luminance_alone_tells_the_colours_apart():
    for count in range(2, 7):
        luminance = [np.dot(to_rgb(colour), (0.2126, 0.7152, 0.0722)) for colour in drawing.colours(count)]
        assert min(np.diff(luminance)) > 0.08


def test_the_papers_numbers_are_complete():
    paper = paper_numbers()
    curves = []
    for name, numbers in paper.items():
        if name.startswith("figure"):
            curves += numbers.values() if isinstance(numbers, dict) else [numbers]
    assert {len(values) for values in curves} == {16, 8}
    np.testing.assert_allclose(np.sum(list(paper["figure_2"].values()), 0), 1)
    np.testing.assert_allclose(np.sum(list(paper["figure_11"].values()), 0), 1, atol=0.001)


def test_drawing_leaves_matplotlib_as_it_was(run):
    before = dict(matplotlib.rcParams)
    with drawing.look():
        draw("figure_9", run)
    assert dict(matplotlib.rcParams) == before


def test_an_axis_of_shares_has_the_minus_of_printed_text():
    assert [drawing.as_percentage(share, 0) for share in (-0.2, 0, 0.125)] == ["−20 %", "0 %", "12.5 %"]


def test_layers_that_a_table_lacks_have_no_shares():
    table = pd.DataFrame({"layer": [1], "kind": ["a"], "share": [1.0]})
    found = drawing.shares_by(table, "kind", ["a", "b"], layers=3)
    assert {name: shares.tolist() for name, shares in found.items()} == {"a": [0, 1, 0], "b": [0, 0, 0]}
    assert drawing.shares_by(table[:0], "kind", ["a"], layers=2)["a"].tolist() == [0, 0]


class Recorder(RendererAgg):
    """A renderer that remembers the texts that are drawn."""

    def draw_text(self, gc, x, y, s, prop, angle, ismath=False, mtext=None):
        self.__dict__.setdefault("texts", []).append(mtext)


def assert_texts_stand_apart(figure):
    """All texts of a figure are inside it, and no two of them touch."""
    width, height = figure.bbox.size
    renderer = Recorder(width, height, figure.dpi)
    figure.draw(renderer)
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in renderer.texts]
    assert len(boxes) > 5
    for text, box in boxes:
        assert box.x0 > -1 and box.y0 > -1 and box.x1 < width + 1 and box.y1 < height + 1, text
    for (text, box), (other, its) in combinations(boxes, 2):
        apart = max(box.x0 - its.x1, its.x0 - box.x1, box.y0 - its.y1, its.y0 - box.y1)
        assert apart > 0, (text, other)


@pytest.mark.many
@pytest.mark.parametrize("layers", [1, 2, 6, 12, 30, 80] if FULL else [1, 80])
def test_no_texts_of_any_figure_touch(write, layers):
    """With lines of a control, which most reports have; those that can have them, without them only with `FULL`."""
    run = open(write(layers=layers, report={"cards": 0}))
    with drawing.look():
        for name in FIGURES:
            curves = load_figure(name).curves
            for paper in {False, name in paper_numbers()}:
                figure = draw(name, run, paper=paper)
                if FULL or not curves:
                    assert_texts_stand_apart(figure)
                if curves:
                    assert draw_control(figure, curves, run)
                    assert_texts_stand_apart(figure)


def test_labels_of_small_probabilities_stand_apart(change):
    """As of a random model, whose values all promote a token by as little."""
    bins = pd.DataFrame({"low": 6.7e-4 + 1.9e-5 * np.arange(8), "high": 6.9e-4 + 1.9e-5 * np.arange(8)})
    table = bins.assign(values=8, agreeing=1, rate=0.1, rate_low=0.01, rate_high=0.15)
    with drawing.look():
        assert_texts_stand_apart(draw("figure_6", change(tables={"figure_6_top_probability": table}), paper=True))


def test_texts_that_touch_are_noticed():
    with drawing.look():
        figure, (axes,) = drawing.canvas()
    axes.set_xticks([0, 0.01], ["some layer", "another one"])
    with pytest.raises(AssertionError, match=r"some layer.*another one"):
        assert_texts_stand_apart(figure)


@pytest.mark.parametrize(
    ("first", "last", "most", "shown"),
    [
        (0, 0, 16, [0]),
        (0, 5, 16, [0, 1, 2, 3, 4, 5]),
        (0, 11, 8, [0, 2, 4, 6, 8, 11]),
        (0, 29, 16, [*range(0, 28, 2), 29]),
        (0, 79, 16, [*range(0, 76, 5), 79]),
        (0, 79, 5, [0, 20, 40, 60, 79]),
        (1, 16, 5, [1, 5, 10, 16]),
    ],
)
def test_the_first_and_the_last_layer_always_have_a_label(first, last, most, shown):
    assert drawing.layer_ticks(first, last, most) == shown


def test_tables_have_the_number_of_their_figure(run):
    for name in (name for name in FIGURES if name.startswith("figure_")):
        for table in load_figure(name).tables:
            assert table == name or table.startswith(f"{name}_")


def test_the_list_of_figures_can_be_read_without_drawing_anything():
    code = "import sys, ffkv.run.report.registry; sys.exit(bool({'matplotlib', 'pandas', 'pydantic', 'torch'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_interventions_draw_each_source_and_both_reaches(run, change):
    table = run.table("interventions_by_layer").query("side == 'positive'")
    figure = draw("interventions", run)
    for axes, reach in zip(figure.axes, ("direct", "total")):
        found = lines(axes)
        assert len(found) == 5
        for (_, y), source in zip(
            found.values(), ("own", "random_memories", "random_directions", "similar_size", "placebo")
        ):
            np.testing.assert_allclose(y, table[(table["reach"] == reach) & (table["source"] == source)]["mean"])
    without = change(
        tables={"interventions_by_layer": run.table("interventions_by_layer").query("source != 'similar_size'")}
    )
    assert len(lines(draw("interventions", without).axes[0])) == 4


def test_doses_are_drawn_in_order_with_a_factor_of_one_that_changes_nothing(run, change):
    figure = draw("intervention_doses", run)
    assert [axes.get_title() for axes in figure.axes] == ["positive coefficients", "negative coefficients"]
    x, y = lines(figure.axes[0])["total effect"]
    assert x.tolist() == [-1, 0, 0.5, 1, 2] and y.tolist() == [-0.9, -0.5, -0.2, 0, 0.6]
    one_side = change(tables={"intervention_doses": run.table("intervention_doses").query("side == 'positive'")})
    assert len(draw("intervention_doses", one_side).axes) == 1


def test_kept_memories_are_drawn_for_some_layers(run):
    left, right = draw("kept_memories", run).axes
    assert list(lines(left)) == [f"layer {number}" for number in (0, 2, 3, 5)]
    assert lines(left)["layer 3"][1].tolist() == [0.6, 0.9] and lines(right)["layer 3"][1].tolist() == [0.6, 0.65]


@pytest.mark.slow
def test_a_run_without_interventions_has_no_figure_of_them(run, change, undrawn):
    settings = run.settings.model_copy(
        update={"intervention": run.settings.intervention.model_copy(update={"memories": 0})}
    )
    exhibits = draw_exhibits(change(settings=settings))
    assert not {"interventions", "intervention_doses", "kept_memories"} & exhibits.keys() and "figure_11" in exhibits


@pytest.mark.parametrize(
    ("sizes", "labels"),
    [
        ([1, 5], ["1", "5"]),
        ([3], ["3"]),
        ([200, 1], ["1", "200"]),
        ([7, 8, 9], ["7", "8", "9"]),
        ([1, 2, 5, 10, 20, 50, 100, 200], ["1", "2", "5", "10", "20", "50", "100", "200"]),
        ([1, 1000, 1001], ["1", "1,000", ""]),
    ],
)
def test_the_axis_of_sets_has_ticks_at_the_sizes_and_plain_labels(run, change, sizes, labels):
    table = run.table("behaviour_sets")
    own = table[table["choice"].isin(["screen", "random"])].groupby("choice").head(1)
    found = pd.concat([own.assign(size=size) for size in sizes], ignore_index=True)
    with drawing.look():
        figure = draw("behaviour_sets", change(tables={"behaviour_sets": found}))
        svg = ElementTree.fromstring(write_svg(figure, "behaviour_sets", "Sets", "All."))
    texts = [text.strip() for text in svg.itertext()]
    assert not any("$" in text for text in texts) and {*labels} - {""} <= {*texts}
    (axis,) = {axes.xaxis for axes in figure.axes}
    assert axis.get_ticklocs().tolist() == sorted(sizes) and not len(axis.get_minorticklocs())
    assert [label.get_text() for label in axis.get_ticklabels()] == labels


def test_a_behaviour_of_which_no_set_was_measured_has_an_empty_panel(run, change):
    """A model that does not do what the behaviour asks for has no sets."""
    none = change(tables={"behaviour_sets": run.table("behaviour_sets").iloc[:0]})
    assert "<svg" in write_svg(draw("behaviour_sets", none), "behaviour_sets", "Sets", "No set.")
