"""A fairseq folder as `model.checkpoint`: recognised, read without running code, proven, run through the workflow, refused with one message."""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner
from support import ROOT, make_run, prove_into, random_sentences

from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.settings import Model
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.checks import check_checkpoint
from ffkv.model.checkpoint.load import load, load_checkpoint
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.checkpoint.vocabulary import read_vocabulary
from ffkv.model.commands import model as model_command
from ffkv.model.discover.probe_texts import context_of
from ffkv.model.discover.prove import observe
from ffkv.model.head.head_file import load_head
from ffkv.model.head.topk import predictions
from ffkv_fairseq.checkpoint import read_checkpoint
from ffkv_fairseq.reader import is_fairseq


def settings(folder, **more) -> Model:
    return Model(checkpoint=str(folder), device="cpu", **more)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["model.pt", "dict.txt"], True),
        (["model.pt"], True),
        (["dict.txt"], True),
        (["model.pt", "dict.txt", "config.json"], False),
        ([], False),
    ],
)
def test_a_folder_of_fairseqs_has_its_files_and_no_config(tmp_path, names, expected):
    for name in names:
        (tmp_path / name).touch()
    assert is_fairseq(tmp_path) == expected
    if not names:
        with pytest.raises(UserError, match=r"neither config\.json"):
            check_checkpoint(str(tmp_path))


@pytest.mark.parametrize("form", [{}, {"final_norm": True}, {"tied": False, "activation_fn": "gelu"}], ids=str)
def test_it_is_proven_stored_and_read_out_as_any_model(write_checkpoint, tmp_path, form):
    checkpoint = write_checkpoint(tmp_path / "checkpoint", **form)
    stage = prove_into(tmp_path / "stage", checkpoint)
    anatomy, loaded, head = read_anatomy(stage), load(stage, "cpu"), load_head(stage, "cpu")
    assert anatomy.architecture == "FairseqForCausalLM"
    assert anatomy.activation == form.get("activation_fn", "relu")
    assert (anatomy.vocabulary, anatomy.width, anatomy.context, len(anatomy.layers)) == (64, 16, 48, 2)
    modules = [layer.second_matrices[0].module for layer in anatomy.layers]
    assert modules == ["decoder.layers.0.fc2", "decoder.layers.1.fc2"]
    assert max(anatomy.errors.values()) < 1e-5
    ids = torch.tensor([[2, 5, 30, 63], [2, 19, 20, 39]])
    final = observe(loaded.model, anatomy.layers, ids)[-1]["o"].reshape(8, 16)
    with torch.no_grad():
        expected = loaded.model(ids).logits.reshape(8, 64)
    torch.testing.assert_close(head.logits(final, 1), expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(predictions(head, final.numpy(), 1).ids, expected.argmax(-1).numpy())
    assert read_vocabulary(stage)[5] == "w5"
    assert not any("layers" in name for name, _ in head._source.model.named_parameters())


def test_there_is_no_unembedding(write_checkpoint, tmp_path):
    stage = prove_into(tmp_path / "stage", write_checkpoint(tmp_path / "checkpoint"))
    with pytest.raises(UserError, match=r"no single matrix .* use values\.projection 'head'"):
        load_head(stage, "cpu", "unembedding").logits(torch.zeros(1, 16), 0)


def test_the_context_is_the_args(write_checkpoint, tmp_path):
    folder = write_checkpoint(tmp_path, max_target_positions=33)
    assert context_of(load_checkpoint(settings(folder)), load_tokenizer(folder)) == 33


def test_other_weights_are_another_model(write_checkpoint, tmp_path):
    stage = prove_into(tmp_path / "stage", write_checkpoint(tmp_path / "checkpoint"))
    write_checkpoint(tmp_path / "checkpoint", seed=1)
    with pytest.raises(UserError, match="have changed"):
        load(stage, "cpu")


class Intruder:
    """Makes a file when its pickle is run."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_with_code_is_not_run(write_checkpoint, tmp_path, archive):
    mark = tmp_path / "mark"
    folder = write_checkpoint(
        tmp_path / "a", archive=archive, change=lambda args, state: args.update(intruder=Intruder(mark))
    )
    with pytest.raises(UserError, match=r"model\.pt needs (posix|nt)\.mkdir to be read: ffkv runs no code"):
        load_checkpoint(settings(folder))
    assert not mark.exists()


def test_a_class_that_is_needed_is_named(write_checkpoint, tmp_path):
    folder = write_checkpoint(tmp_path, change=lambda args, state: args.update(path=Path("x")))
    with pytest.raises(UserError, match=r"needs pathlib\.[\w.]+ to be read"):
        load_checkpoint(settings(folder))


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.999])
def test_a_damaged_file_is_told(write_checkpoint, tmp_path, archive, share):
    path = write_checkpoint(tmp_path, archive=archive) / "model.pt"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(UserError, match=r"model\.pt cannot be read, it is damaged or no checkpoint"):
        load_checkpoint(settings(tmp_path))


@pytest.mark.parametrize(
    "content", [{"model": {}}, {"args": argparse.Namespace(), "model": [1]}, [1, 2], {"args": {}, "model": {}}], ids=str
)
def test_another_file_of_torchs_is_no_checkpoint(tmp_path, content):
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(UserError, match="holds no `args` and `model`"):
        read_checkpoint(tmp_path / "model.pt")


def missing(name):
    return lambda folder: (folder / name).unlink()


def shorter(folder):
    (folder / "dict.txt").write_text("".join((folder / "dict.txt").read_text().splitlines(True)[:-1]))


def infinite(folder):
    stored = torch.load(folder / "model.pt", weights_only=False)
    stored["model"]["decoder.layers.1.fc1.bias"][3] = float("inf")
    torch.save(stored, folder / "model.pt")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (missing("model.pt"), r"There is no .*model\.pt: a fairseq checkpoint is a folder with"),
        (missing("dict.txt"), r"There is no .*dict\.txt: a fairseq checkpoint is a folder with"),
        (shorter, r"embeds 64 words, but dict\.txt beside it has 63"),
        (infinite, r"not finite in decoder\.layers\.1\.fc1\.bias"),
    ],
)
def test_the_command_refuses_with_one_message_and_writes_nothing(write_checkpoint, tmp_path, damage, message):
    folder = write_checkpoint(tmp_path / "checkpoint")
    damage(folder)
    output, values = tmp_path / "out" / "model", tmp_path / "out" / "values.h5"
    arguments = ["--checkpoint", folder, "--output", output, "--output-values", values]
    with pytest.raises(UserError, match=message):
        CliRunner().invoke(model_command, list(map(str, arguments)), catch_exceptions=False)
    assert not list((tmp_path / "out").rglob("*"))


def test_code_is_not_to_be_trusted_where_there_is_none(write_checkpoint, tmp_path):
    with pytest.raises(UserError, match=r"model\.trust_remote_code"):
        load_checkpoint(settings(write_checkpoint(tmp_path), trust_remote_code=True))


pytestmark = pytest.mark.workflow
SHARED = ROOT.parent / "shared"


@pytest.mark.skipif(
    (SHARED / "oracle/model").exists() and (SHARED / "wikitext2/valid.txt").exists(),
    reason="the authors' own checkpoint goes through the same run, see tests/workflow/test_checkpoints.py",
)
def test_a_run_of_the_papers_settings_on_a_small_checkpoint(write_checkpoint, tmp_path):
    """configs/paper.yaml with another checkpoint, another corpus, and no more jobs than these need."""
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layers=3, vocabulary=200)
    for split, seed in (("train", 0), ("valid", 1)):
        sentences = random_sentences(seed, 300, words=200)
        (tmp_path / f"wiki.{split}.tokens").write_text(
            " \n".join(f" {sentence} . {sentence}" for sentence in sentences)
        )
    config = yaml.safe_load((ROOT / "configs/paper.yaml").read_text())
    config["model"]["checkpoint"] = str(checkpoint)
    files = {"dataset": "files", "train": "wiki.train.tokens", "validation": "wiki.valid.tokens"}
    config["corpus"] = {name: value for name, value in config["corpus"].items() if name != "config"} | files
    (tmp_path / "paper.yaml").write_text(yaml.safe_dump(config | {"shards": 1, "layer_groups": 1}))
    make_run(tmp_path, tmp_path / "paper.yaml")
    results = tmp_path / "results" / "paper"
    anatomy = read_anatomy(results / "model")
    assert (anatomy.architecture, anatomy.vocabulary, len(anatomy.layers)) == ("FairseqForCausalLM", 200, 3)
    agreement = tables.read(results / "values/figure_4_agreement.csv")
    assert (agreement[agreement.source == "trigger"]["keys"] == 24).all()
    breakdown = tables.read(results / "refinement/figure_11_breakdown.csv").groupby("layer")["share"].sum()
    np.testing.assert_allclose(breakdown, 1)
    assert json.loads((results / "settings.json").read_text())["triggers"]["include_empty_prefix"]
    assert (tmp_path / "reports/paper/index.html").exists()
