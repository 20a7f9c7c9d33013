"""The embedded model: its vocabulary, its batches, its training, what a further training changes, and its checkpoint."""

import json
import math
import shlex

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from ffkv.base.batching import pad
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.options import command_line
from ffkv.base.settings import Corpus, Embedded, section
from ffkv.corpus.document import Document
from ffkv.corpus.step import find_beginning
from ffkv.model.small import make_model, train_tokenizer
from ffkv.workflow.runs import resolve
from ffkv_embedded import training
from ffkv_embedded.commands import train as command
from ffkv_embedded.python_docs import documents

TINY = Embedded(layers=2, width=32, heads=2, vocabulary=400, context=32, steps=40, batch_tokens=512, learning_rate=5e-3)


@pytest.fixture(scope="module")
def few_documents():
    return [Document(document.name, document.text[:3000]) for document, _ in zip(documents(), range(40))]


@pytest.fixture(autouse=True)
def small_corpus(few_documents, monkeypatch):
    monkeypatch.setattr("ffkv_embedded.python_docs.documents", lambda every=1: iter(few_documents))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tmp_path_factory.mktemp("run") / "checkpoint"


@pytest.fixture(scope="module")
def trained(few_documents, checkpoint):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ffkv_embedded.python_docs.documents", lambda every=1: iter(few_documents))
        return training.train(TINY, Corpus(), 0, checkpoint)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes_whatever_else_is_set_for_the_corpus(trained, checkpoint, tmp_path):
    training.train(TINY, Corpus(dataset="files", train=["none"], txt_document="file"), 0, str(tmp_path / "again"))
    assert files(tmp_path / "again") == files(checkpoint)


def test_every_token_of_a_step_is_counted(trained, few_documents):
    seen = []

    def after_step(step, tokens, model):
        seen.append((step, tokens))

    curve = training.train_model(few_documents[:9], few_documents[9:], TINY, 0, after_step).curve
    assert sum(tokens for _, tokens in seen) == curve["tokens"].iloc[-1]
    assert [step for step, _ in seen] == list(range(TINY.steps + 1))


def test_another_seed_gives_other_weights(trained, tmp_path):
    other = training.train(TINY.model_copy(update={"steps": 1}), Corpus(), 1, tmp_path / "other")
    assert not torch.equal(other.model.transformer.wte.weight, trained.model.transformer.wte.weight)


def test_transformers_loads_the_checkpoint(trained, checkpoint):
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert model.config.activation_function == "relu"
    assert model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(trained.model.parameters(), model.parameters()))


def test_the_loaded_tokenizer_puts_bos_in_front_and_gives_the_text_back(trained, checkpoint):
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    text = 'Return a list of  "names" – naïve ones, too.'
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id == 0
    assert tokenizer.decode(ids[1:]) == text
    assert find_beginning(tokenizer, "auto").ids == [0]
    assert tokenizer.model_max_length == TINY.context


def test_training_lowers_the_loss(trained):
    rows = trained.curve[trained.curve["split"] == "validation"]
    assert list(rows["step"]) == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert rows["loss"].iloc[-1] < rows["loss"].iloc[0] - 0.5
    assert rows["loss"].iloc[0] < math.log(TINY.vocabulary) + 0.5


def test_the_files_beside_the_weights_say_what_was_reached(trained, checkpoint):
    curve, summary = tables.read(checkpoint / "training.csv"), json.loads((checkpoint / "training.json").read_text())
    assert list(curve.columns) == ["step", "tokens", "split", "loss", "perplexity"]
    assert np.allclose(curve["perplexity"], np.exp(curve["loss"]))
    assert summary["validation_perplexity"] == pytest.approx(curve["perplexity"].iloc[-1])
    assert summary["parameters"] == sum(weight.numel() for weight in trained.model.parameters())
    assert summary["steps"] == 40
    assert summary["seed"] == 0


def test_the_loss_is_of_every_token_after_bos_and_padding_changes_nothing(trained):
    model, sentences = trained.model, [np.array([5, 6, 7, 8]), np.array([9, 10])]
    expected = []
    for ids in sentences:
        with torch.no_grad():
            logits = model(torch.tensor([[0, *ids]])).logits[0].log_softmax(-1)
        expected += [-logits[place, token].item() for place, token in enumerate(ids)]
    loss = training.loss_of(model, pad(sentences, value=training.PADDING))
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-5)
    assert training.evaluate(model, sentences, 4) == pytest.approx(np.mean(expected), rel=1e-5)


def test_unigram_perplexity_of_a_case_by_hand():
    # Counts 2, 1, 0 raised by one: 3/6, 2/6, 1/6. The mean of log 2 and log 6 is log of the root of 12.
    train, validation = np.array([0, 0, 1]), np.array([0, 2])
    assert training.unigram_perplexity(train, validation, 3) == pytest.approx(math.sqrt(12))


def test_an_epoch_has_every_sentence_once_in_batches_that_are_not_too_large():
    sentences = [np.full(length, number) for number, length in enumerate([3, 1, 9, 4, 4, 2, 30, 5])]
    found = training.random_batches(sentences, 12, np.random.default_rng(0))
    epochs = [[], []]
    for epoch in epochs:
        while len(epoch) < len(sentences):
            batch = next(found)
            assert batch.numel() <= 12 or len(batch) == 1
            epoch += batch[:, 0].tolist()
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(8))
    assert epochs[0] != epochs[1]


def test_the_learning_rate_rises_and_falls():
    shares = [training.schedule(step, 100) for step in range(1, 101)]
    assert shares[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert shares[4:] == sorted(shares[4:], reverse=True)
    assert shares[-1] == pytest.approx(training.FINAL)
    assert training.schedule(1, 1) == 1


def test_a_vocabulary_has_bos_and_every_byte():
    tokenizer = train_tokenizer(["ab ab ab"], 300, 16)
    assert tokenizer.convert_ids_to_tokens(0) == "<|bos|>"
    assert len(tokenizer) >= 257
    assert tokenizer.decode(tokenizer("日本")["input_ids"], skip_special_tokens=True) == "日本"


def test_a_split_without_sentences_is_told(tmp_path):
    with pytest.raises(UserError, match=r"validation split of the text to train on has no sentences"):
        training.train(TINY, Corpus(validation_share=1e-9), 0, tmp_path / "checkpoint")
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_checkpoint(tmp_path):
    made = TINY.model_copy(update={"steps": 2, "keep_steps": [0, 1]})
    options = shlex.split(command_line({"embedded": made.model_dump()}, "embedded"))
    result = CliRunner().invoke(command, [*options, "--limit=10", "--output", str(tmp_path / "checkpoint")])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "checkpoint/steps").iterdir()) == ["0", "1"]
    assert "validation perplexity" in result.output
    assert (tmp_path / "checkpoint" / "model.safetensors").exists()


def test_kept_steps_are_checkpoints_and_change_no_weight(checkpoint, trained, tmp_path):
    without = training.train(TINY, Corpus(), 0, tmp_path / "without").model  # in the same number of threads
    kept = training.train(
        TINY.model_copy(update={"keep_steps": [0, 7, 40]}), Corpus(), 0, tmp_path / "checkpoint"
    ).model
    names = {path.name for path in checkpoint.iterdir()} - {"training.csv", "training.json"}
    weights = {}
    for number in (0, 7, 40):
        folder = tmp_path / "checkpoint/steps" / str(number)
        assert {path.name for path in folder.iterdir()} == names
        weights[number] = AutoModelForCausalLM.from_pretrained(folder).lm_head.weight
    assert torch.equal(weights[40], kept.lm_head.weight) and torch.equal(weights[40], without.lm_head.weight)
    first = make_model(TINY, len(trained.tokenizer), 0).lm_head.weight
    assert torch.equal(weights[0], first) and not torch.equal(weights[7], first)


@pytest.mark.parametrize(
    "values, told",
    [
        ({"steps": 10, "keep_steps": [3, 11]}, r"embedded\.keep_steps has 11: must be at most embedded\.steps, 10"),
        ({"steps": 10, "keep_steps": [3, 3]}, "must be different steps"),
        ({"width": 32, "heads": 3}, r"must divide embedded\.width, 32"),
        ({"lora_rank": 4}, "name the model that it is for"),
        ({"lora_rank": 4, "tuned_from": "base", "keep_steps": [1]}, "keep_steps must be empty"),
    ],
)
def test_settings_that_contradict_each_other_are_told(values, told):
    with pytest.raises(UserError, match=told):
        section(Embedded, **values)


SIZES = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 400, "context": 32, "steps": 3, "batch_tokens": 256}
PARAGRAPH = "Keys are patterns. Values are predictions. A memory has both, and a layer has many memories.\n"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    training.train(Embedded(**SIZES), Corpus(limit=6), 0, folder / "checkpoint")
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
        return training.train(section(Embedded, **made), corpus, 0, tmp_path / "tuned").model.state_dict()

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


@pytest.mark.parametrize("named", ["results/a/checkpoint", "results/a/checkpoint/steps/2"])
def test_a_run_that_is_tuned_from_itself_is_told(named):
    with pytest.raises(UserError, match=r"runs\.a: embedded\.tuned_from is the checkpoint that this run makes itself"):
        resolve({"runs": {"a": {"embedded": {"tuned_from": named}}}})
    assert resolve({"runs": {"a": {}, "b": {"embedded": {"tuned_from": named}}}})["b"].embedded.tuned_from == named
