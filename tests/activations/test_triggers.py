"""The trigger pass: known answers, brute force, any number of shards."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from support import WORDS, random_sentences

from ffkv.activations.merge import merge_triggers
from ffkv.activations.statistics import Statistics
from ffkv.activations.trigger_file import (
    DESCRIPTIONS,
    FIXED_POINT,
    HISTOGRAM_EDGES,
    HISTOGRAM_EVERY,
    NEGATIVE,
    read_triggers,
    write_triggers,
)
from ffkv.activations.triggers import find_triggers
from ffkv.corpus.corpus_file import read_corpus
from ffkv.errors import UserError
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.read import load_tokenizer
from ffkv.model.discover.prove import observe
from ffkv.settings import Activations
from ffkv.settings import Triggers as Settings

LN = 4.0  # LayerNorm of a unit vector in 17 dimensions; its epsilon of 1e-5 takes 0.01 % off


def test_the_detectors_triggers_are_exactly_the_words_that_it_detects(loaded_detector, detector, write_corpus):
    """Layer 0 detects a, b, c and nothing; layer 1 d, d, e and nothing. A last word has no next token: no trigger."""
    corpus = read_corpus(write_corpus(["a b a", "c a", "b d d e", "p p a"], load_tokenizer(detector), 17))
    found = find_triggers(loaded_detector, corpus, Settings(per_key=3), Activations())
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
    corpus = read_corpus(write_corpus(["a a b", "a c"], load_tokenizer(detector), 17))
    found = find_triggers(loaded_detector, corpus, Settings(per_key=5, one_prefix_per_sentence=False), Activations())
    assert [(found.sentence[0, rank], found.position[0, rank]) for rank in range(found.count[0])] == [
        (0, 1),
        (0, 2),
        (1, 1),
    ]


def test_the_empty_prefix_competes_when_asked_for(loaded_detector, detector, write_corpus):
    """Its prefix is BOS alone: position 0, and the first word follows. No memory detects BOS, so b is looked at as one."""
    corpus = read_corpus(write_corpus(["c p", "e p"], load_tokenizer(detector), 17, bos=[WORDS.index("b")]))
    without = find_triggers(loaded_detector, corpus, Settings(per_key=2), Activations())
    within = find_triggers(loaded_detector, corpus, Settings(per_key=2, include_empty_prefix=True), Activations())
    assert without.count[1] == 0
    assert within.position[1].tolist() == [0, 0]
    assert [WORDS[token] for token in within.next_token[1]] == ["c", "e"]
    assert (without.prefixes, within.prefixes) == (2, 4)


def test_the_empty_prefix_needs_a_bos(loaded_detector, detector, write_corpus):
    corpus = replace(read_corpus(write_corpus(["a b", "b a"], load_tokenizer(detector), 17)), bos=[])
    with pytest.raises(UserError, match=r"corpus\.bos"):
        find_triggers(loaded_detector, corpus, Settings(include_empty_prefix=True), Activations())


def naive(loaded, corpus):
    """Every coefficient of every proper prefix, one prefix at a time: {row: [(coefficient, sentence, position)]}."""
    table = defaultdict(list)
    for sentence in range(len(corpus)):
        for position in range(1, int(corpus.lengths[sentence])):
            ids = torch.tensor([[*corpus.bos, *corpus.ids(sentence)[:position].tolist()]])
            states = observe(loaded.model, loaded.anatomy.layers, ids)
            m = torch.cat([layer["m"][0, -1] for layer in states]).tolist()
            for row, coefficient in enumerate(m):
                table[row].append((coefficient, sentence, position))
    return table


def check_examples(side, sign, row, everything, corpus, one_prefix):
    """One row's triggers of a sign against all of its coefficients: (coefficient, sentence, position)."""
    own = sorted(
        (entry for entry in everything if sign * entry[0] > 0), key=lambda entry: (-sign * entry[0], *entry[1:])
    )
    if one_prefix:
        best = {}
        for entry in own:
            best.setdefault(entry[1], entry)
        own = list(best.values())
    # a batched forward differs from a single one in the last digits
    np.testing.assert_allclose(
        side.coefficient[row, : side.count[row]], [entry[0] for entry in own[:6]], rtol=1e-4, atol=1e-5
    )
    assert (sign * side.coefficient[row, : side.count[row]] > 0).all()
    assert not side.coefficient[row, side.count[row] :].any()
    by_place = {entry[1:]: entry[0] for entry in everything}
    for rank in range(side.count[row]):
        place = (int(side.sentence[row, rank]), int(side.position[row, rank]))
        assert by_place[place] == pytest.approx(float(side.coefficient[row, rank]), rel=1e-4, abs=1e-5)
        assert side.next_token[row, rank] == corpus.ids(place[0])[place[1]]
    values = np.array([entry[0] for entry in everything])
    unclear = (np.abs(values) <= 1e-5).sum()
    assert abs(side.fires[row] - (sign * values > 0).sum()) <= unclear


@pytest.mark.parametrize("kind", ["gpt2", "gpt2-relu", "opt", "gpt-neox", "opt-post-norm", "llama"])
@pytest.mark.parametrize("one_prefix", [True, False])
def test_equal_to_brute_force(proven, write_corpus, kind, one_prefix):
    loaded = load(proven(kind), "cpu")
    corpus = read_corpus(write_corpus(random_sentences(1, 24, longest=8), load_tokenizer(proven(kind)), 60))
    found = find_triggers(
        loaded,
        corpus,
        Settings(per_key=6, one_prefix_per_sentence=one_prefix),
        Activations(batch_tokens=40, block_sentences=7),
    )
    assert (found.negative is None) == (kind in ("gpt2-relu", "opt", "opt-post-norm"))
    for row, everything in naive(loaded, corpus).items():
        check_examples(found, 1, row, everything, corpus, one_prefix)
        if found.negative:
            check_examples(found.negative, -1, row, everything, corpus, one_prefix)
        values = np.array([entry[0] for entry in everything])
        assert found.mean[row] == pytest.approx(values.mean(), rel=1e-4, abs=1e-5)
        assert found.maximum[row] == pytest.approx(max(values.max(), 0), rel=1e-4, abs=1e-5)
        if found.negative:
            assert found.negative.minimum[row] == pytest.approx(min(values.min(), 0), rel=1e-4, abs=1e-5)
        counted = np.array([entry[0] for entry in everything if entry[1] % HISTOGRAM_EVERY == 0])
        assert found.histogram[row].sum() == len(counted)
        edges = HISTOGRAM_EDGES.astype(np.float64)
        if np.abs(counted[:, None] - edges[None, 1:-1]).min() > 1e-4:
            expected = [
                ((counted > low) if low == 0 else (counted >= low))
                & ((counted <= high) if high == 0 else (counted < high))
                for low, high in pairwise(edges)
            ]
            assert found.histogram[row].tolist() == [int(inside.sum()) for inside in expected]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("shards", [2, 5, 9])
def test_any_number_of_shards_gives_the_same_bytes(proven, write_corpus, tmp_path, kind, shards):
    loaded = load(proven(kind), "cpu")
    corpus = read_corpus(write_corpus(random_sentences(2, 60), load_tokenizer(proven(kind)), 60))
    settings, activations = Settings(per_key=7), Activations(batch_tokens=64, block_sentences=9)
    whole = find_triggers(loaded, corpus, settings, activations)
    parts = [find_triggers(loaded, corpus, settings, activations, shard, shards) for shard in range(shards)]
    merged = merge_triggers(parts[::-1])  # in whatever order
    assert merged.prefixes == whole.prefixes
    same(merged, whole)


def same(one, other):
    """The same bytes in every dataset, of both signs."""
    for name in DESCRIPTIONS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name, strict=True)
    for name in NEGATIVE if one.negative or other.negative else ():
        pair = getattr(one.negative, name), getattr(other.negative, name)
        np.testing.assert_array_equal(*pair, err_msg=f"negative {name}", strict=True)


def test_shards_of_different_settings_are_refused(loaded_detector, detector, write_corpus):
    corpus = read_corpus(write_corpus(["a b a", "c a"], load_tokenizer(detector), 17))
    found = find_triggers(loaded_detector, corpus, Settings(per_key=3), Activations())
    shards = [replace(found, attributes={"settings": kept}) for kept in ("one", "another")]
    with pytest.raises(UserError, match="different settings"):
        merge_triggers(shards)


def test_negative_coefficients_are_kept_only_where_there_are_any_and_they_are_asked_for(proven, write_corpus):
    corpus = read_corpus(write_corpus(random_sentences(3, 12), load_tokenizer(proven("gpt2")), 60))
    loaded = load(proven("gpt2"), "cpu")
    both = find_triggers(loaded, corpus, Settings(per_key=4), Activations())
    one = find_triggers(loaded, corpus, Settings(per_key=4, negative=False), Activations())
    assert both.negative is not None
    assert one.negative is None
    same(replace(both, negative=None), one)  # the positive side does not know of the other
    layers = loaded.anatomy.layers
    relu = replace(loaded.anatomy, layers=[*layers[:1], replace(layers[1], signed=False), *layers[2:]])
    mixed = find_triggers(replace(loaded, anatomy=relu), corpus, Settings(per_key=4), Activations())
    rows = mixed.rows(1)
    assert not mixed.negative.count[rows].any()
    assert not mixed.negative.minimum[rows].any()
    np.testing.assert_array_equal(mixed.negative.count[: rows.start], both.negative.count[: rows.start])


@pytest.mark.parametrize("one_prefix", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_gates_against_a_direct_computation(proven, write_corpus, one_prefix, empty):
    """m = silu(g) u in Llama: the sign of g as the matrix gives it on the prefix alone, and of u = m / silu(g)."""
    loaded = load(proven("llama"), "cpu")
    corpus = read_corpus(write_corpus(random_sentences(4, 40), load_tokenizer(proven("llama")), 60))
    settings = Settings(per_key=40, one_prefix_per_sentence=one_prefix, include_empty_prefix=empty)
    found = find_triggers(loaded, corpus, settings, Activations(batch_tokens=50, block_sentences=11))
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


def test_memories_without_a_gate_have_no_sign_of_one(proven, write_corpus):
    corpus = read_corpus(write_corpus(random_sentences(3, 12), load_tokenizer(proven("gpt2")), 60))
    found = find_triggers(load(proven("gpt2"), "cpu"), corpus, Settings(per_key=4), Activations())
    for side in (found, found.negative):
        assert side.gate.dtype == np.int8
        assert not side.gate.any()
        assert not side.up.any()


@pytest.mark.parametrize("kind", ["llama", "gpt2-relu"])
def test_written_and_read_back(proven, write_corpus, tmp_path, kind):
    corpus = read_corpus(write_corpus(random_sentences(5, 12), load_tokenizer(proven(kind)), 60))
    loaded = load(proven(kind), "cpu")
    found = replace(find_triggers(loaded, corpus, Settings(per_key=3), Activations()), attributes={"model_hash": "one"})
    write_triggers(tmp_path / "triggers.h5", found)
    back = read_triggers(tmp_path / "triggers.h5", {"model_hash": "one"})
    same(back, found)
    assert (back.negative is None) == (kind == "gpt2-relu")
    assert back.prefixes == found.prefixes
    np.testing.assert_allclose(back.mean, found.total * FIXED_POINT / found.prefixes)
    with pytest.raises(UserError, match=r"triggers\.h5 belongs to another model"):
        read_triggers(tmp_path / "triggers.h5", {"model_hash": "two"})


def test_coefficients_that_overflow_are_refused(proven, write_corpus):
    loaded = load(proven("gpt2-relu"), "cpu")
    loaded.model.get_submodule(loaded.anatomy.layers[1].second_matrices[0].first_matrices[0]).weight.data[:] = 1e38
    corpus = read_corpus(write_corpus(random_sentences(1, 5), load_tokenizer(proven("gpt2-relu")), 60))
    with pytest.raises(UserError, match="not finite"):
        find_triggers(loaded, corpus, Settings(), Activations())


def test_coefficients_that_are_no_numbers_are_refused(proven, write_corpus):
    """In one sentence, and of a gated model: the gate at the highest coefficient is looked up, and there is none."""
    loaded = load(proven("llama"), "cpu")
    corpus = read_corpus(write_corpus(random_sentences(1, 5), load_tokenizer(proven("llama")), 60))

    def spoil(module, inputs, output):
        output[0] = float("nan")

    loaded.model.model.layers[-1].mlp.up_proj.register_forward_hook(spoil)
    with pytest.raises(UserError, match="not finite"):
        find_triggers(loaded, corpus, Settings(), Activations())


def test_a_coefficient_of_minus_infinity_is_refused(proven, write_corpus):
    """No maximum meets it, only the minimum does. It is in the last layer, so that nothing after it is NaN."""
    loaded = load(proven("llama"), "cpu")
    corpus = read_corpus(write_corpus(random_sentences(1, 5), load_tokenizer(proven("llama")), 60))
    mlp = loaded.model.model.layers[-1].mlp
    for module, value in ((mlp.act_fn, -3e38), (mlp.up_proj, 10.0)):
        module.register_forward_hook(lambda module, args, output, value=value: torch.full_like(output, value))
    with pytest.raises(UserError, match="not finite"):
        find_triggers(loaded, corpus, Settings(), Activations())


def test_the_histograms_edges_stay_what_they_are(proven):
    statistics = Statistics(2, "cpu")
    statistics.add_histogram(torch.tensor([[0.0, 0.5]]))
    assert HISTOGRAM_EDGES[1] == 0
