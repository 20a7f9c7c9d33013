"""The trigger pass: known answers, any number of shards, and nothing but the corpus decides between tied prefixes."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support import WORDS

from ffkv.activations.batches import Batching
from ffkv.activations.merge import combine_triggers
from ffkv.activations.trigger_file import (
    FIXED_POINT,
    Negative,
    Triggers,
    read_triggers,
    rough,
    tied_first,
    write_triggers,
)
from ffkv.activations.triggers import find_triggers
from ffkv.base.errors import UserError
from ffkv.base.files.datasets import datasets_of
from ffkv.base.settings import Triggers as Settings
from ffkv.base.steps import Part
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.tap.hooks import after

LN = 4.0  # LayerNorm of a unit vector in 17 dimensions; its epsilon of 1e-5 takes 0.01 % off


def test_the_detectors_triggers_are_exactly_the_words_that_it_detects(loaded_detector, detector, write_corpus):
    """Layer 0 detects a, b, c and nothing; layer 1 d, d, e and nothing. A last word has no next token: no trigger."""
    corpus = read_corpus(write_corpus(["a b a", "c a", "b d d e", "p p a"], load_tokenizer(detector)))
    found = find_triggers(loaded_detector, corpus, Settings(per_key=3), Batching())
    triggers = {
        (row, rank): (found.sentence[row, rank], found.position[row, rank], WORDS[found.next_token[row, rank]])
        for row in range(8)
        for rank in range(found.count[row])
    }
    assert triggers == {
        (0, 0): (0, 1, "b"),  # a: the a that ends "a b a" and "c a" and "p p a" has nothing after it
        (1, 0): (0, 2, "a"),
        (1, 1): (2, 1, "d"),  # b: equal coefficients, so by sentence
        (2, 0): (1, 1, "a"),
        (4, 0): (2, 2, "d"),  # d: one prefix a sentence, the first of equal ones
        (5, 0): (2, 2, "d"),
    }
    assert found.count.tolist() == [1, 2, 1, 0, 1, 1, 0, 0]
    assert found.fires.tolist() == [1, 2, 1, 0, 2, 2, 0, 0]
    assert found.prefixes == 2 + 1 + 3 + 2
    assert found.coefficient[0, 0] == pytest.approx(LN, rel=2e-4)
    assert found.mean[1] == pytest.approx(2 * LN / 8, rel=2e-4)
    assert found.maximum.tolist() == pytest.approx([LN, LN, LN, 0, LN, LN, 0, 0], rel=2e-4)


def test_every_prefix_competes_when_asked_for(loaded_detector, detector, write_corpus):
    corpus = read_corpus(write_corpus(["a a b", "a c"], load_tokenizer(detector)))
    settings = Settings(per_key=5, one_prefix_per_sentence=False, shared_prefixes_compete="per_sentence")
    found = find_triggers(loaded_detector, corpus, settings, Batching())
    places = [(found.sentence[0, rank], found.position[0, rank]) for rank in range(found.count[0])]
    assert places == [(0, 1), (0, 2), (1, 1)]


def test_the_empty_prefix_competes_when_asked_for(loaded_detector, detector, write_corpus):
    """Its prefix is BOS alone: position 0, and the first word follows. No memory detects BOS, so b is looked at as one."""
    corpus = read_corpus(write_corpus(["c p", "e p"], load_tokenizer(detector), bos=[WORDS.index("b")]))
    each = Settings(per_key=2, shared_prefixes_compete="per_sentence")
    without = find_triggers(loaded_detector, corpus, each, Batching())
    within = find_triggers(loaded_detector, corpus, each.model_copy(update={"include_empty_prefix": True}), Batching())
    assert without.count[1] == 0
    assert within.position[1].tolist() == [0, 0]
    assert [WORDS[token] for token in within.next_token[1]] == ["c", "e"]
    assert (without.prefixes, within.prefixes) == (2, 4)


def test_the_empty_prefix_needs_a_bos(loaded_detector, detector, write_corpus):
    corpus = replace(read_corpus(write_corpus(["a b", "b a"], load_tokenizer(detector))), bos=[])
    with pytest.raises(UserError, match=r"corpus\.bos"):
        find_triggers(loaded_detector, corpus, Settings(include_empty_prefix=True), Batching())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("shards", [2, 5, 9])
def test_any_number_of_shards_gives_the_same_bytes(model_and_corpus, kind, shards):
    loaded, corpus = model_and_corpus(kind, 60)
    settings, activations = Settings(per_key=7), Batching(tokens=64, block_sentences=9)
    whole = find_triggers(loaded, corpus, settings, activations)
    parts = [find_triggers(loaded, corpus, settings, activations, Part(shard, shards)) for shard in range(shards)]
    merged = combine_triggers(parts[::-1])  # in whatever order
    assert merged.prefixes == whole.prefixes
    same(merged, whole)


def same(one, other):
    """The same bytes in every dataset, of both signs."""
    for name in set(datasets_of(Triggers)) - {"negative"}:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name, strict=True)
    for name in datasets_of(Negative) if one.negative or other.negative else ():
        pair = getattr(one.negative, name), getattr(other.negative, name)
        np.testing.assert_array_equal(*pair, err_msg=f"negative {name}", strict=True)


def test_shards_of_different_settings_are_refused(loaded_detector, detector, write_corpus):
    corpus = read_corpus(write_corpus(["a b a", "c a"], load_tokenizer(detector)))
    found = find_triggers(loaded_detector, corpus, Settings(per_key=3), Batching())
    shards = [replace(found, attributes={"settings": kept}) for kept in ("one", "another")]
    with pytest.raises(UserError, match="different settings"):
        combine_triggers(shards)


def test_negative_coefficients_are_kept_only_where_there_are_any_and_they_are_asked_for(model_and_corpus):
    loaded, corpus = model_and_corpus("gpt2", 12)
    both = find_triggers(loaded, corpus, Settings(per_key=4), Batching())
    one = find_triggers(loaded, corpus, Settings(per_key=4, negative=False), Batching())
    assert both.negative is not None
    assert one.negative is None
    same(replace(both, negative=None), one)  # the positive side does not know of the other
    layers = loaded.anatomy.layers
    relu = replace(loaded.anatomy, layers=[*layers[:1], replace(layers[1], signed=False), *layers[2:]])
    mixed = find_triggers(replace(loaded, anatomy=relu), corpus, Settings(per_key=4), Batching())
    rows = mixed.rows(1)
    assert not mixed.negative.count[rows].any()
    assert not mixed.negative.minimum[rows].any()
    np.testing.assert_array_equal(mixed.negative.count[: rows.start], both.negative.count[: rows.start])


@pytest.mark.parametrize("one_prefix", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_gates_against_a_direct_computation(model_and_corpus, one_prefix, empty):
    """m = silu(g) u in Llama: the sign of g as the matrix gives it on the prefix alone, and of u = m / silu(g)."""
    loaded, corpus = model_and_corpus("llama", 40)
    settings = Settings(per_key=40, one_prefix_per_sentence=one_prefix, include_empty_prefix=empty)
    found = find_triggers(loaded, corpus, settings, Batching(tokens=50, block_sentences=11))
    seen = set()
    for side in (found, found.negative):
        assert (np.abs(side.gate) == (side.sentence >= 0)).all()
        for row in range(0, len(side.count), 11):
            layer = int(np.searchsorted(found.layer_offset, row, side="right")) - 1
            for rank in range(side.count[row]):
                ids = [*corpus.bos, *corpus.ids(side.sentence[row, rank])[: side.position[row, rank]]]
                gate, up = factors(loaded, layer, ids, row - found.layer_offset[layer])
                assert (side.gate[row, rank], side.up[row, rank]) == (np.sign(gate), np.sign(up))
                seen.add((int(np.sign(gate)), int(np.sign(up))))
    assert seen == {(1, 1), (1, -1), (-1, 1), (-1, -1)}


def factors(loaded, layer, ids, memory):
    """g and u of one memory at the last of some ids."""
    mlp, caught = loaded.model.model.layers[layer].mlp, {}
    handles = [
        matrix.register_forward_hook(lambda module, args, output, name=name: caught.__setitem__(name, output[0, -1]))
        for name, matrix in (("g", mlp.gate_proj), ("u", mlp.up_proj))
    ]
    with torch.no_grad():
        loaded.model(torch.tensor([[int(token) for token in ids]]))
    for handle in handles:
        handle.remove()
    return caught["g"][memory].item(), caught["u"][memory].item()


def test_memories_without_a_gate_have_no_sign_of_one(model_and_corpus):
    found = find_triggers(*model_and_corpus("gpt2", 12), Settings(per_key=4), Batching())
    for side in (found, found.negative):
        assert side.gate.dtype == np.int8
        assert not side.gate.any() and not side.up.any()


@pytest.mark.parametrize("kind", ["llama", "gpt2-relu"])
def test_written_and_read_back(model_and_corpus, tmp_path, kind):
    found = find_triggers(*model_and_corpus(kind, 12), Settings(per_key=3), Batching())
    found = replace(found, attributes={"model_hash": "one"})
    write_triggers(tmp_path / "triggers.h5", found)
    back = read_triggers(tmp_path / "triggers.h5", {"model_hash": "one"})
    same(back, found)
    assert (back.negative is None) == (kind == "gpt2-relu")
    assert back.prefixes == found.prefixes
    np.testing.assert_allclose(back.mean, found.total * FIXED_POINT / found.prefixes)
    with pytest.raises(UserError, match=r"triggers\.h5 belongs to another model"):
        read_triggers(tmp_path / "triggers.h5", {"model_hash": "two"})


def overflow(loaded):
    loaded.model.get_submodule(loaded.anatomy.layers[1].second_matrices[0].first_matrices[0]).weight.data[:] = 1e38


def spoil(loaded):
    """In one sentence: the gate at the highest coefficient is looked up, and there is none."""

    def no_number(module, inputs, output):
        output[0] = float("nan")

    loaded.model.model.layers[-1].mlp.up_proj.register_forward_hook(no_number)


def sink(loaded):
    """No maximum meets minus infinity, only the minimum does. It is in the last layer, so that nothing after it is NaN."""
    mlp = loaded.model.model.layers[-1].mlp
    for module, value in ((mlp.act_fn, -3e38), (mlp.up_proj, 10.0)):
        module.register_forward_hook(lambda module, args, output, value=value: torch.full_like(output, value))


@pytest.mark.parametrize(("kind", "change"), [("gpt2-relu", overflow), ("llama", spoil), ("llama", sink)])
def test_coefficients_that_are_no_numbers_are_refused(model_and_corpus, kind, change):
    loaded, corpus = model_and_corpus(kind, 5)
    change(loaded)
    with pytest.raises(UserError, match="not finite"):
        find_triggers(loaded, corpus, Settings(), Batching())


STEP = 2**-14  # between two numbers from 1 to 2 with 15 significant binary digits


def test_fifteen_binary_digits_count():
    sizes = np.array([0, 1, 1 + 0.99 * STEP, 1 + STEP, 2 - 0.01 * STEP, 2, 2 + 1.99 * STEP, 1e30], np.float32)
    digits = rough(sizes)
    assert digits[0] == -1
    assert (np.diff(digits) > 0).tolist() == [True, False, True, True, True, False, True]
    np.testing.assert_array_equal(rough(-sizes), digits)


def test_a_key_is_tied_if_its_first_two_trigger_examples_are():
    rows = [[1 + STEP, 1, 1], [1, 1 + STEP / 2, 0.5], [1, 0, 0], [0, 0, 0], [2, 1, 1]]
    assert tied_first(np.array(rows, np.float32)).tolist() == [False, True, False, False, False]
    assert tied_first(-np.array(rows, np.float32)).tolist() == [False, True, False, False, False]
    assert not tied_first(np.array([[1.0]], np.float32)).any()


def round_otherwise(generator: torch.Generator, *call):
    """What a first matrix returns, with errors as another processor makes them."""
    output = call[-1]
    return output * (1 + 2e-7 * torch.randn(output.shape, generator=generator))


@pytest.mark.parametrize("kind", ["gpt2", "gpt-neox"])
def test_neither_batches_nor_rounding_decide_between_tied_prefixes(model_and_corpus, kind):
    """Negative coefficients of GELU crowd at its lowest point. Layer 0 of GPT-NeoX sees the last token only.

    Where all digits count, these changes give such keys other lists.
    """
    (loaded, corpus), found = model_and_corpus(kind, 1500, seed=1), []
    layers = loaded.anatomy.layers
    matrices = [loaded.model.get_submodule(layer.second_matrices[0].first_matrices[0]) for layer in layers]
    for tokens, block, seed in ((1024, 2048, 0), (40, 2048, 0), (4000, 100, 1), (300, 700, 2)):
        generator = torch.Generator().manual_seed(seed)
        noisy = [(matrix, partial(round_otherwise, generator)) for matrix in matrices if seed]
        with after(*noisy):
            batching = Batching(tokens=tokens, block_sentences=block)
            found.append(find_triggers(loaded, corpus, Settings(per_key=20), batching))
    crowded = found[0].negative if kind == "gpt2" else found[0]
    assert tied_first(crowded.coefficient[: found[0].layer_offset[1]]).mean() > 0.9
    for one in found[1:]:
        for first, other in ((found[0], one), (found[0].negative, one.negative)):
            same = (first.sentence == other.sentence) & (first.position == other.position)
            # A coefficient between two steps can still fall to either side of it: in 8 draws for 2 to 5 of 48 keys.
            assert (~same.all(1)).mean() < 0.15
            np.testing.assert_allclose(first.coefficient, other.coefficient, rtol=2 * STEP)
