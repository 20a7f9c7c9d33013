"""What memories do on each prefix: by hand, against naive loops, and on the detector; files of other layers or models are refused."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sampled import write_detector_projections, write_prefixes
from support import WORDS, call_branch, word_tokenizer

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.steps import WHOLE, Part, Work
from ffkv.branches.composition.measure import count_effective, describe_memories, describe_prefixes, measure_composition
from ffkv.branches.composition.summarize import summarize_composition
from ffkv.branches.given import Given
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import Composition
from ffkv.branches.values.projections import read_projections, write_projections
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.head import head_file
from ffkv.model.head.head_file import load_head


def test_a_layer_of_four_memories_by_hand():
    m = np.array([[2, 0, -1, 1], [0, 0, 0, 0], [1, 1, 1, 1]], np.float32)
    top_v, norm = np.array([5, 6, 7, 5]), np.array([1, 1, 4, 2], np.float32)
    table = describe_memories(m, top_v, np.array([5, 7, 6]), norm, mass=0.75)
    assert table["active"].tolist() == [2, 0, 4]
    assert table["share"].tolist() == [0.5, 0, 1]
    assert table["agreeing"].tolist() == [2, 0, 1]  # memory 2 predicts 7 but is not active on the second prefix
    assert table["agreeing_all"].tolist() == [2, 1, 1]
    assert table.dtypes.tolist() == [np.int32, float, np.int32, np.int32, np.int32, float]
    # contributions 2 0 4 2 of 8: 4 + 2 reach 0.75; nothing on the second; 1 1 4 2 of 8: 4 + 2
    assert table["effective"].tolist() == [2, 0, 2]
    assert table["participation"].tolist() == pytest.approx([64 / 24, 0, 64 / 22])


@given(
    arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 7)), elements=st.floats(-4, 4, width=16)),
    st.floats(0.05, 1),
    st.integers(0, 9),
)
def test_against_naive_loops(m, mass, seed):
    generator, (prefixes, memories) = np.random.default_rng(seed), m.shape
    top_v, top_y = generator.integers(0, 3, memories), generator.integers(0, 3, prefixes)
    norm = generator.uniform(0.5, 2, memories)
    for prefix, row in enumerate(describe_memories(m, top_v, top_y, norm, mass).itertuples()):
        active = [top for value, top in zip(m[prefix], top_v, strict=True) if value > 0]
        assert (row.active, row.agreeing) == (len(active), active.count(top_y[prefix]))
        contributions = sorted((abs(float(value)) * size for value, size in zip(m[prefix], norm)), reverse=True)
        needed, carried = 0, 0.0
        while sum(contributions) > 0 and carried < mass * sum(contributions) * (1 - 1e-9):
            carried += contributions[needed]
            needed += 1
        assert row.effective == needed


def test_equal_contributions_participate_alike():
    table = describe_memories(np.ones((1, 10), np.float32), np.zeros(10, int), np.zeros(1, int), np.ones(10), 0.9)
    assert table["participation"].tolist() == pytest.approx([10])
    assert table["effective"].tolist() == [9]  # not 10: nine tenths are carried by nine


def test_prefixes_beyond_one_sort_are_counted_alike():
    m, norm = np.random.default_rng(0).standard_normal((1100, 5)), np.arange(1, 6)
    effective, participation = count_effective(m, norm, 0.9)
    rows = [count_effective(m[row : row + 1], norm, 0.9) for row in range(len(m))]
    assert effective.tolist() == [int(count[0]) for count, _ in rows]
    assert participation.tolist() == [float(number[0]) for _, number in rows]


def test_no_prefixes_give_no_rows():
    assert describe_memories(np.zeros((0, 4)), np.zeros(4, int), np.zeros(0, int), np.ones(4), 0.9).empty


def test_words_and_stop_words_are_about_words(write_corpus):
    tokenizer = word_tokenizer(["<bos>", "The", "cat", "sat", "on", "mat", "<unk>"])
    corpus = read_corpus(write_corpus(["The cat sat on The mat", "cat on"], tokenizer))
    sentence, position = np.array([0, 0, 1]), np.array([3, 5, 1])
    facts = describe_prefixes(corpus, sentence, position)
    assert facts["words"].tolist() == [3, 5, 1] and facts["prefix"].tolist() == [0, 1, 2]
    assert facts.dtypes.tolist() == [np.int32, np.int32, bool]
    assert facts["target_is_stop_word"].tolist() == [True, False, True]  # on, mat, on
    without_a_list = describe_prefixes(replace(corpus, language="xx"), sentence, position)["target_is_stop_word"]
    assert without_a_list.isna().all() and without_a_list.dtype == float


def test_a_word_that_a_token_begins_in_the_middle_of_a_character_is_the_next_one():
    """The second token ends after the first of the two bytes of “ü”, so that two characters are whole."""
    corpus = SimpleNamespace(
        language="de",
        pretokenized=False,
        texts=["x über"],
        prefix_text=lambda sentence, position: "x",
        character=lambda sentence, position: position,
        unfinished=lambda sentence, position: position == 2,
    )
    assert describe_prefixes(corpus, np.array([0]), np.array([1]))["target_is_stop_word"].tolist() == [True]


@pytest.fixture
def run(detector, write_corpus, tmp_path):
    """The files of `measure_composition`: model, prefixes that end with a, b, c, d, e and p, projections, corpus."""
    corpus = write_corpus([f"{word} p" for word in "abcdep"], load_tokenizer(detector))
    attributes = read_corpus(corpus).attributes
    prefixes = write_prefixes(
        tmp_path / "prefixes.h5", read_anatomy(detector), "abcdep", corpus_hash=attributes["corpus_hash"]
    )
    projections = write_detector_projections(tmp_path / "0.h5", detector)
    return {"model": detector, "prefixes": prefixes, "projections": projections, "validation": corpus}


def measured(run, settings=Composition(), part=WHOLE, **others):
    """The table by prefix. `others`: files in place of those of the run."""
    return measure_composition(Given(Work("cpu", part=part), **run | others), settings)


def test_values_and_outputs_of_the_detector(run):
    """Values of layer 0 write b, c, c, nothing (id 0 of equals), of layer 1 e, f, a, nothing. Layer 1 is silent on a to c."""
    table = measured(run, Composition(mass=0.9))
    first, second = (table[table["layer"] == layer] for layer in (0, 1))
    assert first["prefix"].tolist() == second["prefix"].tolist() == list(range(6))
    assert first["active"].tolist() == [1, 1, 1, 0, 0, 0]
    assert first["agreeing"].tolist() == [1, 1, 1, 0, 0, 0]
    # y is b, c, c, then nothing: the tie goes to id 0, which the dead memory predicts too
    assert first["agreeing_all"].tolist() == [1, 2, 2, 1, 1, 1]
    assert second["active"].tolist() == [0, 0, 0, 2, 1, 0]
    assert second["agreeing"].tolist() == [0, 0, 0, 1, 1, 0]  # d: y is 4 e and 2 f, so only the first memory agrees
    # contributions 4 and 2: two thirds do not reach the mass of 0.9, so both memories are effective
    assert second["effective"].tolist() == [0, 0, 0, 2, 1, 0]
    assert table["words"].tolist() == [1] * 12


def test_top_and_length_of_values_come_from_the_file_of_projections(run, tmp_path):
    projections = read_projections(run["projections"])
    changed = replace(
        projections,
        top=projections.top * 0 + WORDS.index("c"),
        norm=projections.norm * 0 + 1,
        attributes=projections.attributes,
    )
    write_projections(tmp_path / "changed.h5", changed)
    table = measured(run, Composition(mass=0.6), projections=tmp_path / "changed.h5")
    assert table["agreeing_all"].tolist() == [0, 4, 4, *[0] * 9]
    assert table["effective"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 2, 1, 0]  # d: 4 and 4 of 8


def test_outputs_are_read_with_the_projection_that_the_values_were_read_with(run, tmp_path, monkeypatch):
    heads = []
    monkeypatch.setattr(head_file, "load_head", lambda *arguments: heads.append(arguments) or load_head(*arguments))
    for projection in ("head", "unembedding"):
        write_detector_projections(tmp_path / "0.h5", run["model"], projection=projection)
        measured(run)
    assert heads == [(run["model"], "cpu", "head", False), (run["model"], "cpu", "unembedding", False)]


def test_groups_of_layers_change_nothing(run, tmp_path):
    groups = []
    for group in range(3):
        path = write_detector_projections(tmp_path / f"group-{group}.h5", run["model"], Part(group, 3).of(2))
        groups.append(measured(run, part=Part(group, 3), projections=path))
    assert sorted(map(len, groups)) == [0, 6, 6]
    whole = pd.concat([rows for rows in groups if len(rows)], ignore_index=True)
    pd.testing.assert_frame_equal(whole, measured(run))


@pytest.mark.parametrize("layers", [range(1, 2), range(2), range(0)])
def test_projections_of_other_layers_are_refused_by_name(run, tmp_path, layers):
    write_detector_projections(tmp_path / "other.h5", run["model"], layers)
    with pytest.raises(UserError, match=r"other\.h5 has layers .*, not layers \[0\]: .* same layer group"):
        measured(run, part=Part(0, 2), projections=tmp_path / "other.h5")


def test_files_of_another_model_or_corpus_are_refused_by_name(run, tmp_path):
    other, anatomy, foreign = tmp_path / "x.h5", read_anatomy(run["model"]), "0" * 16
    write_detector_projections(other, run["model"], model_hash=foreign)
    with pytest.raises(UserError, match=r"x\.h5 belongs to another model"):
        measured(run, projections=other)
    write_prefixes(other, anatomy, "ab", model_hash=foreign)
    with pytest.raises(UserError, match=r"x\.h5 belongs to another model"):
        measured(run, prefixes=other)
    write_prefixes(other, anatomy, "ab", corpus_hash=foreign)
    with pytest.raises(UserError, match=r"corpus\.h5 belongs to another corpus"):
        measured(run, prefixes=other)
    table = measured(run)
    table.attrs["model_hash"] = foreign
    tables.write(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"t\.parquet belongs to another model"):
        summarize_composition(Given(by_prefix=[tmp_path / "t.parquet"], model=run["model"]))


def test_the_commands_write_a_table_by_prefix_and_the_tables_of_the_figures(run, tmp_path):
    folder, files = tmp_path / "composition", " ".join(f"--{name} {path}" for name, path in run.items())
    call_branch("composition", f"measure {files} --mass 0.9 --device cpu --output {folder}/0.parquet")
    of_table = f"--by-prefix {folder}/0.parquet --model {run['model']}"
    call_branch("composition", f"summarize {of_table} --short-prefix 5 --output {folder}")
    settings = Composition(short_prefix=5)
    summaries = summarize_composition(Given(by_prefix=[folder / "0.parquet"], model=run["model"]), settings)
    assert summaries.keys() == {table.name for table in BRANCHES["composition"].steps["summarize"].writes}
    assert {path.stem for path in folder.glob("*.csv")} == set(summaries)
    assert tables.read(folder / "figure_8_no_agreement.csv")["no_agreement"].tolist() == [3, 4, 0, 0]
    assert tables.read(folder / "figure_7_effective_number.csv")["memories"].tolist() == [4, 4]
