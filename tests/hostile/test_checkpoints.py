"""Checkpoints that somebody broke, or never trained: read, or refused in one sentence that is true."""

import json

import pytest
from support import random_checkpoint, refused
from transformers import AutoModelForCausalLM

from ffkv.base.settings import Corpus, Model
from ffkv.corpus.step import encode_corpus
from ffkv.model.step import prove


def edit(path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("name", ["output_attentions", "output_hidden_states"])
def test_a_config_that_asks_for_more_output_is_read(tmp_path, name):
    """Such a model must be written, too, after it has been proven."""
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    edit(folder / "config.json", lambda config: config.update({name: True}))
    (tmp_path / "model").mkdir()
    assert len(prove(Model(checkpoint=str(folder))).write(tmp_path / "model").layers) == 3


@pytest.mark.parametrize(
    ("kind", "part"), [("gpt2", "c_proj"), ("llama", "down_proj"), ("opt", "fc2"), ("gpt-neox", "dense_4h_to_h")]
)
def test_a_layer_whose_second_matrix_is_zero_is_called_so(tmp_path, kind, part):
    """Untrained and pruned layers are such layers. Their message must give this reason."""
    folder = random_checkpoint(tmp_path / "checkpoint", kind)
    model = AutoModelForCausalLM.from_pretrained(folder)
    for name, parameter in model.named_parameters():
        if (".1.mlp" in name or ".1.fc2" in name) and part in name:
            parameter.data.zero_()
    model.save_pretrained(folder)
    with refused(rf"{part}: all its weights are zero, so that its memories write nothing"):
        prove(Model(checkpoint=str(folder)))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("tokenizer.json", lambda content: content["model"].update(vocab={})),
        ("tokenizer_config.json", lambda content: content.update(model_max_length="many")),
    ],
    ids=["an empty vocabulary", "a length that is no number"],
)
def test_a_tokenizer_that_does_not_work_is_named(tmp_path, file, change):
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    edit(folder / file, change)
    with refused(rf"The tokenizer of {folder} (does not work|makes no token)"):
        prove(Model(checkpoint=str(folder)))


def test_a_bos_token_that_the_model_does_not_know_is_refused(proven, tmp_path):
    """Else the corpus would be written, and the next step would fail."""
    import shutil

    model = tmp_path / "model"
    shutil.copytree(proven("gpt2"), model)
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [999], "tokens": ["<bos>"]}},
    }
    edit(model / "tokenizer.json", lambda content: content.update(post_processor=template))
    (tmp_path / "a.txt").write_text("w1 w2\nw3 w4\n")
    corpus = Corpus(dataset="files", train=[str(tmp_path / "a.txt")], splitter="line")
    with refused(r"puts the id 999 in front of a text, but the model knows only 60 tokens"):
        encode_corpus(model, "train", corpus, tmp_path / "train.h5")
    assert not (tmp_path / "train.h5").exists()
