"""What keys read: derivatives by finite differences on every kind of layer, scores worked by hand, and a planted detector."""

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from support import LAYER_KINDS

from ffkv.base.files import hdf5
from ffkv.base.steps import Part, Work
from ffkv.branches.given import Given
from ffkv.branches.settings import Batches, Translation
from ffkv.branches.translation import reading
from ffkv.branches.translation.jacobian import embeddings_of, read_jacobians, reading_of
from ffkv.branches.translation.reading import read_tokens, score
from ffkv.branches.translation.tables import READ_BY_LAYER, READ_TOKENS
from ffkv.model.keys_and_values import factors
from ffkv.model.tap import hooks
from ffkv.model.tap.tap import tap

from .conftest import made_linear

IDS = torch.tensor([0, 3, 5, 7, 2, 4])
COUNTED = slice(1, 5)
STEP = 3e-3


def inputs(loaded, coordinate: int, at: int, step: float) -> list[torch.Tensor]:
    """What each layer reads at each token [layer][token, d], if a coordinate of the embedding of one token is changed."""
    found = []

    def add(module, args, kwargs, output):
        moved = output.clone()
        moved[0, at, coordinate] += step
        return moved

    model = loaded.model
    with hooks.after((model.get_input_embeddings(), add)), tap(model, loaded.anatomy.layers, "x") as run:
        run(IDS[None], lambda layer, quantity, x: found.append(x[0].clone()))
    return found


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_what_layers_read_moves_as_finite_differences_do(kind, load_kind):
    """With the signs of one kind, all pairs of positions count. Central differences; 1e-3 of the largest entry is allowed."""
    loaded = load_kind(kind)
    loaded.model.double()
    width = embeddings_of(loaded, IDS[:1]).shape[-1]
    found = reading_of(loaded, IDS, COUNTED, 5, np.ones((width, 4)))
    assert found.shape == (len(loaded.anatomy.layers), loaded.anatomy.width, width)
    for coordinate in (0, width - 1):
        expected = np.zeros(found.shape[:2])
        for at in range(len(IDS))[COUNTED]:
            ends = (inputs(loaded, coordinate, at, step) for step in (STEP, -STEP))
            for layer, (more, less) in enumerate(zip(*ends, strict=True)):
                expected[layer] += ((more - less)[COUNTED].sum(0) / (2 * STEP) / 4).numpy()
        np.testing.assert_allclose(found[:, :, coordinate], expected, atol=1e-3 * np.abs(expected).max())


def test_the_mean_over_all_signs_is_the_same_position_alone(load_kind):
    """With every one of the sixteen patterns of signs the mean is exact (float32 rounding)."""
    loaded = load_kind("llama")
    width = loaded.anatomy.width
    patterns = [[1 if number >> bit & 1 else -1 for bit in range(4)] for number in range(16)]
    means = [reading_of(loaded, IDS, COUNTED, 8, np.tile(pattern, (width, 1))) for pattern in patterns]
    alone = [reading_of(loaded, IDS, slice(at, at + 1), 8, np.ones((width, 1))) for at in range(1, 5)]
    np.testing.assert_allclose(np.mean(means, 0), np.mean(alone, 0), atol=1e-5 * np.abs(means).max())


def test_scores_by_hand():
    """Three directions of two coordinates, five tokens; own tokens in the first two columns, another key's in the others."""
    e = torch.tensor([[1.0, 0], [2, 0], [2, 1], [0, 3], [-1, 0]])
    directions = torch.tensor([[1.0, 0], [0, 1], [0, 0]])
    sought = torch.tensor([[2, 0, 4, -1], [3, -1, 2, 2], [-1, -1, 0, 1]])
    found = score(directions, e, sought)
    assert found["rank"].tolist() == [0, 0, -1]
    # of scores 1, 2, 2, 0, -1: token 2 has 3 below and a tie, token 0 has 2 below; token 4 has none
    np.testing.assert_allclose(found["auc"][0], [(3.5 / 4 + 2 / 4) / 2, 0])
    np.testing.assert_allclose(found["auc"][1], [1, 3 / 4])
    np.testing.assert_allclose(found["auc"][2], [np.nan, 0.5])  # all scores are equal
    assert {*found["tokens"][0][:2].tolist()} == {1, 2} and found["tokens"][1][0] == 3


def test_scores_are_ranks_of_the_whole_vocabulary(monkeypatch):
    """Against SciPy's ranks, in several chunks of rows; scores are whole numbers, so that ties are exact."""
    monkeypatch.setattr(reading, "CHUNK", 100)
    stream = np.random.default_rng(0)
    e, directions = (stream.integers(-2, 3, (size, 3)).astype(np.float32) for size in (30, 17))
    sought = stream.integers(-1, 30, (17, 8))
    found = score(torch.from_numpy(directions), torch.from_numpy(e), torch.from_numpy(sought))
    for row, tokens in enumerate(sought):
        scores = directions[row] @ e.T
        share = (rankdata(scores) - 1) / (len(e) - 1)
        for side, own in enumerate((tokens[:4], tokens[4:])):
            expected = share[own[own >= 0]].mean() if (own >= 0).any() else np.nan
            np.testing.assert_allclose(found["auc"][row, side], expected, atol=1e-12)
        assert found["rank"][row] == ((scores > scores[tokens[0]]).sum() if tokens[0] >= 0 else -1)
        np.testing.assert_array_equal(scores[found["tokens"][row]], np.sort(scores)[::-1][:10])


def test_a_key_reads_its_word_behind_a_rotation_through_the_derivative_alone(load_kind):
    """Layer 0 rotates the residual, so that keys of layer 1 which hold rotated embeddings read these words."""
    loaded = load_kind("gpt2")
    d = loaded.anatomy.width
    generator = np.random.default_rng(0)
    rotation = np.linalg.qr(generator.normal(size=(d, d)))[0]
    made_linear(loaded, np.stack([rotation - np.eye(d), *np.zeros((2, d, d))]))
    words = generator.normal(size=(60, d))
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    loaded.model.transformer.wte.weight.data = torch.from_numpy(words).float()
    e, keys = embeddings_of(loaded, torch.arange(60)), torch.from_numpy(words @ rotation).float()
    through = torch.from_numpy(reading_of(loaded, IDS, COUNTED, 16, np.ones((d, 4)))[1]).float()
    sought = torch.stack([torch.arange(60), torch.arange(60).roll(1)], 1)
    by_derivative, as_it_is = score(keys @ through, e, sought), score(keys, e, sought)
    assert (by_derivative["tokens"][:, 0] == np.arange(60)).all() and (by_derivative["auc"][:, 0] == 1).all()
    assert (by_derivative["rank"] == 0).all() and 0.3 < by_derivative["auc"][:, 1].mean() < 0.7
    assert (as_it_is["tokens"][:, 0] == np.arange(60)).mean() < 0.2 and 0.3 < as_it_is["auc"][:, 0].mean() < 0.7


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral"])
def test_the_step_scores_all_keys_by_the_mean_of_all_shards(kind, files, tmp_path):
    """Two shards: the second one has none of the two texts that count. Scores are made once more, a key at a time."""
    made, settings = files(kind), Translation(texts=3, tokens=10, skip=1, reading_texts=2)
    paths = [tmp_path / f"jacobians/{shard}.h5" for shard in range(2)]
    for shard, path in enumerate(paths):
        with Given(Work("cpu", part=Part(shard, 2)), model=made["model"], train=made["train"]) as given:
            read_jacobians(given, settings, Batches(tokens=100))(path)
    with Given(Work("cpu"), **{name: made[name] for name in ("model", "triggers", "train")}, jacobians=paths) as given:
        table, by_layer = read_tokens(given, settings)
        READ_TOKENS.check(table), READ_BY_LAYER.check(by_layer)
        loaded, e = given.model(), embeddings_of(given.model(), torch.arange(given.anatomy.vocabulary)).numpy()
        for layer in range(len(given.anatomy.layers)):
            mean = 0
            for path in paths:
                with hdf5.open(path, "sums of Jacobians") as file:
                    mean = mean + file["reading"][layer] * 2.0**-30 / 2
            examples, own = given.triggers_of(layer), table[table["layer"] == layer]
            corpus = given.train
            for factor, vectors in zip(
                ("key", "gate"), factors(loaded.model, given.anatomy.layers[layer], 16), strict=True
            ):
                rows = own[own["factor"] == factor]
                assert len(rows) == (0 if vectors.isnan().all() else len(vectors))
                for row in rows.itertuples():
                    scores = vectors[row.memory].numpy() @ mean @ e.T
                    count = examples.count[row.memory]
                    last = [
                        int(corpus.tokens[corpus.offsets[sentence] + position - 1])
                        for sentence, position in zip(
                            examples.sentence[row.memory, :count], examples.position[row.memory, :count]
                        )
                        if position
                    ]
                    expected = ((rankdata(scores) - 1) / (len(e) - 1))[last].mean() if last else np.nan
                    np.testing.assert_allclose(row.auc, expected, atol=0.5 / len(e))  # float32 may turn near ties round
                    np.testing.assert_allclose(
                        scores[row.tokens], np.sort(scores)[::-1][:10], atol=1e-4 * np.abs(scores).max()
                    )
    medians = table.groupby(["layer", "factor"])["auc"].median()
    found = by_layer[by_layer["reading"] == "derivative"].set_index(["layer", "factor"])["median"]
    np.testing.assert_allclose(found, medians[found.index])


def test_embeddings_of_another_length_have_no_raw_product(files, tmp_path):
    """E leads from the table's own length to d. k · e_w is not defined then, and its AUC is not 0.5."""
    made, settings = files("opt-post-norm"), Translation(texts=1, tokens=10, skip=1, reading_texts=1)
    path = tmp_path / "jacobians.h5"
    with Given(Work("cpu"), model=made["model"], train=made["train"]) as given:
        read_jacobians(given, settings, Batches(tokens=100))(path)
        assert embeddings_of(given.model(), IDS).shape[1] != given.anatomy.width
    with Given(Work("cpu"), **{name: made[name] for name in ("model", "triggers", "train")}, jacobians=[path]) as given:
        table, by_layer = read_tokens(given, settings)
    assert table["identity_auc"].isna().all() and table["auc"].notna().any()
    assert {*by_layer["reading"]} == {"derivative", "permuted"}
