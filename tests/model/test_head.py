"""The head: readings of logits against their definitions, and the detector's head worked out by hand."""

import math

import numpy as np
import pytest
import torch
from support import WORDS, prove_into

from ffkv.errors import UserError
from ffkv.model import head as reading
from ffkv.model.emptied import FILE, load_head, stored_output_embedding
from ffkv.model.load import load
from ffkv.model.vocabulary import read_vocabulary, token_texts


def test_readings_of_a_small_row_of_logits():
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0]])
    assert reading.top(logits).tolist() == [1]  # the lowest of equal ids
    assert reading.tied(logits).tolist() == [True]
    assert [reading.rank(logits, torch.tensor([token])).item() for token in range(4)] == [
        3,
        0,
        2,
        0,
    ]  # equals do not count
    total = math.log(1 + math.e + 2 * math.e**2)
    assert reading.log_probability(logits, torch.tensor([2])).item() == pytest.approx(1 - total, abs=1e-6)
    ids, log_probabilities = reading.top_tokens(logits, 3)
    assert set(ids[0, :2].tolist()) == {1, 3}
    assert ids[0, 2].item() == 2
    assert log_probabilities[0].tolist() == pytest.approx([2 - total, 2 - total, 1 - total], abs=1e-6)


def test_the_head_reads_words_out_of_the_detectors_residual_stream(detector):
    """Its head is LayerNorm, then the identity: a unit vector at w becomes 4 at w and -1/4 elsewhere."""
    head = load_head(detector, "cpu")
    logits = head.logits(3 * torch.eye(17)[[5, 2]], layer=0)
    assert logits.shape == (2, 17)
    assert logits[0, 5].item() == pytest.approx(4, abs=1e-3)  # LayerNorm's epsilon of 1e-5
    assert logits[0, 6].item() == pytest.approx(-0.25, abs=1e-3)
    assert reading.predictions(head, 3 * np.eye(17, dtype=np.float32)[[5, 2]], 0).ids.tolist() == [5, 2]
    probability = math.exp(4) / (math.exp(4) + 16 * math.exp(-0.25))
    found = reading.probabilities(head, np.eye(17, dtype=np.float32)[[5]], np.array([5]), 0)
    assert found[0] == pytest.approx(probability, rel=1e-3)


def test_the_unembedding_is_the_output_embedding_alone(detector):
    head = load_head(detector, "cpu", "unembedding")
    vectors = torch.randn(3, 17, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.logits(vectors, 0), vectors)  # E is the identity


@pytest.mark.parametrize("kind", ["gpt2", "opt", "opt-post-norm", "gpt-neox", "llama"])
def test_the_stored_head_gives_the_models_logits_in_chunks_of_any_size(proven, kind, monkeypatch):
    loaded, head = load(proven(kind), "cpu"), load_head(proven(kind), "cpu")
    from ffkv.model.prove import observe

    ids = torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(3))
    final = observe(loaded.model, loaded.anatomy.layers, ids)[-1]["o"].reshape(18, -1)
    with torch.no_grad():
        expected = loaded.model(ids).logits.reshape(18, -1)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 4 * 60 * 5)  # five rows at a time
    chunks = list(head.chunks(final, len(loaded.anatomy.layers) - 1))
    assert [part.stop - part.start for part, _ in chunks] == [5, 5, 5, 3]
    torch.testing.assert_close(torch.cat([logits for _, logits in chunks]), expected, rtol=1e-4, atol=1e-5)


def test_the_head_is_loaded_without_the_blocks(proven):
    head = load_head(proven("gpt2"), "cpu")
    names = [name for name, _ in head._model.named_parameters()]
    assert not any(".h." in name for name in names)


def test_a_model_whose_embedding_is_narrower_has_no_unembedding_of_the_residual_stream(proven):
    with pytest.raises(UserError, match="projection"):
        load_head(proven("opt-post-norm"), "cpu", "unembedding").logits(torch.zeros(1, 16), 0)


def test_the_output_embedding_is_kept(detector):
    np.testing.assert_array_equal(stored_output_embedding(detector), np.eye(17, dtype=np.float32))


def test_the_vocabulary_names_every_id(detector):
    texts = read_vocabulary(detector)
    assert [texts[number] for number in range(len(texts))] == WORDS


def test_ids_beyond_the_tokenizer_are_named_by_number(detector):
    from ffkv.model.checkpoint import load_tokenizer

    assert token_texts(load_tokenizer(detector), 19)[-2:] == ["<id 17>", "<id 18>"]


def test_the_heads_file_has_the_same_bytes_every_time(checkpoints, proven, tmp_path):
    again = prove_into(tmp_path, checkpoints("gpt2"))
    assert (again / FILE).read_bytes() == (proven("gpt2") / FILE).read_bytes()
