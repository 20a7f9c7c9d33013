"""Tidy tables: what is written is read back, whatever text a corpus holds."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import refused, tries

from ffkv.base.files import tables

AWKWARD = [
    *("nan", "null", "NA", "", " ", 'say "so"', "a\nb", "a\r\nb", "a\rb", "a,b"),
    *("=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("http://x","y")', "\t=1", "=cmd|' /C calc'!A0"),  # formulas
    *("'", "1", "true", "😀", "\\"),
]


@pytest.fixture(params=["a.csv", "a.parquet"])
def path(request, tmp_path):
    return tmp_path / request.param


def test_numbers_texts_and_truth_values_come_back(path):
    frame = pd.DataFrame(
        {"layer": [0, 1, 2], "share": [0.1, np.nan, 1e-30], "agrees": [True, False, True], "text": ["a", "", "c"]}
    )
    tables.write(frame, path)
    pd.testing.assert_frame_equal(tables.read(path), frame, check_dtype=False)


def test_the_texts_of_a_corpus_come_back_to_the_letter(path):
    tables.write(pd.DataFrame({"token": AWKWARD}), path)
    assert tables.read(path)["token"].tolist() == AWKWARD


def test_a_column_of_texts_stays_text_whatever_it_looks_like(subtests, path):
    for text in AWKWARD:
        with subtests.test(text=text):
            tables.write(pd.DataFrame({"token": [text, text], "rank": [1, 2]}), path)
            frame = tables.read(path, texts=["token", "not among them"])
            assert frame["token"].tolist() == [text, text]
            assert frame["rank"].tolist() == [1, 2]


@given(st.lists(st.text(st.characters(blacklist_categories=["Cs"]), max_size=6), min_size=1, max_size=5))
@hypothesis_settings(max_examples=tries(40))
def test_any_text_comes_back(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("tables")
    for name in ("a.csv", "a.parquet"):
        tables.write(pd.DataFrame({"layer": range(len(texts)), "token": texts}), folder / name)
        assert tables.read(folder / name, texts=["token"])["token"].tolist() == texts


def test_a_table_without_rows_keeps_its_columns(path):
    tables.write(pd.DataFrame({"layer": [], "token": []}), path)
    frame = tables.read(path)
    assert (list(frame.columns), len(frame)) == (["layer", "token"], 0)


def test_csv_keeps_ten_digits(tmp_path):
    tables.write(pd.DataFrame({"share": [1 / 3]}), tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "share\n0.3333333333\n"


def test_the_same_table_gives_the_same_bytes(path):
    frame = pd.DataFrame({"layer": [0, 1], "token": ["a", "b"], "share": [0.5, np.nan]})
    tables.write(frame, path)
    first = path.read_bytes()
    tables.write(frame.copy(), path)
    assert path.read_bytes() == first


def test_groups_are_put_together_and_empty_ones_change_no_type(tmp_path):
    full, empty = pd.DataFrame({"layer": [0, 1]}), pd.DataFrame({"layer": []}, dtype=object)
    for name, frame in (("0", full), ("1", empty), ("2", full)):
        tables.write(frame, tmp_path / f"{name}.parquet")
    together = tables.read_all(tmp_path / f"{name}.parquet" for name in "012")
    assert together["layer"].tolist() == [0, 1, 0, 1]
    assert together["layer"].dtype == np.int64
    assert list(tables.read_all([tmp_path / "1.parquet"]).columns) == ["layer"]


def test_a_missing_table_names_the_remedy(path):
    with refused("does not exist: run the step that makes it first"):
        tables.read(path)


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.csv", b""),
        ("a.csv", b"a,b\n1\n1,2,3\n"),
        ("a.csv", b"a\n\xff"),
        ("a.parquet", b""),
        ("a.parquet", b"PAR1 and no more"),
    ],
)
def test_a_damaged_table_is_refused_by_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with refused(rf"{name} cannot be read"):
        tables.read(tmp_path / name, texts=["a"])


def test_a_failure_leaves_no_table(tmp_path):
    with pytest.raises(Exception, match=r"cannot mix|Conversion failed|Expected bytes"):
        tables.write(pd.DataFrame({"mixed": ["a", 1]}), tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([0], r"layers \[1\] are missing"),
        ([0, 1, 2], r"layers \[2\] are missing, or not of this model"),
        ([0, 1, 1], r"layers \[1\] are there more than once"),
    ],
)
def test_groups_that_do_not_make_a_whole_are_refused(layers, message):
    with refused(message):
        tables.check_layers(pd.DataFrame({"layer": layers, "memory": 0}), ["layer", "memory"], {0, 1}, "TABLES")


def test_a_cell_of_megabytes_comes_back(tmp_path):
    """pyarrow reads blocks of one MiB by default, and a row must fit into one."""
    tables.write(pd.DataFrame({"text": ["x" * 2_200_000, "y"]}), tmp_path / "t.csv")
    assert tables.read(tmp_path / "t.csv")["text"].str.len().tolist() == [2_200_000, 1]
