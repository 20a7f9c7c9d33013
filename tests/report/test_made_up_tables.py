"""The reports of the tests draw tables of made-up numbers, with the columns that the steps write."""

from support import described_columns

from ffkv.base.files import tables

COLUMNS = {path: names for path, names in described_columns().items() if path.endswith(".csv")}


def test_made_up_tables_have_the_columns_that_the_docs_promise(run):
    made = {str(path.relative_to(run.folder)): tables.read(path).columns.tolist() for path in run.folder.rglob("*.csv")}
    assert len(made) > 15
    assert made == {path: COLUMNS[path] for path in made}
