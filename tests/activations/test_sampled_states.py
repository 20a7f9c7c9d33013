"""Sampled prefixes: what stands in the file is what the model computes."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support import random_sentences

from ffkv.activations.commands import merge_prefixes, merge_triggers, prefixes, triggers
from ffkv.activations.last_token import last_coefficients
from ffkv.activations.prefix_file import read_layer
from ffkv.corpus.corpus_file import read_corpus
from ffkv.files import hdf5
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.read import load_tokenizer
from ffkv.model.discover.prove import observe
from ffkv.model.head.head_file import load_head
from ffkv.model.head.predictions import predictions
from ffkv.model.values_file import values


def run(command, *arguments):
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("kind", ["gpt2", "opt-post-norm", "gpt-neox", "gemma2", "qwen2-moe"])
def test_states_of_prefixes_are_those_of_the_prefix_run_alone(proven, write_corpus, tmp_path, kind):
    tokenizer = load_tokenizer(proven(kind))
    loaded = load(proven(kind), "cpu")
    path = write_corpus(random_sentences(4, 20), tokenizer, 60, tokenizer_hash=loaded.anatomy.tokenizer_hash)
    for shard in range(3):
        run(
            prefixes,
            "--model",
            proven(kind),
            "--corpus",
            path,
            "--count",
            30,
            "--block-sentences",
            4,
            "--batch-tokens",
            50,
            "--shard",
            shard,
            "--shards",
            3,
            "--output",
            tmp_path / f"{shard}.h5",
        )
    run(
        merge_prefixes,
        *[tmp_path / f"{shard}.h5" for shard in range(3)],
        "--model",
        proven(kind),
        "--output",
        tmp_path / "merged.h5",
    )
    run(
        prefixes,
        "--model",
        proven(kind),
        "--corpus",
        path,
        "--count",
        30,
        "--block-sentences",
        4,
        "--batch-tokens",
        50,
        "--output",
        tmp_path / "whole.h5",
    )
    corpus = read_corpus(path)
    with (
        hdf5.open(tmp_path / "merged.h5", "prefixes") as merged,
        hdf5.open(tmp_path / "whole.h5", "prefixes") as whole,
    ):
        for name in ("sentence", "position", "next_token", "r", "x", "y", "o", "m"):
            np.testing.assert_array_equal(merged[name][...], whole[name][...])
        assert len(merged["sentence"]) == 30
        for number in (0, 11, 29):
            s, p = int(merged["sentence"][number]), int(merged["position"][number])
            assert merged["next_token"][number] == corpus.ids(s)[p]
            alone = observe(loaded.model, loaded.anatomy.layers, torch.tensor([[0, *corpus.ids(s)[:p].tolist()]]))
            for layer in range(len(alone)):
                stored = read_layer(merged, layer)
                for quantity in "myo":
                    # batched against alone: last digits
                    np.testing.assert_allclose(
                        getattr(stored, quantity)[number], alone[layer][quantity][0, -1], rtol=1e-4, atol=1e-4
                    )
                np.testing.assert_allclose(stored.r[number] + stored.y[number], stored.o[number], rtol=1e-5, atol=1e-5)
        assert read_layer(merged, 0, "y").m.size == 0


def test_last_coefficients_are_those_of_the_last_token(proven):
    loaded = load(proven("gpt2"), "cpu")
    generator = np.random.default_rng(0)
    rows = [generator.integers(1, 60, length) for length in (3, 9, 1, 5, 5, 30)]
    memories = np.array([0, 63, 5, 7, 7, 2])
    found = last_coefficients(loaded, 1, rows, memories, batch_tokens=12)
    expected = [
        observe(loaded.model, loaded.anatomy.layers, torch.tensor(row[None]))[1]["m"][0, -1, memory].item()
        for row, memory in zip(rows, memories, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_files_of_another_model_are_refused_by_name(proven, write_corpus, tmp_path):
    from ffkv.errors import UserError

    loaded = load(proven("gpt2"), "cpu")
    path = write_corpus(
        random_sentences(4, 20), load_tokenizer(proven("gpt2")), 60, tokenizer_hash=loaded.anatomy.tokenizer_hash
    )
    other = write_corpus(
        random_sentences(4, 20), load_tokenizer(proven("gpt2")), 60, name="other.h5", tokenizer_hash="another"
    )
    with pytest.raises(UserError, match=r"other\.h5 belongs to another tokenizer"):
        run(triggers, "--model", proven("gpt2"), "--corpus", other, "--output", tmp_path / "never.h5")
    assert not (tmp_path / "never.h5").exists()
    for kind, name in (("gpt2", "one.h5"), ("gpt2-relu", "two.h5")):
        run(triggers, "--model", proven(kind), "--corpus", path, "--per-key", 3, "--output", tmp_path / name)
    with pytest.raises(UserError, match=r"two\.h5 belongs to another model"):
        run(merge_triggers, tmp_path / "one.h5", tmp_path / "two.h5", "--output", tmp_path / "never.h5")
    assert not (tmp_path / "never.h5").exists()


@pytest.mark.parametrize("kind", ["gemma4_text", "zamba2"])
def test_what_a_model_reads_out_is_kept_where_that_is_not_the_last_layers_output(proven, write_corpus, tmp_path, kind):
    loaded = load(proven(kind), "cpu")
    tokenizer = load_tokenizer(proven(kind))
    path = write_corpus(random_sentences(4, 12), tokenizer, 96, tokenizer_hash=loaded.anatomy.tokenizer_hash)
    for shard in range(2):
        places = [
            "--count",
            12,
            "--block-sentences",
            4,
            "--shard",
            shard,
            "--shards",
            2,
            "--output",
            tmp_path / f"{shard}.h5",
        ]
        run(prefixes, "--model", proven(kind), "--corpus", path, *places)
    shards = [tmp_path / f"{shard}.h5" for shard in range(2)]
    run(merge_prefixes, *shards, "--model", proven(kind), "--output", tmp_path / "merged.h5")
    corpus, head = read_corpus(path), load_head(proven(kind), "cpu")
    with hdf5.open(tmp_path / "merged.h5", "prefixes") as file:
        found = predictions(head, file["end"][...], None).ids
        rows = [np.concatenate([corpus.bos, corpus.ids(s)[:p]]) for s, p in zip(file["sentence"], file["position"])]
    with torch.no_grad():
        logits = [loaded.model(torch.from_numpy(row)[None].long(), use_cache=False).logits[0, -1] for row in rows]
    assert found.tolist() == [row.argmax().item() for row in logits]


def test_the_factor_of_a_norm_after_the_layer_is_kept(proven, write_corpus, tmp_path):
    for kind, normed in (("gemma2", True), ("gpt2", False)):
        loaded = load(proven(kind), "cpu")
        tokenizer = load_tokenizer(proven(kind))
        path = write_corpus(random_sentences(4, 12), tokenizer, 60, tokenizer_hash=loaded.anatomy.tokenizer_hash)
        output = tmp_path / f"{kind}.h5"
        run(prefixes, "--model", proven(kind), "--corpus", path, "--count", 9, "--output", output)
        with hdf5.open(output, "prefixes") as file:
            factor = file["factor"][...]
            for layer in loaded.anatomy.layers:
                at = read_layer(file, layer.index)
                v, b = (part.numpy() for part in values(loaded.model, layer))
                # float32 sums over 24 or 64 memories
                np.testing.assert_allclose(factor[layer.index][:, None] * (at.m @ v + b), at.y, rtol=1e-3, atol=1e-4)
        assert (factor != 1).all() if normed else (factor == 1).all()


def test_shards_that_do_not_make_a_whole_are_refused(proven, write_corpus, tmp_path):
    loaded = load(proven("gpt2"), "cpu")
    tokenizer = load_tokenizer(proven("gpt2"))
    path = write_corpus(random_sentences(4, 20), tokenizer, 60, tokenizer_hash=loaded.anatomy.tokenizer_hash)
    for command, more in ((prefixes, ["--count", 30]), (triggers, [])):
        for shard in range(2):
            places = ["--block-sentences", 4, "--shard", shard, "--shards", 2, "--output", tmp_path / f"{shard}.h5"]
            run(command, "--model", proven("gpt2"), "--corpus", path, *more, *places)
        merge = merge_prefixes if command is prefixes else merge_triggers
        model = ["--model", str(proven("gpt2"))] if command is prefixes else []
        for wrong in ([0], [1], [0, 0], [1, 0], [0, 1, 1]):
            if command is triggers and wrong == [1, 0]:
                continue  # their order makes no difference
            output = tmp_path / "merged.h5"
            shards = [str(tmp_path / f"{shard}.h5") for shard in wrong]
            result = CliRunner().invoke(merge, [*shards, *model, "--output", str(output)])
            assert "give every shard once" in str(result.exception)
            assert not output.exists()


def test_states_that_overflow_are_refused(proven, write_corpus, tmp_path, monkeypatch):
    """A word that the proof did not meet may overflow where the passages did not."""
    loaded = load(proven("gpt2"), "cpu")
    tokenizer = load_tokenizer(proven("gpt2"))
    path = write_corpus(random_sentences(4, 20), tokenizer, 60, tokenizer_hash=loaded.anatomy.tokenizer_hash)
    loaded.model.transformer.h[2].mlp.c_fc.bias.data[3] = float("inf")
    monkeypatch.setattr("ffkv.model.checkpoint.load.load", lambda *_: loaded)
    for command, more in ((prefixes, []), (triggers, ["--no-negative"])):
        output = tmp_path / "output.h5"
        arguments = ["--model", proven("gpt2"), "--corpus", path, *more, "--output", output]
        result = CliRunner().invoke(command, [str(argument) for argument in arguments])
        assert "not finite" in str(result.exception)
        assert not output.exists()
