"""Which models can read on from a beginning, and that a model is not believed."""

from types import SimpleNamespace

import pytest
import torch

from ffkv.model.architectures.coverage import _sentences
from ffkv.model.architectures.tiny import VOCABULARY, tiny_model
from ffkv.model.experts.record import record_experts
from ffkv.model.step import prove_in_memory
from ffkv.model.tap import beginning
from ffkv.model.tap.beginning import can_read_on, empty_cache, join_beginnings, keep_beginning, read_on


def loaded(model_type: str):
    """A tiny model of a type, and its layers."""
    layers, _ = prove_in_memory(tiny_model(model_type), *_sentences())
    model = tiny_model(model_type)  # the proof empties the one that it gets
    record_experts(model)
    anatomy = SimpleNamespace(layers=list(layers), context=64, dtype="float32", vocabulary=VOCABULARY)
    return SimpleNamespace(model=model, device="cpu", anatomy=anatomy)


@pytest.mark.parametrize(
    ("model_type", "possible"),
    [
        ("gpt2", True),
        ("bloom", True),  # ALiBi: distances to the tokens that were read before
        ("gemma2", True),  # sliding windows
        ("mixtral", True),
        ("deepseek_v3", True),  # keys and values of other sizes
        ("recurrent_gemma", False),
        ("openai-gpt", False),  # its code has no cache
    ],
)
@torch.no_grad()
def test_what_a_type_can_do_is_tried(model_type, possible):
    assert can_read_on(loaded(model_type)) == possible


@torch.no_grad()
def test_a_window_that_is_shorter_than_the_beginning():
    model = loaded("mistral")
    model.model.config.sliding_window = 3
    assert can_read_on(model)


@torch.no_grad()
def test_a_model_that_reads_on_wrongly_is_not_believed(monkeypatch):
    model, original = loaded("llama"), beginning.read_on
    monkeypatch.setattr(beginning, "read_on", lambda kept, rows: original([(k, 2 * v) for k, v in kept], rows))
    assert not can_read_on(model)


@torch.no_grad()
def test_a_context_that_is_too_short_to_try_is_read_whole():
    model = loaded("llama")
    model.anatomy.context = 8
    assert not can_read_on(model)


def test_beginnings_are_kept_by_sentence():
    def filled(start: int):
        cache = empty_cache()
        for block in range(2):
            keys = torch.arange(start, start + 2.0)[:, None, None, None].expand(2, 1, 5, 3) + 10 * block
            cache.update(keys, -keys, block)
        return keep_beginning(cache, 4)

    kept = join_beginnings([filled(0), filled(2)])
    cache = read_on(kept, torch.tensor([3, 0, 3]))
    assert [block.keys.shape for block in cache.layers] == [(3, 1, 4, 3)] * 2
    assert cache.layers[1].keys[:, 0, 0, 0].tolist() == [13, 10, 13]
    assert cache.layers[0].values[:, 0, 3, 2].tolist() == [-3, 0, -3]
