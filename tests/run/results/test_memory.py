"""One memory of a run: its triggers, predictions, patterns, statistics; and the memories like it, by brute force over all pairs."""

import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from benchmarks.made_up_run import write_table
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.terminal import plain
from ffkv.run.results import memory as module
from ffkv.run.results.memory_name import memory_name, parse_memory_name
from ffkv.run.results.run import open
from tests.run.results.conftest import EXAMPLES, HOSTILE, IDENTITY, write_sentences

numbers = st.integers(0, 10**6)


@given(numbers, numbers, st.sampled_from(["L{}.{}", "{}.{}", "{}/{}", "L{}D{}", "  L{}.{}\n"]))
def test_a_name_is_read_as_it_is_written(layer, memory, form):
    assert parse_memory_name(form.format(layer, memory)) == (layer, memory)
    assert parse_memory_name(memory_name(layer, memory)) == (layer, memory)


@given(st.text(max_size=12))
def test_any_other_text_is_no_memory(text):
    try:
        layer, memory = parse_memory_name(text)
    except UserError as error:
        assert "L3.17" in str(error)
    else:
        assert (layer, memory) >= (0, 0)


@pytest.mark.parametrize("name", ["", "L3", "3.17.2", "L-1.2", "3,17", "l3.17", "٣.١", "L3.17e"])
def test_other_forms_are_refused(name):
    with pytest.raises(UserError, match="is not a memory"):
        parse_memory_name(name)


@pytest.mark.parametrize("place", [(1, 0), (np.int64(1), np.int32(0)), ("L1.0",), ("1.0",), ("1/0",), ("L1D0",)])
def test_a_memory_is_found_by_numbers_or_name(run, place):
    memory = run.memory(*place)
    assert (memory.layer, memory.memory, memory.name) == (1, 0, "L1.0")
    assert repr(memory) == "<Memory L1.0 of small>"


@pytest.mark.parametrize(
    "place, message",
    [
        ((2, 0), "no layer 2. The model has layers 0 to 1"),
        ((-1, 0), "no layer -1"),
        ((1, 2), "no memory 2 in layer 1. The layer has memories 0 to 1"),
        (("L0.3",), "no memory 3 in layer 0. The layer has memories 0 to 2"),
        ((1,), "Name the memory too"),
        (("L1.0", 3), "by two numbers"),
    ],
)
def test_a_memory_that_does_not_exist_is_refused(run, place, message):
    with pytest.raises(UserError, match=message):
        run.memory(*place)


def test_triggers_have_text_and_tokens(run):
    expected = {
        "rank": [0, 1],
        "coefficient": np.array([4, 2], np.float32),
        "text": [" é thechurch", " the church"],
        "last_token": ["church", " church"],
        "next_token": [" the", " nan"],
        "next_count": 1,
        "multiplicity": 1,
        "position": [3, 2],
        "sentence": [1, 0],
        "document": ["two.txt", "one.txt"],
        "title": "",
        "gate": 1,
        "up": 1,
    }
    pd.testing.assert_frame_equal(run.memory(0, 0).triggers, pd.DataFrame(expected), check_dtype=False)


def test_negative_triggers_have_the_other_sign(run):
    memory = run.memory(0, 0)
    assert memory.negative_triggers["coefficient"].tolist() == [-4, -2]
    assert memory.negative_triggers["gate"].tolist() == [-1, -1]
    assert memory.negative_triggers["up"].tolist() == [1, 1]
    assert memory.negative_triggers["text"].tolist() == memory.triggers["text"].tolist()


def test_a_dead_memory_has_no_triggers(run):
    memory = run.memory(0, 2)
    assert list(memory.triggers) == list(run.memory(0, 0).triggers)
    assert memory.triggers.empty
    assert memory.negative_triggers.empty
    assert memory.statistics["next_token"] == ""


def test_promoted_tokens_come_with_probabilities(run):
    promoted = run.memory("L0.1").promotes(2)
    assert promoted["token"].tolist() == [" the", "church"]
    assert promoted["id"].tolist() == [0, 2]
    assert promoted["probability"].to_numpy() == pytest.approx([0.25, 0.125])
    assert promoted["log_probability"].to_numpy() == pytest.approx(np.log([0.25, 0.125]))


def test_the_bottom_of_a_value_is_demoted(run):
    assert run.memory(1, 1).demotes(3)["token"].tolist() == [" the", " church", "church"]


@pytest.mark.parametrize("count", [0, 4])
def test_more_tokens_than_are_kept_are_refused(run, count):
    with pytest.raises(UserError, match=r"stores 3 tokens .* Ask for 1 to 3, or set values\.top_tokens"):
        run.memory(0, 0).promotes(count)


def test_patterns_are_those_of_the_trigger_examples(run):
    patterns = run.memory(1, 0).patterns
    assert patterns["pattern"].tolist() == [1, 0]  # the one in most examples first
    assert patterns["ranks"].map(list).tolist() == [[0], [0]]
    assert run.memory(1, 1).patterns.empty


def test_statistics_say_how_the_key_fires_and_what_the_value_predicts(run):
    statistics = run.memory(0, 0).statistics
    assert statistics.to_dict() == {
        "firing_rate": 0.5, "mean_coefficient": 0.75, "maximum_coefficient": 4, "trigger_examples": 2,
        "negative_rate": 0.5, "minimum_coefficient": -4, "negative_trigger_examples": 2,
        "norm": 1, "top_token": " church", "top_probability": pytest.approx(0.5), "next_token": " the", "rank": 1,
        "agrees": False, "matching": 1, "bottom_token": " é", "contribution": 0, "first_match": 0, "tied": False,
    }  # fmt: skip
    assert statistics.name == "L0.0"


def test_statistics_are_the_rows_of_all_memories(run):
    for row in run.memories().itertuples():
        statistics = run.memory(row.name).statistics
        assert statistics.to_dict() == {name: getattr(row, name) for name in statistics.index}


def test_the_histogram_has_a_row_per_bin(run):
    histogram = run.memory(0, 1).histogram
    assert histogram["prefixes"].tolist() == list(range(13, 26))
    assert histogram["low"][0] == -np.inf
    assert histogram["high"][0] == histogram["low"][1] == 0


def test_the_summary_is_escaped(run):
    html = run.memory(1, 0)._repr_html_()  # its trigger example and its pattern are hostile
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert "\u202e" not in html
    assert len(html) < 5000


def test_names_of_documents_are_told_and_shown_escaped_and_shortened(folder):
    """A corpus of an earlier version has no names; the same corpus with names belongs to the same run."""
    before = open(folder).memory(0, 0)
    assert before.triggers["title"].tolist() == ["", ""] and "<th>from</th>" not in before._repr_html_()
    named = f"<b>{HOSTILE}{'x' * 300}"
    (folder / "corpus/train.h5").unlink()
    write_sentences(folder / "corpus/train.h5", "train", ("", named))
    memory = open(folder).memory(0, 0)
    assert memory.triggers["title"].tolist() == memory.negative_triggers["title"].tolist() == [named, ""]
    html = memory._repr_html_()
    assert html.count("<th>from</th>") == 2 and f'<span title="{escape(plain(named))}">' in html
    assert html.count("x" * 300) == html.count("x…</bdi>") == 2 and not {"<b>", "<script", "\u202e", "\x07"} & {
        *re.findall(r"<b>|<script|\u202e|\x07", html)
    }


def test_tables_of_other_layer_groups_are_refused(run, folder):
    (folder / "values/projections/.1.h5.sha256").unlink()
    (folder / "values/projections/0.h5").replace(folder / "values/projections/1.h5")
    with pytest.raises(UserError, match=r"does not hold L1\.0"):
        run.memory(1, 0).promotes(1)


def test_a_damaged_table_is_named(run, folder):
    (folder / "keys/patterns/0.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"patterns/0\.parquet"):
        _ = run.memory(0, 0).patterns


def test_layers_without_gates_have_no_signs(folder):
    text = (folder / "model/anatomy.json").read_text().replace('"gate": "h.0.g"', '"gate": ""')
    (folder / "model/anatomy.json").write_text(text)
    assert not {"gate", "up"} & set(open(folder).memory(0, 0).triggers)


def test_a_run_that_keeps_no_tokens_of_this_memory_is_refused(folder):
    write_table(folder, "values/by_memory/0.parquet", {"layer": [0], "memory": [0]})
    with pytest.raises(UserError, match="does not hold every memory once"):
        open(folder).memories()


def test_hostile_tokens_stay_as_they_are_in_tables(run):
    assert run.memory(1, 0).triggers["last_token"].tolist() == [HOSTILE]


NAMES = ["L0.0", "L0.1", "L0.2", "L1.0", "L1.1"]


@pytest.fixture
def values(folder) -> np.ndarray:
    """The values of the small run; that of L0.2 is zero."""
    made = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    made[2] = 0
    with hdf5.create(folder / "values.h5", "values", IDENTITY) as file:
        hdf5.put(file, "value", made, ["memory", "width"], "1", "values")
    return made


@pytest.mark.parametrize("rows", [1, 2, 8192])
def test_by_value_is_the_cosine(run, values, monkeypatch, rows):
    monkeypatch.setattr(module, "ROWS", rows)
    for row, name in enumerate(NAMES):
        found = run.memory(name).similar("value", 10)
        length = np.linalg.norm(values, axis=1)
        cosine = values @ values[row] / np.where(length * length[row] > 0, length * length[row], 1)
        assert sorted(found["name"]) == sorted({*NAMES} - {name})
        assert found["cosine"].is_monotonic_decreasing
        expected = [cosine[NAMES.index(other)] for other in found["name"]]
        assert found["cosine"].to_numpy() == pytest.approx(expected, abs=1e-6)  # float32 sums of four terms


@pytest.mark.parametrize("size", [1, 2**25])
def test_by_coefficients_is_the_correlation(folder, run, monkeypatch, size):
    monkeypatch.setattr(module, "COEFFICIENT_BYTES", size)
    m = np.random.default_rng(0).normal(3, 1, size=(40, 5)).astype(np.float32)
    m[:, 2] = 0.1  # this coefficient never changes
    m[:, 4] = 2 - m[:, 0]
    with hdf5.create(
        folder / "sampled_prefixes.h5",
        "sampled prefixes",
        {**IDENTITY, "corpus_hash": run.files.corpora["validation"]["corpus_hash"]},
    ) as file:
        hdf5.put(file, "m", m, ["prefix", "memory"], "1", "coefficients")
    found = run.memory("L0.0").similar("coefficients")
    expected = np.corrcoef(m[:, [0, 1, 3, 4]], rowvar=False)[0]
    assert sorted(found["name"]) == ["L0.1", "L1.0", "L1.1"]
    assert found["name"].iloc[-1] == "L1.1"
    by_name = dict(zip(["L0.0", "L0.1", "L1.0", "L1.1"], expected))
    assert found["correlation"].to_numpy() == pytest.approx([by_name[name] for name in found["name"]], abs=1e-6)
    assert run.memory("L0.2").similar("coefficients").empty


def test_by_triggers_counts_prefixes_of_both(folder):
    # L0.1 gets both prefixes of L1.1, L1.0 one of them and one of another length.
    with hdf5.h5py.File(folder / "triggers.h5", "r+") as file:
        for row, places in ((1, [(2, 1), (1, 2)]), (3, [(2, 1), (1, 3)])):
            file["sentence"][row], file["position"][row] = np.array(places).T
            file["count"][row] = 2
    (folder / ".triggers.h5.sha256").unlink()
    run = open(folder)
    found = run.memory("L1.1").similar("triggers")
    assert found[["name", "shared"]].to_numpy().tolist() == [["L0.1", 2], ["L1.0", 1]]
    assert run.memory("L0.2").similar("triggers").empty
    assert found[["layer", "memory"]].to_numpy().tolist() == [[0, 1], [1, 0]]
    assert EXAMPLES[2][0][0] == 0  # L0.2 has no trigger example


@pytest.mark.parametrize("options", [{"by": "key"}, {"count": 0}])
def test_what_cannot_be_compared_is_refused(run, options):
    with pytest.raises(UserError, match="by is 'value', 'coefficients' or 'triggers', and count"):
        run.memory("L0.0").similar(**options)
