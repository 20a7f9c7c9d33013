"""The steps of `composition` on the detector, by hand; files of other layers or models are refused."""

from dataclasses import replace

import pandas as pd
import pytest
from click.testing import CliRunner
from sampled import write_detector_projections, write_prefixes
from support import WORDS

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.parts import Part
from ffkv.base.settings import Composition
from ffkv.base.steps import Work
from ffkv.branches.commands import command_group
from ffkv.branches.composition import step
from ffkv.branches.composition.step import measure_composition, summarize_composition
from ffkv.branches.registry import BRANCHES
from ffkv.branches.values.projections import read_projections, write_projections
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.head.head_file import load_head


@pytest.fixture
def run(detector, write_corpus, tmp_path):
    """The inputs of `measure_composition`: model, prefixes that end with a, b, c, d, e and p, projections, corpus."""
    corpus = write_corpus([f"{word} p" for word in "abcdep"], load_tokenizer(detector))
    attributes = read_corpus(corpus).attributes
    prefixes = write_prefixes(
        tmp_path / "prefixes.h5", read_anatomy(detector), "abcdep", corpus_hash=attributes["corpus_hash"]
    )
    return detector, prefixes, write_detector_projections(tmp_path / "0.h5", detector), corpus


def test_values_and_outputs_of_the_detector(run):
    """Values of layer 0 write b, c, c, nothing (id 0 of equals), of layer 1 e, f, a, nothing. Layer 1 is silent on a to c."""
    table = measure_composition(*run, Composition(mass=0.9), Work("cpu"))
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
    projections = read_projections(run[2])
    changed = replace(
        projections,
        top=projections.top * 0 + WORDS.index("c"),
        norm=projections.norm * 0 + 1,
        attributes=projections.attributes,
    )
    write_projections(tmp_path / "changed.h5", changed)
    table = measure_composition(*run[:2], tmp_path / "changed.h5", run[3], Composition(mass=0.6), Work("cpu"))
    assert table["agreeing_all"].tolist() == [0, 4, 4, *[0] * 9]
    assert table["effective"].tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0, 2, 1, 0]  # d: 4 and 4 of 8


def test_outputs_are_read_with_the_projection_that_the_values_were_read_with(run, tmp_path, monkeypatch):
    heads = []
    monkeypatch.setattr(step, "load_head", lambda *arguments: heads.append(arguments) or load_head(*arguments))
    for projection in ("head", "unembedding"):
        write_detector_projections(tmp_path / "0.h5", run[0], projection=projection)
        measure_composition(*run, work=Work("cpu"))
    assert heads == [(run[0], "cpu", "head"), (run[0], "cpu", "unembedding")]


def test_projections_of_another_model_are_refused(run, tmp_path):
    write_detector_projections(tmp_path / "x.h5", run[0], model_hash="0" * 16)
    with pytest.raises(UserError, match=r"x\.h5 belongs to another model"):
        measure_composition(*run[:2], tmp_path / "x.h5", run[3], work=Work("cpu"))


def test_groups_of_layers_change_nothing(run, tmp_path):
    whole = measure_composition(*run, work=Work("cpu"))
    groups = []
    for group in range(3):
        group_file = tmp_path / f"group-{group}.h5"
        write_detector_projections(group_file, run[0], Part(group, 3).of(2))
        groups.append(measure_composition(*run[:2], group_file, run[3], work=Work("cpu", part=Part(group, 3))))
    assert sorted(map(len, groups)) == [0, 6, 6]
    pd.testing.assert_frame_equal(pd.concat([rows for rows in groups if len(rows)], ignore_index=True), whole)


@pytest.mark.parametrize("layers", [range(1, 2), range(2), range(0)])
def test_projections_of_other_layers_are_refused_by_name(run, tmp_path, layers):
    write_detector_projections(tmp_path / "other.h5", run[0], layers)
    with pytest.raises(UserError, match=r"other\.h5 has layers .*, not layers \[0\]: .* same layer group"):
        measure_composition(*run[:2], tmp_path / "other.h5", run[3], work=Work("cpu", part=Part(0, 2)))


def test_prefixes_of_another_model_or_corpus_are_refused(run, tmp_path, detector):
    write_prefixes(tmp_path / "x.h5", read_anatomy(detector), "ab", model_hash="0" * 16)
    with pytest.raises(UserError, match=r"x\.h5 belongs to another model"):
        measure_composition(run[0], tmp_path / "x.h5", *run[2:], work=Work("cpu"))
    write_prefixes(tmp_path / "x.h5", read_anatomy(detector), "ab", corpus_hash="0" * 16)
    with pytest.raises(UserError, match=r"corpus\.h5 belongs to another corpus"):
        measure_composition(run[0], tmp_path / "x.h5", *run[2:], work=Work("cpu"))


def test_a_table_of_another_model_is_refused(run, tmp_path):
    table = measure_composition(*run, work=Work("cpu"))
    table.attrs["model_hash"] = "0" * 16
    tables.write(table, tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"t\.parquet belongs to another model"):
        summarize_composition([tmp_path / "t.parquet"], run[0])


def test_the_commands_write_a_table_by_prefix_and_the_tables_of_the_figures(run, tmp_path):
    model, prefixes, projections, corpus = run
    folder = tmp_path / "composition"
    call(
        f"measure --model {model} --prefixes {prefixes} --projections {projections} --validation {corpus} --mass 0.9"
        f" --device cpu --output {folder}/0.parquet"
    )
    call(f"summarize --by-prefix {folder}/0.parquet --model {model} --short-prefix 5 --output {folder}")
    summaries = summarize_composition([folder / "0.parquet"], model, Composition(short_prefix=5))
    assert summaries.keys() == {table.name for table in BRANCHES["composition"].steps["summarize"].writes}
    assert {path.stem for path in folder.glob("*.csv")} == set(summaries)
    assert tables.read(folder / "figure_8_no_agreement.csv")["no_agreement"].tolist() == [3, 4, 0, 0]
    assert tables.read(folder / "figure_7_effective_number.csv")["memories"].tolist() == [4, 4]


def call(line: str) -> None:
    result = CliRunner().invoke(command_group(BRANCHES["composition"]), line.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
