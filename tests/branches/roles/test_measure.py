"""The step of `roles`: every number of models of several kinds from their own weights, in float64; planted memories; groups.

And trigger examples beside both ends of values, and the signs of gates, by hand.
"""

from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from support import CONFIGS, prove_into, random_sentences, word_tokenizer
from transformers import AutoModelForCausalLM

from ffkv.activations.trigger_file import read_triggers
from ffkv.base.steps import Part, Work
from ffkv.branches.given import Given
from ffkv.branches.roles.measure import (
    count_cases,
    measure_roles,
    name_outputs,
    share_in,
    shares_in_ends,
    sign_cases,
    tokens_seen,
)
from ffkv.branches.roles.tables import BY_LAYER, BY_MEMORY, SIGN_CASES, TYPES_BY_LAYER
from ffkv.branches.settings import Roles
from ffkv.branches.values.projections import read_projections, write_projections
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.head.head_file import load_head
from ffkv.model.values_file import read_values

DESCRIBED = (BY_MEMORY, BY_LAYER, TYPES_BY_LAYER, SIGN_CASES)


def read_and_written(kind: str, layer) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Returns what the memories of a block read, straight from the weights of the model's own modules: key and gate."""
    if kind == "gpt2":
        return layer.mlp.c_fc.weight.T, None
    if kind == "llama":
        return layer.mlp.up_proj.weight, layer.mlp.gate_proj.weight
    if kind == "phi3":
        gate, up = layer.mlp.gate_up_proj.weight.chunk(2)
        return up, gate
    if kind == "gpt-oss":  # gate and up take turns
        first = layer.mlp.experts.gate_up_proj.transpose(1, 2)
        return first[:, 1::2].flatten(0, 1), first[:, ::2].flatten(0, 1)
    experts = layer.mlp.experts if kind in ("mixtral", "qwen2-moe") else None
    gate, up = experts.gate_up_proj.chunk(2, 1)
    key, gates = [up.flatten(0, 1)], [gate.flatten(0, 1)]
    if kind == "qwen2-moe":
        key.insert(0, layer.mlp.shared_expert.up_proj.weight)
        gates.insert(0, layer.mlp.shared_expert.gate_proj.weight)
    return torch.cat(key), torch.cat(gates)


def cosine(a, b) -> np.ndarray:
    return torch.cosine_similarity(a.double(), b.double(), dim=1).detach().numpy()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "phi3", "mixtral", "qwen2-moe", "gpt-oss"])
def test_every_number_from_the_models_own_weights(proven, files_of, kind):
    files = files_of(proven(kind), random_sentences(0, 30))
    by_memory, by_layer, types, cases = found = measure_roles(Given(**files), Roles(tokens=4))
    for described, table in zip(DESCRIBED, found, strict=True):
        described.check(table)
    model, anatomy = load(files["model"], "cpu").model, read_anatomy(files["model"])
    triggers, corpus = read_triggers(files["triggers"]), read_corpus(files["train"])
    projections, head = read_projections(files["projections"]), load_head(files["model"], "cpu")
    for layer in anatomy.layers:
        table = by_memory[by_memory["layer"] == layer.index].reset_index(drop=True)
        assert table["memory"].tolist() == [*range(layer.memories)]
        key, gate = read_and_written(kind, model.get_submodule(layer.block))
        value = torch.from_numpy(read_values(files["values"], range(layer.index, layer.index + 1)).value)
        unknown = torch.full_like(value, torch.nan)
        # Cosines in float32 against float64: 1e-6 is some ten roundings.
        gate = unknown if gate is None else gate
        for name, pair in (("key_value", (key, value)), ("gate_value", (gate, value)), ("gate_up", (gate, key))):
            np.testing.assert_allclose(table[f"{name}_cosine"], cosine(*pair), atol=1e-6)
        logits, zero = (head.logits(vectors, layer.index) for vectors in (value, torch.zeros_like(value[:1])))
        logits = (logits - zero).double().numpy()
        for name in (
            "logit_variance",
            "logit_skewness",
            "logit_kurtosis",
        ):  # which `tests/branches/values` computes again
            np.testing.assert_array_equal(table[name], getattr(projections, name)[projections.layer == layer.index])
        counts = np.bincount(np.asarray(corpus.tokens)[_follows(corpus)], minlength=head.vocabulary)
        f = np.log(counts + 1.0)
        correlation = [np.corrcoef(row, f)[0, 1] for row in logits]
        np.testing.assert_allclose(table["unigram_correlation"], correlation, atol=1e-3)
        for memory in range(0, layer.memories, 7):
            row = anatomy.layer_offset[layer.index] + memory
            kept = range(triggers.count[row])
            for end in ("top", "bottom"):
                tokens = {*getattr(projections, f"{end}_token")[row, :4].tolist()}
                places = [(triggers.sentence[row, rank], triggers.position[row, rank]) for rank in kept]
                last = [corpus.ids(s)[p - 1] in tokens for s, p in places]
                following = [triggers.next_token[row, rank] in tokens for rank in kept]
                for name, hits in ((f"last_in_{end}", last), (f"next_in_{end}", following)):
                    expected = np.mean(hits) if hits else np.nan
                    np.testing.assert_allclose(table[name][memory], expected, rtol=1e-6, equal_nan=True)
        own = by_layer[(by_layer["layer"] == layer.index) & (by_layer["column"] == "key_value_cosine")].iloc[0]
        assert own["median"] == pytest.approx(np.median(cosine(key, value)), abs=1e-6)
        assert own["significant"] == (table["key_value_q"] <= 0.05).sum()
        assert types[types["layer"] == layer.index]["memories"].sum() == layer.memories
    assert len(cases) == (0 if kind == "gpt2" else 4 * len(anatomy.layers))
    assert ("up_negative" in by_memory) == (kind != "gpt2")
    if kind != "gpt2":
        _check_cases(by_memory, cases, triggers, corpus, anatomy)


def _follows(corpus) -> np.ndarray:
    """Places of tokens that follow a prefix of one token or more of their sentence."""
    return np.setdiff1d(np.arange(corpus.offsets[-1]), corpus.offsets[:-1])


def _check_cases(by_memory, cases, triggers, corpus, anatomy) -> None:
    """The counts are those of the signs of both factors, and the example is the strongest of its case."""
    signs = {"both_positive": (1, 1), "both_negative": (-1, -1), "gate_negative": (-1, 1), "up_negative": (1, -1)}
    for _, row in cases.iterrows():
        gate, up = signs[row["case"]]
        rows, side = triggers.rows(row["layer"]), triggers if gate * up > 0 else triggers.negative
        found = (side.gate[rows] == gate) & (side.up[rows] == up)
        own = by_memory[by_memory["layer"] == row["layer"]]
        assert own[row["case"]].tolist() == found.sum(1).tolist() and row["examples"] == found.sum()
        first = [ranks.argmax() if ranks.any() else -1 for ranks in found]
        assert own[f"first_{row['case']}"].tolist() == first
        assert row["memories"] == found.any(1).sum()
        if found.any():
            assert abs(row["coefficient"]) == np.abs(side.coefficient[rows][found]).max()
            place = anatomy.layer_offset[row["layer"]] + row["memory"], first[row["memory"]]
            assert row["text"] == corpus.prefix_text(side.sentence[place], side.position[place])
    alone = count_cases(sign_cases(replace(triggers, negative=None)))
    assert not alone["up_negative"].any() and (alone["first_gate_negative"] == -1).all()


def test_planted_memories_of_a_gated_model(tmp_path, files_of):
    """Memory 0 enriches, 1 depletes, 2 changes in proportion, 3 writes what the head ignores, 4 promotes one token alone."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 64}
    config = type(CONFIGS["llama"])(**{**CONFIGS["llama"].to_dict(), **sizes})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        embedding = torch.eye(60, 32)
        embedding[:, 30:] = 0  # the head reads 30 directions
        model.lm_head.weight.copy_(embedding)
        mlp = model.model.layers[1].mlp
        mlp.gate_proj.weight[0] = mlp.up_proj.weight[0]
        mlp.down_proj.weight[:, 0] = 2 * mlp.up_proj.weight[0]
        mlp.down_proj.weight[:, 1] = -mlp.up_proj.weight[1]
        mlp.down_proj.weight[:, 2] = mlp.gate_proj.weight[2]
        mlp.down_proj.weight[:, 3] = 0
        mlp.down_proj.weight[30, 3] = 5
        mlp.down_proj.weight[:, 4] = -torch.eye(32)[7]
    model.save_pretrained(tmp_path / "checkpoint")
    word_tokenizer(["<bos>", *[f"w{number}" for number in range(59)]]).save_pretrained(tmp_path / "checkpoint")
    files = files_of(prove_into(tmp_path / "stage", tmp_path / "checkpoint"), random_sentences(0, 30))
    by_memory, by_layer, _, _ = measure_roles(Given(**files))
    table = by_memory[by_memory["layer"] == 1].reset_index(drop=True)
    assert table["role"][:3].tolist() == ["enrichment", "conditional depletion", "proportional change"]
    assert table["key_value_cosine"][:2].tolist() == pytest.approx([1, -1], abs=1e-6)
    assert (table["key_value_q"][:2] < 0.05).all() and table["gate_value_q"][2] < 0.05
    assert (table["key_value_q"][5:] > 0.05).all()
    assert table["ignored_share"][3] == pytest.approx(1) and table["ignored_share"][4] == pytest.approx(0, abs=1e-6)
    assert np.isnan(table["unigram_correlation"][3]) and table["output_role"][3] == ""
    # One token of 60 is at -1, the others at 0: kurtosis (1 - 3/60 + 3/60²) · 60 / (1 - 1/60) - about 58; the skewness is negative.
    assert table["output_role"][4] == "suppression" and table["logit_skewness"][4] < -7
    ignored = by_layer[(by_layer["layer"] == 1) & (by_layer["column"] == "ignored_share")].iloc[0]
    assert ignored["null_mean"] == 2 / 32


def test_groups_of_layers_give_the_same_numbers(proven, files_of):
    files = files_of(proven("llama"), random_sentences(0, 30))
    whole = measure_roles(Given(**files), seed=3)
    stored = read_projections(files["projections"])
    parts = []
    for group in (0, 1):
        rows = stored.layer == group
        arrays = {each.name: getattr(stored, each.name)[rows] for each in fields(stored) if each.name != "attributes"}
        write_projections(files["projections"].parent / f"part{group}.h5", replace(stored, **arrays))
        own = files | {"projections": files["projections"].parent / f"part{group}.h5"}
        parts.append(measure_roles(Given(Work(part=Part(group, 2)), **own), seed=3))
    for described, one, both in zip(DESCRIBED, whole, zip(*parts, strict=True), strict=True):
        pd.testing.assert_frame_equal(one, pd.concat(both, ignore_index=True))
        assert one.attrs["model_hash"] and one.attrs["corpus_hash"], described.path
    third = measure_roles(Given(**files), seed=4)
    assert not third[0]["key_value_p"].equals(whole[0]["key_value_p"])  # other permutations
    pd.testing.assert_series_equal(third[0]["key_value_cosine"], whole[0]["key_value_cosine"])


def test_shares_of_tokens_at_both_ends_of_values():
    """Sentences 5 6 7 8 and 9 5. The key of memory 0 fires after 5 6 and after 9, memory 1 after 5, memory 2 never."""
    examples = SimpleNamespace(
        sentence=np.array([[0, 1], [0, -1], [-1, -1]]),
        position=np.array([[2, 1], [1, 0], [0, 0]]),
        next_token=np.array([[7, 5], [6, -1], [-1, -1]]),
    )
    seen = tokens_seen(examples, np.array([5, 6, 7, 8, 9, 5]), np.array([0, 4, 6]))
    assert seen["last"].tolist() == [[6, 9], [5, -1], [-1, -1]]
    found = shares_in_ends(seen, np.array([[7, 9], [6, 7], [1, 2]]), np.array([[6, 0], [5, 1], [3, 4]]))
    expected = {
        "next_in_top": [0.5, 1, np.nan],
        "next_in_bottom": [0, 0, np.nan],
        "last_in_top": [0.5, 0, np.nan],
        "last_in_bottom": [0.5, 1, np.nan],
    }
    assert {*found} == {*expected}
    for name, shares in expected.items():
        np.testing.assert_array_equal(found[name], np.array(shares, np.float32))


def test_an_empty_prefix_has_no_last_token():
    examples = SimpleNamespace(sentence=np.array([[0]]), position=np.array([[0]]), next_token=np.array([[5]]))
    assert tokens_seen(examples, np.array([5, 6]), np.array([0, 2]))["last"].tolist() == [[-1]]
    assert np.isnan(share_in(np.array([[-1]]), np.array([[-1, 2]]))).all()  # what is not there is in nothing


def test_outputs_are_named_by_the_sharper_end():
    skewness, kurtosis = np.array([5, -5, 5, 0, np.nan]), np.array([30, 30, 10, 30, np.nan])
    assert name_outputs(skewness, kurtosis).tolist() == ["prediction", "suppression", "other", "other", ""]
