"""The head: readings of logits against their definitions, and the detector's head worked out by hand."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import WORDS, prove_into
from transformers import AutoModelForCausalLM

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.checkpoint.vocabulary import read_vocabulary, token_texts
from ffkv.model.discover.prove import observe
from ffkv.model.head import lens as lens_module
from ffkv.model.head import topk
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import HEAD_FILE, load_head, read_head, stored_output_embedding
from ffkv.model.head.lens import MappedLens
from ffkv.model.head.topk import predictions
from ffkv.model.step import prove


def test_readings_of_a_small_row_of_logits():
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0]])
    found = topk.highest(logits, 3)
    assert found.first.tolist() == [1] and found.tied.tolist() == [True]  # the lowest of equal ids
    assert {*found.ids[0, :2].tolist()} == {1, 3} and found.ids[0, 2].item() == 2
    assert topk.lowest(logits, 2).ids.tolist() == [[0, 2]]
    assert topk.lowest(logits).tied.tolist() == [False]
    assert [topk.rank(logits, torch.tensor([token])).item() for token in range(4)] == [
        3,
        0,
        2,
        0,
    ]  # equals do not count
    total = math.log(1 + math.e + 2 * math.e**2)
    assert topk.log_probabilities(logits, torch.tensor([[2]])).item() == pytest.approx(1 - total, abs=1e-6)
    found = topk.highest(torch.zeros(2, 1), 50)  # a vocabulary of one token is not tied
    assert found.first.tolist() == [0, 0] and not found.tied.any() and found.ids.tolist() == [[0], [0]]


@pytest.mark.parametrize("shift", [0.0, 100.0, -3000.0])
def test_log_probabilities_are_as_exact_as_the_docs_say(shift):
    """Beside float64, of logits with a large constant in them, as GPT-2's have: one log-softmax in float32 errs by 1e-5."""
    logits = 4 * torch.randn(20, 5000, generator=torch.Generator().manual_seed(0)) + shift
    ids = logits.topk(50).indices
    expected = logits.double().log_softmax(-1).gather(-1, ids)
    assert (topk.log_probabilities(logits, ids) - expected).abs().max() < 1e-6


@pytest.mark.parametrize("width", [64, 1024])
def test_log_probabilities_inherit_the_rounding_of_logits(width):
    """Beside a norm and a product in float64: some 6e-7 of the largest logit, as docs/definitions.md says."""
    generator = torch.Generator().manual_seed(0)
    embedding, h = (torch.randn(size, width, generator=generator) for size in (5000, 20))
    ids = torch.randint(5000, (20, 30), generator=generator)
    found = topk.log_probabilities(torch.layer_norm(h, (width,)) @ embedding.T / 4, ids)
    exact = torch.layer_norm(h.double(), (width,)) @ embedding.double().T / 4
    errors = (found - exact.log_softmax(-1).gather(-1, ids)).abs()
    assert 1e-7 < errors.max() / exact.abs().max() < 1e-6


@given(
    rows=st.integers(1, 5),
    vocabulary=st.integers(1, 900),
    count=st.integers(1, 9),
    levels=st.sampled_from([1, 2, 30, 10**6]),
    seed=st.integers(0, 999),
)
def test_extremes_are_what_sorting_finds(rows, vocabulary, count, levels, seed):
    """With few levels most logits are equal: of equals at the end the lowest id is first, and as many as asked for come."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (rows, vocabulary), generator=generator).float()
    logits[0, :: max(1, vocabulary // 3)] = -torch.inf  # as a head gives to ids without a token
    for found, signed in ((topk.highest(logits, count), logits), (topk.lowest(logits, count), -logits)):
        expected = signed.sort(descending=True, stable=True)
        assert torch.equal(found.first, expected.indices[:, 0])
        assert torch.equal(found.tied, (signed == signed.amax(-1, keepdim=True)).sum(-1) > 1)
        assert torch.equal(signed.gather(-1, found.ids), expected.values[:, :count])
        assert all(len(set(ids)) == len(ids) == min(count, vocabulary) for ids in found.ids.tolist())


def test_pieces_are_read_as_the_whole(detector, monkeypatch):
    head, vectors = load_head(detector, "cpu"), np.random.default_rng(0).standard_normal((23, 17)).astype(np.float32)
    tokens = np.arange(23) % 17
    whole = predictions(head, vectors, 0, tokens)
    logits = head.logits(torch.from_numpy(vectors), 0)
    np.testing.assert_array_equal(whole.ids, logits.argmax(-1))
    np.testing.assert_allclose(whole.probability, logits.softmax(-1)[range(23), tokens], rtol=1e-5)
    monkeypatch.setattr(lens_module, "CHUNK_BYTES", 4 * 17 * 10)
    monkeypatch.setattr(lens_module, "CACHED_BYTES", 4 * 17 * 4)
    parts = [part for part, _ in head.chunks(torch.from_numpy(vectors), 0)]
    assert [part.stop - part.start for part in parts] == [4, 4, 2, 4, 4, 2, 3]
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    for found, expected in zip(predictions(head, vectors, 0, tokens), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert predictions(head, vectors, 0).probability.shape == (0,)


def test_the_head_reads_words_out_of_the_detectors_residual_stream(detector):
    """Its head is LayerNorm, then the identity: a unit vector at w becomes 4 at w and -1/4 elsewhere."""
    head = load_head(detector, "cpu")
    logits = head.logits(3 * torch.eye(17)[[5, 2]], layer=0)
    assert logits.shape == (2, 17)
    assert logits[0, 5].item() == pytest.approx(4, abs=1e-3)  # LayerNorm's epsilon of 1e-5
    assert logits[0, 6].item() == pytest.approx(-0.25, abs=1e-3)
    assert predictions(head, 3 * np.eye(17, dtype=np.float32)[[5, 2]], 0).ids.tolist() == [5, 2]
    probability = math.exp(4) / (math.exp(4) + 16 * math.exp(-0.25))
    found = predictions(head, np.eye(17, dtype=np.float32)[[5]], 0, np.array([5])).probability
    assert found[0] == pytest.approx(probability, rel=1e-3)


def test_the_unembedding_is_the_output_embedding_alone(detector):
    head = load_head(detector, "cpu", "unembedding")
    vectors = torch.randn(3, 17, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.logits(vectors, 0), vectors)  # E is the identity


def test_a_mapped_lens_reads_states_with_the_offset_and_changes_without_it(detector):
    """Each layer has its own map, which is asked for once."""
    head, generator, asked = load_head(detector, "cpu"), np.random.default_rng(0), []
    maps = [(generator.random((17, 17), np.float32), generator.random(17, np.float32)) for _ in range(2)]

    def map_of(layer: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append(layer)
        return maps[layer]

    lens, vectors = MappedLens(head, map_of), torch.from_numpy(generator.random((5, 17), np.float32))
    for layer, (weight, offset) in enumerate(maps):
        mapped = vectors @ torch.from_numpy(weight)
        assert torch.equal(lens.change(vectors, layer), head.logits(mapped, head.read_as))
        assert torch.equal(lens.state(vectors, layer), head.logits(mapped + offset, head.read_as))
        ((_, read),) = lens.chunks(vectors, layer, change=True)
        assert torch.equal(read, lens.change(vectors, layer))
    assert torch.equal(lens.state(vectors, None), head.logits(vectors, head.read_as))  # what the last block wrote
    assert asked == [0, 1] and head.state == head.change == head.logits


@pytest.mark.parametrize("kind", ["gpt2", "opt", "opt-post-norm", "gpt-neox", "llama"])
def test_the_stored_head_gives_the_models_logits(proven, kind):
    loaded, head = load(proven(kind), "cpu"), load_head(proven(kind), "cpu")
    ids = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(3))
    final = observe(loaded.model, loaded.anatomy.layers, ids)[-1]["o"].reshape(18, -1)
    with torch.no_grad():
        expected = loaded.model(ids).logits.reshape(18, -1)
    torch.testing.assert_close(head.logits(final, len(loaded.anatomy.layers) - 1), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_head_works_in_float32_whatever_the_type_of_the_model(checkpoints, tmp_path, kind):
    """Beside float64, with the same rounded weights: bfloat16 has 8 bits, and would err by some 1e-2."""
    proven = prove(Model(checkpoint=str(checkpoints(kind)), dtype="bfloat16", device="cpu"))
    (tmp_path / "model").mkdir()
    proven.write(tmp_path / "model", tmp_path / "values.h5")
    vectors = torch.randn(50, 16, generator=torch.Generator().manual_seed(1))
    found = load_head(tmp_path / "model", "cpu").logits(vectors, 0)
    model = AutoModelForCausalLM.from_pretrained(checkpoints(kind)).bfloat16().double()
    norm = model.transformer.ln_f if kind == "gpt2" else model.model.norm
    with torch.no_grad():
        expected = model.lm_head(norm(vectors.double()))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_model_whose_embedding_is_narrower_has_no_unembedding_of_the_residual_stream(proven):
    with pytest.raises(UserError, match="projection"):
        load_head(proven("opt-post-norm"), "cpu", "unembedding").logits(torch.zeros(1, 16), 0)


def test_the_output_embedding_is_kept(detector):
    np.testing.assert_array_equal(stored_output_embedding(detector), np.eye(17, dtype=np.float32))


def test_the_vocabulary_names_every_id(detector):
    texts = read_vocabulary(detector)
    assert [texts[number] for number in range(len(texts))] == WORDS


def test_ids_beyond_the_tokenizer_are_named_by_number(detector):
    assert token_texts(load_tokenizer(detector), 19)[-2:] == ["<id 17>", "<id 18>"]


def test_the_heads_file_has_the_same_bytes_every_time(checkpoints, proven, tmp_path):
    again = prove_into(tmp_path, checkpoints("gpt2"))
    assert (again / HEAD_FILE).read_bytes() == (proven("gpt2") / HEAD_FILE).read_bytes()


@pytest.mark.parametrize("kind", ["gpt2", "opt", "gpt-neox"])
def test_a_head_of_plain_modules_gives_the_bits_of_the_models_own_head(proven, kind):
    anatomy, vectors = read_anatomy(proven(kind)), torch.randn(50, 16, generator=torch.Generator().manual_seed(1))
    own = Head(read_head(proven(kind), anatomy), anatomy, "cpu")
    assert [module.kind for module in anatomy.head_chain] == ["LayerNorm", "Linear"]
    assert torch.equal(load_head(proven(kind), "cpu").logits(vectors, 0), own.logits(vectors, 0))


@pytest.mark.parametrize("layer", [-1, 99])
def test_a_layer_that_the_model_lacks_is_refused(proven, layer):
    with pytest.raises(UserError, match=rf"There is no layer {layer}\. The model has layers 0 to \d"):
        load_head(proven("opt-post-norm"), "cpu").logits(torch.zeros(1, 16), layer)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "opt-post-norm"])
def test_any_other_head_is_the_models_own(proven, kind):
    """A norm of the model's own code, a soft cap, blocks that end with a norm."""
    assert read_anatomy(proven(kind)).head_chain == []


@pytest.mark.slow
def test_a_head_of_plain_modules_imports_no_modeling_code(proven):
    code = f"import sys; from ffkv.model.head.head_file import load_head; load_head({str(proven('gpt2'))!r}, 'cpu')"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'transformers' not in sys.modules"], check=True)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "opt-post-norm", "cohere"])
def test_the_logit_and_gradient_of_one_token_are_those_of_the_whole_head(proven, kind):
    """A chain, a head with one row of its embedding, a soft cap, a last norm of each block, a scale of the logits."""
    head, whole = load_head(proven(kind), "cpu"), load_head(proven(kind), "cpu")
    whole._mixes_no_logits = False  # so that it reads all logits
    vectors = torch.randn(5, read_anatomy(proven(kind)).width, generator=torch.Generator().manual_seed(0))
    before = head.logits(vectors, 1)
    assert head._one_row_suffices(vectors[:1], 1)
    for token in (0, 7, 59):
        expected = before[:, token]
        # One row of a product adds in another order than all rows.
        torch.testing.assert_close(head.token_logits(vectors, token, 1), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(whole.token_logits(vectors, token, 1), expected, rtol=0, atol=0)
        (gradient,) = head.gradient(vectors[:1], 1, lambda logits, token=token: logits[0, token])
        step = 1e-2 * gradient / gradient.norm()
        slope = (head.logits((vectors[0] + step)[None], 1) - head.logits((vectors[0] - step)[None], 1))[0, token] / 2e-2
        assert slope.item() == pytest.approx(gradient.norm().item(), rel=2e-2)
    torch.testing.assert_close(head.logits(vectors, 1), before, rtol=0, atol=0)  # the rows are back
