"""The loss behind each token that may precede a sentence."""

import pytest
import torch
from support import random_checkpoint, word_tokenizer
from transformers import AutoModelForCausalLM

from ffkv.base.settings import Corpus, Model
from ffkv.corpus.step import encode_corpus
from ffkv.model.discover.beginnings import measure_beginnings
from ffkv.model.step import describe, prove

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
