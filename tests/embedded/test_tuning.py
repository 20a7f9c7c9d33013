"""The embedded model, trained further: what it begins with, what a LoRA changes, and a control on shuffled tokens."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus, Embedded, section
from ffkv.base.settings.runs import resolve
from ffkv.corpus.embedded import step, training

SIZES = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 400, "context": 32, "steps": 3, "batch_tokens": 256}
PARAGRAPH = "Keys are patterns. Values are predictions. A memory has both, and a layer has many memories.\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    step.train(Embedded(**SIZES), Corpus(limit=6), 0, folder / "checkpoint")
    return folder / "checkpoint"


@pytest.fixture
def tuned(base, tmp_path):
    """Returns a function that trains the base further with some settings, and returns its weights, by name."""
    (tmp_path / "other.txt").write_text(PARAGRAPH * 9 + "".join(f"Text {number} of others.\n" for number in range(30)))

    def tune(**settings):
        made = SIZES | {
            "tuned_from": str(base),
            "text": [str(tmp_path / "other.txt")],
            "learning_rate": 0.01,
            **settings,
        }
        corpus = Corpus(validation_share=0.3)
        return step.train(section(Embedded, **made), corpus, 0, tmp_path / "tuned").model.state_dict()

    return tune


def weights_of(folder):
    return GPT2LMHeadModel.from_pretrained(folder).state_dict()


def test_a_tuning_begins_with_the_weights_and_the_vocabulary_of_its_base(base, tuned, tmp_path):
    after = tuned(keep_steps=[0])
    first = weights_of(tmp_path / "tuned/steps/0")
    assert all(torch.equal(weight, first[name]) for name, weight in weights_of(base).items())
    assert not torch.equal(after["transformer.h.0.mlp.c_fc.weight"], first["transformer.h.0.mlp.c_fc.weight"])
    assert (tmp_path / "tuned/tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


def test_a_lora_changes_the_matrices_of_blocks_by_its_rank_and_nothing_else(base, tuned, tmp_path):
    before, after = weights_of(base), tuned(lora_rank=3)
    assert set(after) == set(before)
    stored = weights_of(tmp_path / "tuned")
    for name, weight in before.items():
        change = after[name] - weight
        assert torch.equal(stored[name], after[name])
        if any(f".{matrix}.weight" in name for matrix in ("c_attn", "c_proj", "c_fc")):
            # Singular values of rounding are some 1e-7 of the weights; those of the change some 1e-2.
            assert torch.linalg.matrix_rank(change, atol=1e-5) == 3, name
        else:
            assert torch.equal(after[name], weight), name


def test_shuffled_tokens_are_those_of_each_sentence(base, tuned, monkeypatch):
    seen = []
    fit = training.fit
    monkeypatch.setattr(training, "fit", lambda model, train, *rest: seen.append(train) or fit(model, train, *rest))
    for shuffle in (False, True):
        tuned(shuffle=shuffle)
    plain, shuffled = seen
    assert all(np.array_equal(np.sort(a), np.sort(b)) for a, b in zip(plain, shuffled, strict=True))
    assert sum(not np.array_equal(a, b) for a, b in zip(plain, shuffled)) > len(plain) / 2


def test_a_base_of_other_sizes_is_told(base, tuned):
    with pytest.raises(UserError, match=r"has layers 2, context 32\. Write the same sizes"):
        tuned(layers=3, context=64)


def test_a_model_of_another_kind_is_told(tuned, tmp_path):
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)).save_pretrained(tmp_path / "gelu")
    with pytest.raises(UserError, match="must be an embedded model, a GPT-2 with ReLU"):
        tuned(tuned_from=str(tmp_path / "gelu"))
    with pytest.raises(UserError, match=r"there is no checkpoint of transformers"):
        tuned(tuned_from=str(tmp_path / "nowhere"))


def test_a_lora_without_a_base_and_kept_steps_of_a_lora_are_told():
    with pytest.raises(UserError, match="name the model that it is for"):
        section(Embedded, lora_rank=4)
    with pytest.raises(UserError, match="keep_steps must be empty"):
        section(Embedded, lora_rank=4, tuned_from="base", keep_steps=[1])


@pytest.mark.parametrize("named", ["results/a/checkpoint", "results/a/checkpoint/steps/2"])
def test_a_run_that_is_tuned_from_itself_is_told(named):
    with pytest.raises(UserError, match=r"runs\.a: embedded\.tuned_from is the checkpoint that this run makes itself"):
        resolve({"runs": {"a": {"embedded": {"tuned_from": named}}}})
    assert resolve({"runs": {"a": {}, "b": {"embedded": {"tuned_from": named}}}})["b"].embedded.tuned_from == named
