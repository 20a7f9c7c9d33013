"""The Jacobian lens of random models: shards, groups and kills change no byte; what is made of a mean; texts that are drawn."""

import os
import signal
import types

import numpy as np
import pandas as pd
import pytest
import torch

from ffkv.base.errors import UserError
from ffkv.base.fault import BatchTooLarge
from ffkv.base.files import hdf5
from ffkv.base.steps import WHOLE, Part, Work
from ffkv.branches.given import Given
from ffkv.branches.settings import Batches, Translation
from ffkv.branches.translation import jacobian
from ffkv.branches.translation.average import average_jacobians, change_of, identity_share, variants
from ffkv.branches.translation.jacobian import FIXED_POINT, draw_texts, jacobian_of, read_jacobians
from ffkv.branches.translation.lens_file import write_lens
from ffkv.branches.translation.tables import JACOBIAN_FIT, JACOBIAN_READINGS
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer

SETTINGS = Translation(texts=5, tokens=12, skip=2)
BATCHES = Batches(tokens=96)


def derived(files: dict, path, part: Part = WHOLE, settings: Translation = SETTINGS) -> np.ndarray:
    """Writes the sums of a shard. Returns the bytes of their file."""
    read_jacobians(Given(Work("cpu", part=part), **files), settings, BATCHES, 3)(path)
    return path.read_bytes()


def averaged(files: dict, paths: list, part: Part = WHOLE, settings: Translation = SETTINGS):
    return average_jacobians(Given(Work("cpu", part=part), **files, jacobians=paths), settings, 3)


@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_shards_and_groups_change_no_byte(files, tmp_path, kind):
    files = files(kind)
    derived(files, tmp_path / "whole.h5")
    parts = [tmp_path / f"{shard}.h5" for shard in range(3)]
    for shard, path in enumerate(parts):
        derived(files, path, Part(shard, 3))
    maps, fit = averaged(files, [tmp_path / "whole.h5"])
    JACOBIAN_FIT.check(fit)
    others, table = averaged(files, parts)
    np.testing.assert_array_equal(others.weight, maps.weight)
    np.testing.assert_array_equal(others.offset, maps.offset)
    pd.testing.assert_frame_equal(table, fit)
    groups = [averaged(files, parts, Part(group, 2)) for group in range(2)]
    np.testing.assert_array_equal(np.concatenate([each.weight for each, _ in groups]), maps.weight)
    pd.testing.assert_frame_equal(pd.concat([each for _, each in groups], ignore_index=True), fit)


def test_a_stopped_shard_goes_on_behind_its_texts(files, tmp_path, monkeypatch, capsys):
    """SIGTERM arrives while the third text is read: it is saved, and the next call reads two texts. The bytes are the same."""
    files = files("gpt2")
    path, whole = tmp_path / "one.h5", derived(files, tmp_path / "whole.h5")
    calls = []

    def counted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return jacobian_of(*arguments)

    monkeypatch.setattr(jacobian, "jacobian_of", counted)
    with pytest.raises(SystemExit):
        derived(files, path)
    assert "3 texts are done and saved" in capsys.readouterr().err and not path.exists()
    assert derived(files, path) == whole and len(calls) == 5
    assert "going on after 3 texts" in capsys.readouterr().err and {*tmp_path.glob(".*progress*")} == set()
    calls.clear()
    with pytest.raises(SystemExit):
        derived(files, path)
    assert derived(files, path, settings=SETTINGS.model_copy(update={"skip": 3})) != whole and len(calls) == 3 + 5
    assert "belongs to other settings" in capsys.readouterr().err


def test_a_shard_with_half_as_many_tokens_per_pass_begins_again(files, tmp_path, monkeypatch, capsys):
    """The memory is full at the third text. The sums of the first two have the last digits of larger passes."""
    files, copies = files("gpt2"), []

    def derived_with(halvings: int, path) -> bytes:
        read_jacobians(Given(Work("cpu", halvings=halvings), **files), SETTINGS, BATCHES, 3)(path)
        return path.read_bytes()

    def full(*arguments):
        copies.append(arguments[3])
        if len(copies) == 3:
            raise BatchTooLarge("The memory does not suffice.")
        return jacobian_of(*arguments)

    whole = derived_with(1, tmp_path / "whole.h5")
    monkeypatch.setattr(jacobian, "jacobian_of", full)
    with pytest.raises(BatchTooLarge):
        derived_with(0, tmp_path / "one.h5")
    assert derived_with(1, tmp_path / "one.h5") == whole and copies == [8] * 3 + [4] * 5
    assert "belongs to other settings" in capsys.readouterr().err


def test_the_mean_is_that_of_the_texts_and_states_go_through_their_means(files, tmp_path):
    files = files("llama")
    derived(files, tmp_path / "whole.h5")
    maps, fit = averaged(files, [tmp_path / "whole.h5"])
    loaded, corpus = load(files["model"], "cpu"), read_corpus(files["train"])
    texts = draw_texts(corpus, load_tokenizer(files["model"]), 5, 12, 2, 3)
    found = [jacobian_of(loaded, torch.from_numpy(ids), slice(2, len(ids) - 1), 4) for ids in texts]
    j, state, end = (np.mean(parts, 0) for parts in zip(*found, strict=True))
    for layer in range(len(j)):
        np.testing.assert_allclose(maps.weight[layer, 0].T, j[layer], atol=1e-5 * np.abs(j).max())  # batches round
        np.testing.assert_allclose(state[layer] @ maps.weight[layer, 0] + maps.offset[layer, 0], end, atol=1e-4)
    own = fit[fit["reading"] == "jacobian"]
    assert own["positions"].unique() == sum(len(ids) - 3 for ids in texts) and (own["texts"] == 5).all()
    last = own.iloc[-1]  # of the last layer: the identity itself
    assert last["identity_share"] == pytest.approx(1) and last["divergence"] < 1e-9 and last["change"] < 1e-6
    assert fit[(fit["reading"] == "head") & (fit["layer"] == last["layer"])]["divergence"].item() == 0


def test_a_lens_of_somebody_else_is_read_in_place_of_texts(files, tmp_path):
    files = files("gpt2")
    made = {layer: np.random.default_rng(layer).normal(size=(16, 16)) for layer in range(2)}
    width = load(files["model"], "cpu").anatomy.width
    made = {layer: np.resize(j, (width, width)) for layer, j in made.items()}
    write_lens(tmp_path / "lens.pt", made, 100)
    maps, fit = averaged(files, [], settings=Translation(lens=str(tmp_path / "lens.pt")))
    for layer, j in made.items():
        np.testing.assert_array_equal(maps.weight[layer, 0], j.astype(np.float16).T)
    np.testing.assert_array_equal(maps.weight[2, 0], np.eye(width))
    assert not maps.offset.any() and (fit["texts"] == 100).all() and fit["change"].isna().all()


def test_change_is_the_root_mean_square_of_leaving_out_each_text():
    parts = np.random.default_rng(0).normal(2, 1, size=(7, 4, 4))
    mean = parts.mean(0)
    moved = [np.linalg.norm(np.delete(parts, text, 0).mean(0) - mean) for text in range(7)]
    expected = np.sqrt(np.mean(np.square(moved))) / np.linalg.norm(mean)
    assert change_of(mean, np.square(parts).sum((1, 2))) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(change_of(mean, np.ones(1)))


def test_the_share_of_the_identity_and_what_is_left_without_it():
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 9)))[0]
    assert identity_share(3 * np.eye(9)) == pytest.approx(1) and np.isnan(identity_share(np.zeros((2, 2))))
    j = 2 * np.eye(9) + rotation
    found = variants(j, 0, 4)
    assert [*found] == [*JACOBIAN_READINGS] and found["jacobian"] is j
    assert np.trace(found["jacobian without identity"]) == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(np.linalg.svd(found["rotated"])[1], np.linalg.svd(j)[1])
    assert not np.allclose(found["rotated"], variants(j, 0, 5)["rotated"])  # of another layer


def test_texts_stay_in_their_document_and_the_longest_fill_up(files):
    """Sentences of a document are joined; with too few texts the settings that ask for fewer are named."""
    files = files("gpt2")
    corpus, tokenizer = read_corpus(files["train"]), load_tokenizer(files["model"])
    texts = draw_texts(corpus, tokenizer, 6, 12, 2, 0)
    assert len(texts) == 6 and all(5 <= len(ids) <= 12 and ids.dtype == np.int64 for ids in texts)
    assert [ids.tolist() for ids in draw_texts(corpus, tokenizer, 6, 12, 2, 0)] == [ids.tolist() for ids in texts]
    assert [ids.tolist() for ids in draw_texts(corpus, tokenizer, 6, 12, 2, 1)] != [ids.tolist() for ids in texts]
    joined = {document: " ".join(corpus.texts[i] for i in np.flatnonzero(np.asarray(corpus.document[:]) == document))
              for document in {*np.asarray(corpus.document[:]).tolist()}}  # fmt: skip
    for ids in texts:
        text = tokenizer.decode(ids[len(corpus.bos) :])
        assert any(text in whole for whole in joined.values())
    with pytest.raises(UserError, match=r"has \d+ texts of at least 5 tokens, and translation\.texts asks for 100000"):
        draw_texts(corpus, tokenizer, 100_000, 12, 2, 0)


def test_what_cannot_be_summed_is_refused(files, tmp_path, monkeypatch):
    files = files("gpt2")
    for array in (np.full((3, 1, 1), np.inf), np.full((3, 1, 1), np.nan), np.full((3, 1, 1), 2.0**33)):
        monkeypatch.setattr(jacobian, "jacobian_of", lambda *_, array=array: (array, np.zeros((3, 1)), np.zeros(1)))
        with pytest.raises(UserError, match="are not finite, or too large to be summed"):
            derived(files, tmp_path / "sums.h5")
    with pytest.raises(UserError, match=r"reads \d+ tokens: set translation\.tokens to no more"):
        derived(files, tmp_path / "sums.h5", settings=Translation(tokens=5000))
    monkeypatch.setattr(jacobian, "link", lambda loaded, ids, *_: types.SimpleNamespace(
        end=torch.rand(*ids.shape, 4), loaded=loaded))  # fmt: skip
    with pytest.raises(UserError, match="computes otherwise each time, as with dropout"):
        jacobian_of(load(files["model"], "cpu"), torch.arange(6), slice(1, 5), 3)


def test_the_file_says_what_it_counts_in(files, tmp_path):
    files = files("gpt2")
    derived(files, tmp_path / "sums.h5")
    with hdf5.open(tmp_path / "sums.h5", jacobian.KIND) as file:
        assert file["jacobian"].attrs["unit"] == "2^-30" and FIXED_POINT == 2.0**-30
        assert file["positions"].shape == (5,) and "corpus_hash" in file.attrs
