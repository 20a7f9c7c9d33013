"""The embedded model: its vocabulary, its batches, its training and its checkpoint."""

import json
import math
import shlex

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from ffkv.base.batching import pad
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.options import command_line
from ffkv.base.settings import Corpus, Embedded, section
from ffkv.corpus.beginning import find_beginning
from ffkv.corpus.document import Document
from ffkv.corpus.embedded import step, training
from ffkv.corpus.embedded.commands import train as command
from ffkv.corpus.embedded.training import train_tokenizer
from ffkv.corpus.python_docs import documents

TINY = Embedded(
    layers=2, width=32, heads=2, vocabulary=400, context=32, steps=40, batch_tokens=512, learning_rate=0.005
)


@pytest.fixture(scope="module")
def few_documents():
    return [Document(document.name, document.text[:3000]) for document, _ in zip(documents(), range(40))]


@pytest.fixture(autouse=True)
def small_corpus(few_documents, monkeypatch):
    monkeypatch.setattr("ffkv.corpus.python_docs.documents", lambda: iter(few_documents))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return tmp_path_factory.mktemp("run") / "checkpoint"


@pytest.fixture(scope="module")
def trained(few_documents, checkpoint):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ffkv.corpus.python_docs.documents", lambda: iter(few_documents))
        return step.train(TINY, Corpus(), 0, checkpoint)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_seed_gives_the_same_bytes(trained, checkpoint, tmp_path):
    step.train(TINY, Corpus(), 0, str(tmp_path / "again"))
    assert files(tmp_path / "again") == files(checkpoint)


def test_other_settings_of_the_corpus_do_not_matter(trained, checkpoint, tmp_path):
    step.train(TINY, Corpus(dataset="files", train=["none"], txt_document="file"), 0, tmp_path / "again")
    assert files(tmp_path / "again") == files(checkpoint)


def test_every_token_of_a_step_is_counted(trained, few_documents):
    seen = []

    def after_step(step, tokens, model):
        seen.append((step, tokens))

    curve = training.train_model(few_documents[:9], few_documents[9:], TINY, 0, after_step).curve
    assert sum(tokens for _, tokens in seen) == curve["tokens"].iloc[-1]
    assert [step for step, _ in seen] == list(range(TINY.steps + 1))


def test_another_seed_gives_other_weights(trained, tmp_path):
    other = step.train(TINY.model_copy(update={"steps": 1}), Corpus(), 1, tmp_path / "other")
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
        step.train(TINY, Corpus(validation_share=1e-9), 0, tmp_path / "checkpoint")
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
    without = step.train(TINY, Corpus(), 0, tmp_path / "without").model  # in the same number of threads
    kept = step.train(TINY.model_copy(update={"keep_steps": [0, 7, 40]}), Corpus(), 0, tmp_path / "checkpoint").model
    names = {path.name for path in checkpoint.iterdir()} - {"training.csv", "training.json"}
    weights = {}
    for number in (0, 7, 40):
        folder = tmp_path / "checkpoint/steps" / str(number)
        assert {path.name for path in folder.iterdir()} == names
        weights[number] = AutoModelForCausalLM.from_pretrained(folder).lm_head.weight
    assert torch.equal(weights[40], kept.lm_head.weight) and torch.equal(weights[40], without.lm_head.weight)
    first = training.make_model(TINY, len(trained.tokenizer), 0).lm_head.weight
    assert torch.equal(weights[0], first) and not torch.equal(weights[7], first)


def test_steps_that_cannot_be_kept_are_told():
    late = section_problems({"steps": 10, "keep_steps": [3, 11]})
    assert late == "embedded.keep_steps has 11: must be at most embedded.steps, 10"
    assert "must be different steps" in section_problems({"steps": 10, "keep_steps": [3, 3]})


def section_problems(values: dict) -> str:
    with pytest.raises(UserError) as refused:
        section(Embedded, **values)
    return str(refused.value)


def test_heads_that_do_not_divide_the_width_are_told(tmp_path):
    arguments = ["--width=32", "--heads=3", f"--output={tmp_path / 'checkpoint'}"]
    result = CliRunner().invoke(command, arguments)
    assert isinstance(result.exception, UserError)
    assert not list(tmp_path.iterdir())
