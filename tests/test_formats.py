"""docs/formats.md says what the files hold."""

from support import ROOT

from ffkv.base.files.hdf5 import FORMAT
from ffkv.workflow.formats import with_tables


def test_the_tables_of_datasets_are_current():
    page = (ROOT / "docs/formats.md").read_text()
    assert page == with_tables(page), "run `ffkv formats`"
    assert f"`format` ({FORMAT})" in page
