import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import PathPatch

from ffkv.report import drawing, figures
from ffkv.report.page import drawn
from ffkv.report.results import paper_figures, read_results


@pytest.fixture(scope="module")
def tables(folder):
    return read_results(folder, folder / "settings.json").tables


def lines(axes):
    """Label to x and y of every line that stands in the legend."""
    return {line.get_label(): line.get_xydata().T for line in axes.lines if not line.get_label().startswith("_")}


def bars(axes):
    """Label to the heights of its bars."""
    return {each.get_label(): [bar.get_height() for bar in each] for each in axes.containers if len(each.get_label())}


def medians(axes):
    """Height of the median of every box, from the left."""
    return [line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 1.8]


def test_figure_2_stacks_the_shares_of_each_sample(tables):
    table = tables["keys/categories"]
    figure = figures.figure_2(table, paper_figures()["figure_2"])
    for axes, sample in zip(figure.axes, ("trigger", "random")):
        for category, heights in bars(axes).items():
            rows = table[(table["sample"] == sample) & (table["category"] == category)]
            np.testing.assert_allclose(heights, rows.sort_values("layer")["share"])
        assert axes.patches[-1].get_y() + axes.patches[-1].get_height() == pytest.approx(1)
    assert len(bars(figure.axes[2])["shallow"]) == 16


def test_figure_3_draws_the_mean_change_and_its_interval(tables):
    table = tables["keys/removal"]
    axes = figures.figure_3(table, None).axes[0]
    for removed in ("first", "last", "random"):
        rows = table[table["removed"] == removed]
        np.testing.assert_allclose(lines(axes)[f"{removed} token"][1], rows["change"])
    ends = [segment[:, 1] for collection in axes.collections for segment in collection.get_segments()]
    assert [-14, -10] in np.round(ends, 6).tolist()


def test_figure_4_draws_the_rate_its_baselines_and_the_negative_side(tables):
    table = tables["values/agreement"]
    sources = ["trigger", "negative", "permuted", "unigram", "uniform"]
    axes = figures.figure_4(table, paper_figures()["figure_4"]).axes[0]
    for (_, y), source in zip(lines(axes).values(), sources):
        np.testing.assert_allclose(y, table[table["source"] == source]["rate"])
    shown = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert len(shown) == 6  # with the paper's
    assert len({line.get_marker() for line in shown}) == len({str(line._dash_pattern) for line in shown}) == 6
    without = lines(figures.figure_4(table[table["source"] != "negative"], None).axes[0])
    assert len(without) == 4
    assert not any("negative" in label for label in without)


def test_figures_5_7_and_10_draw_boxes_from_their_summaries(tables):
    active = tables["composition/active"]
    for figure, table in (
        (figures.figure_5(tables["values/rank"], 30), tables["values/rank"]),
        (figures.figure_7(active, tables["composition/effective"], None), active),
        (figures.figure_10(tables["refinement/probability"], None), tables["refinement/probability"]),
    ):
        axes = figure.axes[0]
        assert medians(axes) == pytest.approx(table["median"].tolist())
        boxes = [patch.get_path().get_extents() for patch in axes.patches if isinstance(patch, PathPatch)]
        assert [box.y0 for box in boxes] == pytest.approx(table["q1"].tolist())
        assert [box.y1 for box in boxes] == pytest.approx(table["q3"].tolist())
        assert [(box.x0 + box.x1) / 2 for box in boxes] == pytest.approx((table["layer"] + 1).tolist())


def test_a_layer_without_a_box_is_left_out(tables):
    table = tables["values/rank"].copy()
    table.loc[2, ["whisker_low", "q1", "median", "q3", "whisker_high"]] = np.nan
    assert len(medians(figures.figure_5(table, 30).axes[0])) == len(table) - 1


def test_figure_6_says_how_many_values_are_in_each_bin(tables):
    table = tables["values/probability"]
    axes = figures.figure_6(table, None).axes[0]
    assert [text.get_text() for text in axes.texts] == [f"{count:,}" for count in table["values"]]
    np.testing.assert_allclose([bar.get_height() for bar in axes.patches], table["rate"])
    np.testing.assert_allclose([bar.get_x() for bar in axes.patches], table["low"])


def test_figure_7_draws_how_many_memories_carry_the_sum(tables):
    table = tables["composition/effective"]
    right = lines(figures.figure_7(tables["composition/active"], table, None).axes[1])
    np.testing.assert_allclose(right["effective number"][1], table["effective_median"])
    np.testing.assert_allclose(right["participation ratio"][1], table["participation_median"])


def test_figures_8_and_9_draw_shares(tables):
    table = tables["composition/agreement"]
    by_reading = lines(figures.figure_8(table, None).axes[0])
    np.testing.assert_allclose(by_reading["no active memory agrees"][1], table[table["reading"] == "active"]["share"])
    np.testing.assert_allclose(by_reading["no memory agrees"][1], table[table["reading"] == "all"]["share"])
    ((x, y),) = lines(figures.figure_9(tables["refinement/residual"], None).axes[0]).values()
    np.testing.assert_allclose(y, tables["refinement/residual"]["share"])
    np.testing.assert_allclose(x, range(1, 7))


def test_figure_11_stacks_five_cases(tables):
    table = tables["refinement/breakdown"]
    ours, paper = figures.figure_11(table, paper_figures()["figure_11"]).axes
    assert list(bars(ours)) == list(bars(paper)) == figures.CASES
    for case, heights in bars(ours).items():
        np.testing.assert_allclose(heights, table[table["case"] == case]["share"])


def test_the_papers_layers_stand_at_the_same_relative_depth(tables):
    axes = figures.figure_9(tables["refinement/residual"], paper_figures()["figure_9"]).axes[0]
    x, y = lines(axes)["the paper"]
    assert (x[0], x[-1], len(x)) == (1, 6, 16)
    assert y.tolist() == paper_figures()["figure_9"]
    (above,) = axes.child_axes
    assert above._functions[0](6) == pytest.approx(16)
    assert above._functions[1](1) == pytest.approx(1)


def test_a_model_of_the_papers_depth_shares_its_axis():
    table = pd.DataFrame({"layer": range(16), "share": 0.5, "low": 0.4, "high": 0.6})
    assert not figures.figure_9(table, paper_figures()["figure_9"]).axes[0].child_axes


def test_luminance_alone_tells_the_colours_apart():
    for count in range(2, 7):
        luminance = [np.dot(to_rgb(colour), (0.2126, 0.7152, 0.0722)) for colour in drawing.colours(count)]
        assert min(np.diff(luminance)) > 0.08


def test_the_papers_numbers_are_complete():
    paper = paper_figures()
    curves = []
    for name, numbers in paper.items():
        if name.startswith("figure"):
            curves += numbers.values() if isinstance(numbers, dict) else [numbers]
    assert {len(values) for values in curves} == {16, 8}
    np.testing.assert_allclose(np.sum(list(paper["figure_2"].values()), 0), 1)
    np.testing.assert_allclose(np.sum(list(paper["figure_11"].values()), 0), 1, atol=0.001)


def test_drawing_leaves_matplotlib_as_it_was(tables):
    before = dict(matplotlib.rcParams)
    with drawing.look():
        figures.figure_9(tables["refinement/residual"], None)
    assert dict(matplotlib.rcParams) == before


def test_every_figure_of_the_paper_is_drawn(folder):
    results = read_results(folder, folder / "settings.json")
    assert list(drawn(results)) == [*(f"figure_{number}" for number in range(2, 12)), "training"]
