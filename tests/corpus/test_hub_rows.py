"""Rows of a data set in a local folder. Those of the hub: `tests/hub/test_rows.py`."""

import datasets

from ffkv.base.hub.commit import Commit
from ffkv.base.process.remarks import collected
from ffkv.corpus.hub_rows import read_rows


def test_a_warning_of_the_library_becomes_a_remark_once(tmp_path, monkeypatch):
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n')
    build = datasets.load_dataset_builder

    def warn_and_build(*arguments, **options):
        datasets.logging.get_logger("datasets.builder").warning("column label left out")
        return build(*arguments, **options)

    monkeypatch.setattr(datasets, "load_dataset_builder", warn_and_build)
    with collected() as remarks:
        assert list(read_rows(Commit("dataset", str(tmp_path), "main"), "default", "train", 0)) == [{"text": "one"}]
    assert remarks == ["datasets says: column label left out"]
