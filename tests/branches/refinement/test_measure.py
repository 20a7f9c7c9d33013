"""The predictions of each layer on the detector, by hand, and their cases; files of another model or corpus are refused."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from sampled import write_prefixes
from support import WORDS, call_branch

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.steps import WHOLE, Part, Work
from ffkv.branches.given import Given
from ffkv.branches.refinement.measure import classify, measure_refinement
from ffkv.branches.refinement.summarize import summarize_refinement
from ffkv.branches.refinement.tables import CASES
from ffkv.branches.registry import BRANCHES
from ffkv.branches.settings import Refinement
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.tokenizer import load_tokenizer


def naive_case(r, y, o):
    if o == r and o == y:
        return "agreement"
    if o == r:
        return "residual"
    if o == y:
        return "ffn"
    return "other" if r == y else "composition"


def test_every_combination_falls_into_its_one_case():
    triples = np.array(list(itertools.product(range(3), repeat=3)))
    assert classify(*triples.T).tolist() == [naive_case(*triple) for triple in triples.tolist()]
    assert set(classify(*triples.T)) == set(CASES)


@pytest.fixture
def run(detector, write_corpus, tmp_path):
    """Model, prefixes that end with a, b, c, d, e and p, the table by prefix, and the corpus."""
    corpus = write_corpus([f"{word} p" for word in "abcdep"], load_tokenizer(detector))
    corpus_hash = read_corpus(corpus).attributes["corpus_hash"]
    prefixes = write_prefixes(
        tmp_path / "prefixes.h5", read_anatomy(detector), "abcdep", corpus_hash=corpus_hash, sample_hash="1" * 16
    )
    tables.write(measure_refinement(Given(Work("cpu"), model=detector, prefixes=prefixes)), tmp_path / "0.parquet")
    return detector, prefixes, tmp_path / "0.parquet", corpus


def measured(run, prefixes, part=WHOLE):
    return measure_refinement(Given(Work("cpu", part=part), model=run[0], prefixes=prefixes))


def summarized(run, prefixes, settings=Refinement()):
    given = Given(by_prefix=[run[2]], model=run[0], prefixes=prefixes, validation=run[3])
    return summarize_refinement(given, settings)


def words(tokens: pd.Series) -> list[str]:
    return [WORDS[token] for token in tokens]


def test_the_detectors_predictions_by_hand(run):
    """Residual e_w predicts w itself. After a, layer 0 adds 4 e_b: ffn. After b it adds 0.4 e_c: residual, and y predicts c.

    After c it adds to what is there: agreement. After the others, nothing: y = 0, all logits alike, id 0 wins; residual.
    Layer 1 adds 4 e_e and 2 e_f after d, and 4 e_a after e.
    """
    table = tables.read(run[2])
    first, second = (table[table["layer"] == layer] for layer in (0, 1))
    assert words(first["top_residual"]) == [*"abcdep"]
    assert words(first["top_ffn"]) == ["b", "c", "c", "<bos>", "<bos>", "<bos>"]
    assert words(first["top_output"]) == words(second["top_residual"]) == [*"bbcdep"]
    assert first["case"].tolist() == ["ffn", "residual", "agreement", "residual", "residual", "residual"]
    assert first["tied"].tolist() == [0, 0, 0, 1, 1, 1]
    assert words(second["top_ffn"]) == ["<bos>", "<bos>", "<bos>", "e", "a", "<bos>"]
    assert words(second["top_output"]) == words(second["final"]) == words(first["final"]) == [*"bbceap"]
    assert second["case"].tolist() == ["residual"] * 3 + ["ffn"] * 2 + ["residual"]
    # the probability that r gives to the final prediction: LayerNorm of e_w is 4 at w and -1/4 at the others
    total = math.exp(4) + 16 * math.exp(-0.25)
    final, other = math.exp(4) / total, math.exp(-0.25) / total
    expected = [other, final, final, other, other, final]
    assert first["probability"].tolist() == pytest.approx(expected, rel=1e-3)


def test_the_final_prediction_comes_from_a_later_block_if_there_is_one(run, tmp_path):
    prefixes = write_prefixes(tmp_path / "end.h5", read_anatomy(run[0]), "abcdep", extra="pponmk")
    assert words(measured(run, prefixes)["final"]) == [*"pponmk"] * 2


def test_groups_of_layers_change_nothing(run):
    groups = [measured(run, run[1], Part(group, 3)) for group in range(3)]
    assert sorted(map(len, groups)) == [0, 6, 6]
    whole = pd.concat([rows for rows in groups if len(rows)], ignore_index=True)
    pd.testing.assert_frame_equal(whole, measured(run, run[1]))


def test_files_of_another_model_or_corpus_or_sample_are_refused(run, tmp_path):
    def other(**attributes):
        return write_prefixes(tmp_path / "x.h5", read_anatomy(run[0]), "abcdep", **attributes)

    for step in (measured, summarized):
        with pytest.raises(UserError, match=r"x\.h5 belongs to another model"):
            step(run, other(model_hash="0" * 16))
    with pytest.raises(UserError, match=r"corpus\.h5 belongs to another corpus"):
        summarized(run, other(corpus_hash="0" * 16))
    with pytest.raises(UserError, match=r"0\.parquet belongs to another sample"):
        summarized(run, other(**{**tables.read(run[2]).attrs, "sample_hash": "0" * 16}))


def test_the_commands_write_a_table_by_prefix_and_the_tables_of_the_figures(run, tmp_path):
    model, prefixes, table, corpus = run
    folder = tmp_path / "refinement"
    inputs = f"--model {model} --prefixes {prefixes}"
    call_branch("refinement", f"measure {inputs} --device cpu --output {folder}/0.parquet")
    pd.testing.assert_frame_equal(tables.read(folder / "0.parquet"), tables.read(table))
    options = f"--validation {corpus} --changes 9 --seed 0 --output {folder}"
    call_branch("refinement", f"summarize --by-prefix {folder}/0.parquet {inputs} {options}")
    summaries = summarized(run, prefixes, Refinement(changes=9))
    assert [*summaries] == [table.name for table in BRANCHES["refinement"].steps["summarize"].writes]
    assert {path.stem for path in folder.glob("*.csv")} == set(summaries)
    changes = summaries["prediction_changes"]
    assert changes[["text", "residual_token", "output_token"]].to_numpy().tolist() == [["d", "d", "e"], ["e", "e", "a"]]
    assert summaries["figure_9_residual_agreement"]["matching"].tolist() == [3, 4]
