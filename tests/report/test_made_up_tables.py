"""The reports of the tests draw tables of made-up numbers, as they are described; and any such numbers can be drawn."""

import numpy as np
from report.made_up_rows import made_up

from ffkv.base.files import tables
from ffkv.branches.registry import BRANCHES
from ffkv.run.report import drawing
from ffkv.run.report.registry import FIGURES, has_figure, load_figure
from ffkv.run.results.expected import TABLES


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
