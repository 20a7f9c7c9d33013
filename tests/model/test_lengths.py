"""The texts of the proof: the lengths that are really read, with every type of rotary angles, windows and neighbours; what precedes a text."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import random_checkpoint, random_sentences, word_tokenizer
from transformers import AutoModelForCausalLM

from ffkv.activations.batches import Batching
from ffkv.activations.triggers import find_triggers
from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus, Model, Triggers
from ffkv.corpus.corpus_file import read_corpus
from ffkv.corpus.step import encode_corpus
from ffkv.model.checkpoint.config import rotary_bounds
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.discover.lengths import lengths_of, steady_length
from ffkv.model.discover.probe_texts import context_of, measure_beginnings
from ffkv.model.discover.prove import observe, prove_layers
from ffkv.model.step import describe, prove
from tools.architectures.tiny import tiny_model

FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0, 5.0, 6.0, 7.0]}
LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
# Rotary angles by type, and the number of tokens up to which they are the same in every pass; None: always.
ROTATIONS = {
    "longrope": ({**FACTORS, "factor": 4.0, "original_max_position_embeddings": 16}, 16),
    "dynamic": ({"factor": 2.0}, 64),
    "yarn": ({"factor": 4.0, "original_max_position_embeddings": 16}, None),
    "llama3": (LLAMA3, None),
    "linear": ({"factor": 2.0}, None),
    "proportional": ({"partial_rotary_factor": 0.5}, None),
}
ROW = np.random.default_rng(0).integers(4, 90, 100)


def proven_tiny(model_type: str, **settings):
    """A tiny model of a type, and its layers."""
    model = tiny_model(model_type, settings=settings)
    text = torch.from_numpy(ROW[:24]).reshape(2, 12)
    return model, prove_layers(model, text, text.flip(0, 1)).layers


def naive_steady(model, layers, row) -> bool:
    """Whether the coefficients of each prefix alone are those in the whole row."""
    whole = observe(model, layers, torch.from_numpy(row)[None], "m")
    for length in range(2, len(row)):
        alone = observe(model, layers, torch.from_numpy(row[:length])[None], "m")
        if any((a["m"][0, -1] - w["m"][0, length - 1]).abs().max() > 1e-3 for a, w in zip(alone, whole, strict=True)):
            return False
    return True


@pytest.mark.parametrize("kind", ROTATIONS)
def test_every_type_of_rotation_is_read_as_far_as_prefixes_do_not_change(kind):
    rotation, bound = ROTATIONS[kind]
    model, layers = proven_tiny("llama", rope_parameters={"rope_type": kind, "rope_theta": 100.0, **rotation})
    assert rotary_bounds(model.config) == ({kind: bound} if bound else {})
    context = context_of(model, SimpleNamespace(model_max_length=10**9))
    assert context == min(64, bound or 64)
    assert naive_steady(model, layers, ROW[:context])
    assert steady_length(model, layers, ROW[:context], batch_tokens=300) == context
    # Beyond the bound, the proof finds by itself that something changes: it knows no type of rotation.
    found = steady_length(model, layers, ROW)
    assert found == len(ROW) if bound is None else found <= bound


@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("mistral", {"sliding_window": 6}),
        ("gemma2", {"sliding_window": 6}),
        ("gemma3_text", {"sliding_window": 6}),
        ("llama4_text", {"attention_chunk_size": 8}),
        ("gpt_neox", {}),
        ("mixtral", {}),
    ],
)
def test_windows_and_chunks_change_no_prefix(model_type, settings):
    model, layers = proven_tiny(model_type, **settings)
    assert steady_length(model, layers, ROW[:64], batch_tokens=300) == 64


def test_a_row_that_a_models_code_does_not_take_is_named():
    model, layers = proven_tiny("gpt2")  # it has 64 positions
    with pytest.raises(UserError, match=r"it does not run on a row of 65 tokens: IndexError: "):
        steady_length(model, layers, ROW)


def test_lengths_stand_on_both_sides_of_each_boundary_that_a_config_names():
    rotation = {"original_max_position_embeddings": 30}
    config = SimpleNamespace(sliding_window=6, layer_types=["a"], rope_parameters=rotation)
    assert lengths_of(64, config) == [4, 6, 7, 16, 30, 31, 64]
    assert lengths_of(1, config) == []


def test_bounds_are_read_from_rotations_of_layer_types_and_old_names():
    each = {
        "full": {"rope_type": "longrope", "original_max_position_embeddings": 8},
        "sliding": {"rope_type": "default"},
    }
    assert rotary_bounds(SimpleNamespace(rope_parameters=each, max_position_embeddings=64)) == {"longrope": 8}
    old = SimpleNamespace(rope_scaling={"type": "su"}, original_max_position_embeddings=9, max_position_embeddings=64)
    assert rotary_bounds(old) == {"su": 9}
    assert rotary_bounds(SimpleNamespace(rope_parameters={"rope_theta": 1.0, "rope_type": "default"})) == {}


def spoil(loaded, change):
    """Changes what the second block reads. Returns the hook's handle."""
    block = loaded.model.get_submodule(loaded.anatomy.layers[1].block)
    return block.register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:]))


def of_long_rows(states):
    return states * 2 if states.shape[1] > 9 else states


def of_neighbours(states):
    return states + states.mean(0, keepdim=True) if len(states) > 1 else states


@pytest.mark.parametrize(
    ("change", "remedy"), [(of_long_rows, r"corpus\.context"), (of_neighbours, r"batches\.tokens to 1")]
)
def test_a_run_is_refused_if_its_own_rows_are_not_read_as_their_prefixes_are(proven, write_corpus, change, remedy):
    loaded = load(proven("gpt2"), "cpu")
    corpus = read_corpus(write_corpus(random_sentences(3, 40), load_tokenizer(proven("gpt2"))))
    assert corpus.lengths.max() > 10
    handle = spoil(loaded, change)
    try:
        with pytest.raises(UserError, match=remedy):
            find_triggers(loaded, corpus, Triggers(), Batching())
        if change is of_neighbours:  # the remedy that the message names
            find_triggers(loaded, corpus, Triggers(), Batching(tokens=1))
    finally:
        handle.remove()
    find_triggers(loaded, corpus, Triggers(), Batching())


WORDS = ["<bos>", "<|endoftext|>", "</s>", *[f"w{i}" for i in range(57)]]


def tokenizer(bos: bool = False):
    made = word_tokenizer(WORDS, bos=bos)
    made.add_special_tokens({"additional_special_tokens": ["<|endoftext|>"]})
    made.eos_token = "</s>"
    return made


def test_losses_are_those_of_the_model_and_decide_the_beginning(tmp_path):
    folder = random_checkpoint(tmp_path / "a", "llama")
    made = tokenizer()
    made.save_pretrained(folder)
    proven = prove(Model(checkpoint=str(folder)))
    losses = proven.anatomy.beginnings
    model, texts = AutoModelForCausalLM.from_pretrained(folder), torch.arange(3, 23).reshape(2, 10)
    found = measure_beginnings(model, made, [texts[:1], texts[1:]])
    assert {*losses} == {*found} == {"<bos>", "</s>", "<|endoftext|>"} and next(iter(losses)) == "<bos>"
    for name, loss in found.items():
        read = torch.cat([torch.full((2, 1), WORDS.index(name)), texts], dim=1)
        # The library's own loss: the mean over all tokens but the first. The result is rounded to three digits.
        assert loss == pytest.approx(model(read, labels=read).loss.item(), abs=1e-3)
    assert f"{min(losses, key=losses.get)} {min(losses.values()):.3f}" in describe(proven.anatomy)
    (tmp_path / "model").mkdir()
    proven.write(tmp_path / "model")
    (tmp_path / "a.txt").write_text("w1 w2 w3\nw4 w5 w6\n")
    text = Corpus(dataset="files", train=[str(tmp_path / "a.txt")], splitter="line")
    corpus = encode_corpus(tmp_path / "model", "train", text, tmp_path / "train.h5")
    assert corpus.bos == [WORDS.index(min(losses, key=losses.get))]
    assert all(f"{name} {loss:g}" in corpus.attributes["beginning"] for name, loss in losses.items())
    named = text.model_copy(update={"bos": "</s>"})
    assert encode_corpus(tmp_path / "model", "train", named, tmp_path / "named.h5").bos == [2]


def test_nothing_is_measured_where_there_is_no_choice(tmp_path):
    folder = random_checkpoint(tmp_path / "a", "llama")
    model, texts = AutoModelForCausalLM.from_pretrained(folder), [torch.arange(3, 13)[None]]
    assert measure_beginnings(model, tokenizer(bos=True), texts) == {}  # the tokenizer puts one there
    model.config.bos_token_id = model.config.eos_token_id = None
    assert measure_beginnings(model, word_tokenizer(WORDS[:1] + WORDS[3:], bos=False), texts) == {}
    tokenizer().save_pretrained(folder)
    assert prove(Model(checkpoint=str(folder), weights="random")).anatomy.beginnings == {}
