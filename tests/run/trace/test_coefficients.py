"""The coefficients of memories on texts."""

import numpy as np
import pandas as pd
import pytest
import torch
from pyarrow import parquet

import ffkv
from ffkv.activations.trigger_file import read_triggers
from ffkv.base.errors import UserError
from ffkv.model.discover.prove import observe
from ffkv.run.trace.coefficients import coefficients

# Rounding of float32: the pass for triggers, and a text alone, run batches of other shapes.
ROUNDING = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "gemma2", "fairseq"])
def test_the_last_coefficient_of_a_trigger_prefix_is_the_stored_one(traced, kind):
    run = traced(kind)
    triggers, offsets = read_triggers(run.folder / "triggers.h5"), run.anatomy.layer_offset
    first, compared = len(run.corpus("train").bos), 0
    for layer, memory in [(0, 3), (1, 5), (1, 11)]:
        row = offsets[layer] + memory
        kept = triggers.sentence[row] >= 0
        sentences, positions = triggers.sentence[row][kept], triggers.position[row][kept]
        m = coefficients(run, sentences, f"L{layer}.{memory}", "cpu")[f"L{layer}.{memory}"]
        assert m.groupby("text").size().tolist() == run.corpus("train").lengths[sentences].tolist()
        last = [m.loc[number, first + position - 1].item() for number, position in enumerate(positions.tolist())]
        np.testing.assert_allclose(last, triggers.coefficient[row][kept], **ROUNDING)
        compared += len(last)
    assert compared > 5


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "qwen2-moe", "gemma2"])
def test_all_memories_on_texts_of_several_lengths_are_those_of_a_pass_per_text(traced, loaded, kind):
    """Beside a plain pass with hooks over each text alone. The texts of one batch have other lengths."""
    run = traced(kind)
    bos, model = run.corpus("train").bos, loaded(run)
    texts = ["w5 w6 w7", "w1", *run.corpus("train").texts[:3], "w9 w8 w7 w6 w5 w4 w3 w2"]
    table = coefficients(run, texts, device="cpu")
    assert table.columns.tolist() == [f"L{at.index}.{m}" for at in run.anatomy.layers for m in range(at.memories)]
    assert set(table.dtypes) == {np.dtype(np.float32)}
    for number, text in enumerate(texts):
        ids = ffkv.trace(run, text, device="cpu").tokens["token_id"].tolist()
        seen = observe(model.model, model.anatomy.layers, torch.tensor([ids]), "m")
        expected = np.concatenate([of_layer["m"][0, len(bos) :].float().numpy() for of_layer in seen], 1)
        own = table.loc[number]
        np.testing.assert_allclose(own, expected, **ROUNDING)
        assert own.index.get_level_values("position").tolist() == list(range(len(bos), len(ids)))
        assert own.index.get_level_values("token").tolist() == [run.vocabulary[token] for token in ids[len(bos) :]]


def test_a_text_and_a_number_and_names_in_any_order(traced):
    run = traced("gpt2")
    table = coefficients(run, [run.corpus("train").texts[4], 4], ["L2.6, L0.1-2", "1/5"], "cpu")
    assert table.columns.tolist() == ["L0.1", "L0.2", "L1.5", "L2.6"]
    np.testing.assert_allclose(table.loc[0], table.loc[1], **ROUNDING)
    listed = ffkv.trace(run, run.corpus("train").texts[4], memories=1000, device="cpu").contributions
    listed = listed.set_index("name")["coefficient"]
    np.testing.assert_allclose(table.iloc[-1], listed[table.columns], rtol=1e-4)
    assert coefficients(run, [], "L2", "cpu").shape == (0, 64)


def test_a_file_written_in_pieces_holds_what_is_returned(traced, tmp_path, monkeypatch):
    run, texts = traced("gpt2"), ["w5 w6", "w1 w2 w3", "w4", "w7 w8 w9 w1"]
    whole = coefficients(run, texts, "L1", "cpu")
    monkeypatch.setattr("ffkv.run.trace.coefficients.PIECE_BYTES", 4 * 64 * 5)  # five tokens
    ffkv.write_coefficients(tmp_path / "m.parquet", run, iter(texts), "L1", "cpu")
    assert parquet.ParquetFile(tmp_path / "m.parquet").num_row_groups == 2
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "m.parquet"), whole, rtol=1e-4, atol=1e-6)
    some = pd.read_parquet(tmp_path / "m.parquet", columns=["L1.17"])
    pd.testing.assert_frame_equal(some, whole[["L1.17"]], rtol=1e-4, atol=1e-6)
    ffkv.write_coefficients(tmp_path / "none.parquet", run, [], "L1", "cpu")
    assert pd.read_parquet(tmp_path / "none.parquet").shape == (0, 64)


@pytest.mark.parametrize(
    ("texts", "memories", "message"),
    [
        ([0], "L3.0", "There is no layer 3"),
        ([0], "L0.64", "There is no memory 64"),
        ([0], 17, "memories is 17. Write one name or more, such as 'L3.17'"),
        ([0], [(0, 17)], "Write one name or more"),
        ([0], [], r"memories is \[\]. Write one name or more"),
        ([10_000], "L0.0", r"There is no sentence 10000. The train split has sentences 0 to"),
        ([-1], "L0.0", "There is no sentence -1"),
        (["w1", None], "L0.0", "Text 1, which is no text .* is None. Write a whole number"),
        ("w1 w2", "L0.0", r"texts is 'w1 w2'. Write a list of texts, such as \['w1 w2'\]"),
        (0, "L0.0", r"texts is 0. Write a list of texts, such as \[0\]"),
        (["w1 " * 1000], "L0.0", "reads at most"),
    ],
)
def test_what_does_not_exist_is_refused(traced, texts, memories, message):
    with pytest.raises(UserError, match=message):
        coefficients(traced("gpt2"), texts, memories, "cpu")


def test_the_name_of_a_folder_is_no_run():
    for ask in (coefficients, ffkv.predict, ffkv.trace_all):
        with pytest.raises(UserError, match=r"^run is 'results/demo'. Open a run first, as in run = ffkv.open"):
            ask("results/demo", ["w1"])


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:x", None])
def test_a_device_is_refused_in_the_words_of_its_setting(traced, device):
    """Torch's own words blamed the checkpoint."""
    run = traced("gpt2")
    for ask in (
        lambda: run.model(device),
        lambda: ffkv.trace(run, "w1", device=device),
        lambda: coefficients(run, [0], device=device),
    ):
        with pytest.raises(UserError, match=f"^device is {device!r}: must be "):
            ask()
