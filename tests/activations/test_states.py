"""Sampled prefixes: which are drawn, and that what stands in the file is what the model computes."""

import re
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from ffkv.activations.commands import merge_sampled_prefixes, merge_triggers, sampled_prefixes, triggers
from ffkv.activations.last_token import last_coefficients
from ffkv.activations.prefix_file import read_layer, storage_of
from ffkv.activations.states import draw_prefixes
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.discover.prove import observe
from ffkv.model.head.head_file import load_head
from ffkv.model.head.topk import predictions
from ffkv.model.keys_and_values import values


@given(
    st.lists(st.integers(2, 9), min_size=1, max_size=20),
    st.integers(1, 200),
    st.sampled_from(["sentence", "prefix"]),
    st.integers(0, 5),
)
def test_proper_prefixes_none_twice(lengths, count, how, seed):
    sentence, position = draw_prefixes(np.array(lengths), count, how, seed)
    pairs = list(zip(sentence.tolist(), position.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs) == min(count, sum(lengths) - len(lengths))
    assert all(1 <= p < lengths[s] for s, p in pairs)
    assert pairs == sorted(pairs)
    again = draw_prefixes(np.array(lengths), count, how, seed)
    assert (again[0] == sentence).all() and (again[1] == position).all()


@pytest.mark.parametrize("count", [1, 7, 10, 13, 20])
def test_by_sentence_every_sentence_is_drawn_before_one_repeats(count):
    sentence, _ = draw_prefixes(np.full(10, 6), count, "sentence", 0)
    times = np.bincount(sentence, minlength=10)
    assert times.max() - times.min() <= 1


def test_by_sentence_short_sentences_count_as_much_as_long_ones():
    """1,000 sentences of one proper prefix and 1,000 of nine: half of the draws each; by prefix, a tenth and nine tenths."""
    lengths = np.array([2, 10] * 1000)
    for how, expected in (("sentence", 0.5), ("prefix", 0.1)):
        sentence, position = draw_prefixes(lengths, 1000, how, 1)
        # binomial with n = 1000: four standard deviations are 0.064
        assert np.mean(lengths[sentence] == 2) == pytest.approx(expected, abs=0.065)
        if how == "sentence":
            # positions of long sentences are uniform over 1..9, mean 5; standard error of 500 draws is 0.12
            assert position[lengths[sentence] == 10].mean() == pytest.approx(5, abs=0.5)


def run(command, arguments: str):
    result = CliRunner().invoke(command, arguments.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output


def sample_in_shards(common: str, count: int, folder) -> None:
    """Writes the shards of a sample, and merged.h5, by the options of `sampled-prefixes`."""
    for shard in range(count):
        run(sampled_prefixes, f"{common} --shard {shard} --shards {count} --output {folder}/{shard}.h5")
    shards = " ".join(f"{folder}/{shard}.h5" for shard in range(count))
    model = re.match(r"--model \S+", common)[0]
    run(merge_sampled_prefixes, f"{shards} {model} --output {folder}/merged.h5")


@pytest.mark.parametrize("kind", ["gpt2", "opt-post-norm", "gpt-neox", "gemma2", "qwen2-moe"])
def test_states_of_prefixes_are_those_of_the_prefix_run_alone(proven, corpus_for, tmp_path, kind):
    loaded, path = load(proven(kind), "cpu"), corpus_for(kind)
    common = f"--model {proven(kind)} --corpus {path} --count 30 --block-sentences 4 --batch-tokens 50 --extra-states x"
    sample_in_shards(common, 3, tmp_path)
    run(sampled_prefixes, f"{common} --output {tmp_path}/whole.h5")
    corpus = read_corpus(path)
    with (
        hdf5.open(tmp_path / "merged.h5", "sampled prefixes") as merged,
        hdf5.open(tmp_path / "whole.h5", "sampled prefixes") as whole,
    ):
        for name in ("sentence", "position", "next_token", "x", "y", "o", "m"):
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
                np.testing.assert_array_equal(stored.r, stored.o - stored.y)
                np.testing.assert_array_equal(stored.r, read_layer(merged, layer, "r").r)
        assert read_layer(merged, 0, "y").m.size == 0


def test_last_coefficients_are_those_of_the_last_token(proven):
    loaded = load(proven("gpt2"), "cpu")
    generator = np.random.default_rng(0)
    rows = [generator.integers(1, 60, length) for length in (3, 9, 1, 5, 5, 30)]
    memories = np.array([0, 63, 5, 7, 7, 2])
    found = last_coefficients(loaded, rows, loaded.anatomy.layer_offset[1] + memories, batch_tokens=12)
    expected = [
        observe(loaded.model, loaded.anatomy.layers, torch.tensor(row[None]))[1]["m"][0, -1, memory].item()
        for row, memory in zip(rows, memories, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_files_of_another_model_are_refused_by_name(proven, corpus_for, tmp_path):
    path, other = corpus_for("gpt2"), corpus_for("gpt2", name="other.h5", tokenizer_hash="another")
    with pytest.raises(UserError, match=r"other\.h5 belongs to another tokenizer"):
        run(triggers, f"--model {proven('gpt2')} --corpus {other} --output {tmp_path}/never.h5")
    assert not (tmp_path / "never.h5").exists()
    for kind, name in (("gpt2", "one.h5"), ("gpt2-relu", "two.h5")):
        run(triggers, f"--model {proven(kind)} --corpus {path} --per-key 3 --output {tmp_path / name}")
    with pytest.raises(UserError, match=r"two\.h5 belongs to another model"):
        run(merge_triggers, f"{tmp_path}/one.h5 {tmp_path}/two.h5 --output {tmp_path}/never.h5")
    assert not (tmp_path / "never.h5").exists()


@pytest.mark.parametrize("kind", ["gemma4_text", "zamba2"])
def test_what_a_model_reads_out_is_kept_where_that_is_not_the_last_layers_output(proven, corpus_for, tmp_path, kind):
    loaded, path = load(proven(kind), "cpu"), corpus_for(kind, 12)
    sample_in_shards(f"--model {proven(kind)} --corpus {path} --count 12 --block-sentences 4", 2, tmp_path)
    corpus, head = read_corpus(path), load_head(proven(kind), "cpu")
    with hdf5.open(tmp_path / "merged.h5", "sampled prefixes") as file:
        found = predictions(head, file["end"][...], None).ids
        rows = [np.concatenate([corpus.bos, corpus.ids(s)[:p]]) for s, p in zip(file["sentence"], file["position"])]
    with torch.no_grad():
        logits = [loaded.model(torch.from_numpy(row)[None].long(), use_cache=False).logits[0, -1] for row in rows]
    assert found.tolist() == [row.argmax().item() for row in logits]


def test_the_factor_of_a_norm_after_the_layer_is_kept(proven, corpus_for, tmp_path):
    for kind, normed in (("gemma2", True), ("gpt2", False)):
        loaded, output = load(proven(kind), "cpu"), tmp_path / f"{kind}.h5"
        common = f"--model {proven(kind)} --corpus {corpus_for(kind, 12)} --count 9 --extra-states factor"
        run(sampled_prefixes, f"{common} --output {output}")
        with hdf5.open(output, "sampled prefixes") as file:
            factor = file["factor"][...]
            for layer in loaded.anatomy.layers:
                at = read_layer(file, layer.index)
                v, b = (part.numpy() for part in values(loaded.model, layer))
                # float32 sums over 24 or 64 memories
                np.testing.assert_allclose(factor[layer.index][:, None] * (at.m @ v + b), at.y, rtol=1e-3, atol=1e-4)
        assert (factor != 1).all() if normed else (factor == 1).all()


def test_shards_that_do_not_make_a_whole_are_refused(proven, corpus_for, tmp_path):
    path = corpus_for("gpt2")
    for command, merge, more, model in (
        (sampled_prefixes, merge_sampled_prefixes, "--count 30", f"--model {proven('gpt2')}"),
        (triggers, merge_triggers, "", ""),
    ):
        common = f"--model {proven('gpt2')} --corpus {path} {more} --block-sentences 4 --shards 2"
        for shard in range(2):
            run(command, f"{common} --shard {shard} --output {tmp_path}/{shard}.h5")
        for wrong in ([0], [1], [0, 0], [1, 0], [0, 1, 1]):
            if command is triggers and wrong == [1, 0]:
                continue  # their order makes no difference
            output = tmp_path / "merged.h5"
            shards = " ".join(str(tmp_path / f"{shard}.h5") for shard in wrong)
            result = CliRunner().invoke(merge, f"{shards} {model} --output {output}".split())
            assert "give every shard once" in str(result.exception)
            assert not output.exists()


@pytest.fixture
def overflowing(proven, monkeypatch):
    """The model of the steps overflows: a word that the proof did not meet may do so where the passages did not."""
    loaded = load(proven("gpt2"), "cpu")
    loaded.model.transformer.h[2].mlp.c_fc.bias.data[3] = float("inf")
    monkeypatch.setattr("ffkv.activations.step.load_for", lambda *_: loaded)


@pytest.mark.parametrize(
    ("command", "more", "limit"),  # with a limit of 0, states are written while the model runs
    [(sampled_prefixes, "", 2**30), (sampled_prefixes, "", 0), (triggers, " --no-negative", 0)],
)
def test_states_that_overflow_are_refused_and_leave_no_half_of_a_block(
    proven, corpus_for, tmp_path, monkeypatch, overflowing, command, more, limit
):
    monkeypatch.setattr("ffkv.activations.prefix_file.IN_MEMORY", limit)
    with pytest.raises(UserError, match="not finite"):
        run(command, f"--model {proven('gpt2')} --corpus {corpus_for('gpt2')}{more} --output {tmp_path}/out/0.h5")
    assert not [entry for entry in (tmp_path / "out").rglob("*") if entry.is_file()]


@pytest.fixture
def sample(proven, corpus_for, tmp_path):
    """A sample in two shards of three blocks, and the options that it was made with."""
    common = f"--model {proven('gpt2')} --corpus {corpus_for('gpt2')} --count 24 --block-sentences 4"
    sample_in_shards(common, 2, tmp_path)
    return tmp_path, common


def states(path):
    with hdf5.open(path, "sampled prefixes") as file:
        return [read_layer(file, layer) for layer in range(len(file["y"]))]


@pytest.mark.parametrize("name", ["0.h5", "1.blocks", "1.blocks/16.h5"])
def test_a_deleted_shard_or_block_is_named(sample, name):
    path = sample[0] / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match=r"which does not exist: it was deleted or moved\. Make .* again"):
        states(sample[0] / "merged.h5")


def test_a_damaged_block_is_named_and_only_it_is_made_again(sample):
    folder, common = sample
    whole = states(folder / "merged.h5")
    blocks = {path: path.stat().st_mtime_ns for path in (folder / "1.blocks").glob("*.h5")}
    damaged = folder / "1.blocks" / "16.h5"
    with h5py.File(damaged) as file:
        place = file["y"].id.get_chunk_info(1).byte_offset
    content = bytearray(damaged.read_bytes())
    content[place + 5] ^= 1
    damaged.write_bytes(content)
    for name in ("1.h5", "merged.h5"):
        message = rf"16\.h5 is not what ffkv wrote.*Delete {folder}/1\.h5 and make it again"
        with pytest.raises(UserError, match=message):
            states(folder / name)
    run(sampled_prefixes, f"{common} --shard 1 --shards 2 --output {folder}/1.h5")
    changed = {path for path, time in blocks.items() if path.stat().st_mtime_ns != time}
    assert changed == {damaged}
    for one, other in zip(states(folder / "merged.h5"), whole, strict=True):
        np.testing.assert_array_equal(one.y, other.y)


def test_a_run_that_is_moved_as_a_whole_is_read(sample, tmp_path):
    whole = states(sample[0] / "merged.h5")
    shutil.copytree(sample[0], tmp_path / "copy", ignore=lambda folder, names: {"copy"} & {*names})
    for path in sample[0].glob("*.blocks"):
        shutil.rmtree(path)
    for one, other in zip(states(tmp_path / "copy" / "merged.h5"), whole, strict=True):
        np.testing.assert_array_equal(one.m, other.m)


def test_states_are_stored_once(sample):
    blocks = sum(path.stat().st_size for path in sample[0].glob("*.blocks/*.h5"))
    linked = sum((sample[0] / name).stat().st_size for name in ("0.h5", "1.h5", "merged.h5"))
    with hdf5.open(sample[0] / "merged.h5", "sampled prefixes") as file:
        assert "x" not in file and "factor" not in file and "r" not in file
        assert file["y"].shape[1] == 24
    assert linked < blocks


@pytest.mark.parametrize(("kind", "keep"), [("gemma2", "x factor"), ("qwen2-moe", ""), ("zamba2", "")])
def test_a_block_that_is_written_while_the_model_runs_has_the_same_numbers(
    proven, corpus_for, tmp_path, monkeypatch, kind, keep
):
    """Whatever fits in memory: every dataset, and every byte of the file that links to the blocks."""
    more = "".join(f" --extra-states {name}" for name in keep.split())
    sizes = f"--count 23 --block-sentences 7 --batch-tokens 50{more}"
    for folder, limit in (("large", 2**30), ("small", 0)):
        monkeypatch.setattr("ffkv.activations.prefix_file.IN_MEMORY", limit)
        sample_in_shards(f"--model {proven(kind)} --corpus {corpus_for(kind, 12)} {sizes}", 1, tmp_path / folder)
    with h5py.File(tmp_path / "large/merged.h5") as large, h5py.File(tmp_path / "small/merged.h5") as small:
        assert set(large) == set(small)
        assert {*keep.split(), "y", "o", "m"} <= set(large)
        for name in set(large) - {"dimension"}:
            np.testing.assert_array_equal(small[name][...], large[name][...], err_msg=name, strict=True)
    for name in ("0.h5", "merged.h5"):
        assert (tmp_path / "large" / name).read_bytes() == (tmp_path / "small" / name).read_bytes()
    chunks = {}
    for folder in ("large", "small"):
        with hdf5.open(tmp_path / folder / "0.blocks/7.h5", "sampled prefixes") as file:
            chunks[folder] = file["m"].chunks[0], file["y"].chunks[1]
    assert chunks == {"large": (7, 7), "small": (1, 1)}


@pytest.mark.parametrize(
    ("kind", "dtype", "compressed"),
    [
        ("gpt2", "float32", set()),
        ("qwen2-moe", "float32", {"m"}),
        ("gpt2", "bfloat16", {"m", "y", "o", "x"}),
        ("gpt2", "float16", {"m", "y", "o", "x"}),
    ],
)
def test_the_model_alone_decides_what_is_compressed(proven, kind, dtype, compressed):
    anatomy = replace(read_anatomy(proven(kind)), dtype=dtype)
    assert {*storage_of(anatomy, ["x"], 100).compressed} - {"end"} == compressed


def test_a_mixtures_coefficients_are_stored_smaller_and_read_as_they_were(proven, corpus_for, tmp_path):
    common = f"--model {proven('qwen2-moe')} --corpus {corpus_for('qwen2-moe', 40)} --count 200"
    for name in ("one", "another"):
        run(sampled_prefixes, f"{common} --output {tmp_path}/{name}/0.h5")
    one, another = (tmp_path / name / "0.blocks/0.h5" for name in ("one", "another"))
    assert one.read_bytes() == another.read_bytes()
    with hdf5.open(one, "sampled prefixes") as file:
        m, y = file["m"], file["y"]
        assert (m.compression, m.shuffle, m.fletcher32, y.compression) == ("gzip", True, True, None)
        assert "compressed if a layer has experts" in m.attrs["description"]
        assert m.id.get_storage_size() < 0.9 * m.size * 4
        assert (m[...] == 0).mean() > 0.2  # experts to which the token was not sent
