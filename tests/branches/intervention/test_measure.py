"""Interventions as a whole: against hooks, on planted models whose causes are known, and on random weights."""

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import kstest
from support import WORDS, random_checkpoint, random_sentences, word_tokenizer
from transformers import AutoModelForCausalLM, GPT2Config

import ffkv
from ffkv.activations.trigger_file import read_triggers
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.steps import Part, Work
from ffkv.branches.given import Given
from ffkv.branches.intervention import summarize, units
from ffkv.branches.intervention.measure import measure_interventions
from ffkv.branches.intervention.summarize import summarize_interventions
from ffkv.branches.settings import Intervention
from ffkv.branches.values.projections import read_projections, write_projections
from ffkv.corpus.corpus_file import read_corpus
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.vocabulary import read_vocabulary
from ffkv.model.tap.change import scaled
from ffkv.model.tap.hooks import forward
from tests.branches.intervention.conftest import write_inputs

SMALL = {"memories": 3, "examples": 2, "controls": 5, "directions": 2, "similar": 2, "tokens": 3}
FEW = Intervention(**SMALL, top_k=[0, 2], top_k_prefixes=4)


@pytest.fixture(scope="module")
def measured(inputs):
    made = {}

    def get(kind: str):
        if kind not in made:
            made[kind] = measure_interventions(Given(Work("cpu", batch_tokens=256), **inputs(kind)), FEW)
        return made[kind]

    return get


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "gpt-neox", "opt-post-norm", "fairseq"])
def test_total_effects_are_those_of_a_model_whose_coefficient_a_hook_changes(inputs, measured, kind):
    """Without a norm after the layer, the scaled contribution is what the second matrix gives for a scaled coefficient."""
    files, found = inputs(kind), measured(kind).by_prefix
    loaded, corpus = load(files["model"], "cpu"), read_corpus(files["train"])
    top = read_projections(files["projections"])
    rows = found.query("reach == 'total' and change == 'scale'")
    assert len(rows) >= 2 * 3 * 2 * 4 and {*rows["source"]} == {"own", "placebo"}
    for row in rows.itertuples():
        ids = torch.from_numpy(corpus.prefix_ids(row.sentence, row.position))[None]
        before = forward(loaded.model, ids).logits[0, -1].double().log_softmax(-1)
        with scaled(loaded.model, loaded.anatomy.layers, {(row.layer, row.memory): row.scale}, ids.shape[1] - 1):
            after = forward(loaded.model, ids).logits[0, -1].double().log_softmax(-1)
        place = np.flatnonzero((top.layer == row.layer) & (top.memory == row.memory))[0]
        chosen = torch.from_numpy(top.top_token[place, :3].astype(np.int64))
        # Changes are differences of logits in float32, whose size is some 10.
        assert row.top == pytest.approx((after - before)[chosen].mean().item(), rel=1e-3, abs=2e-5)
        assert row.divergence == pytest.approx((before.exp() * (before - after)).sum().item(), rel=1e-3, abs=2e-5)
        assert row.changed == bool(before.argmax() != after.argmax())


@pytest.mark.parametrize("kind", ["gpt2", "gemma2", "mixtral", "fairseq"])
def test_the_tables_hold_together(inputs, measured, kind):
    files, found = inputs(kind), measured(kind)
    triggers, layers = read_triggers(files["triggers"]), load(files["model"], "cpu").anatomy.layers
    own = found.by_prefix.query("source == 'own'")
    assert {*own["side"]} == ({"positive", "negative"} if triggers.negative else {"positive"})
    assert (np.sign(own["coefficient"]) == np.where(own["side"] == "positive", 1, -1)).all()
    removed = own.query("scale == 0").groupby(["layer", "memory", "side", "reach"])
    of_memory = found.by_memory.set_index(["layer", "memory", "side", "reach"])
    np.testing.assert_allclose(removed["top"].mean(), of_memory["own"].loc[removed["top"].mean().index], rtol=1e-9)
    assert (removed.size() == of_memory["prefixes"].loc[removed.size().index]).all()
    np.testing.assert_allclose(found.by_memory["specific"], found.by_memory["own"] - found.by_memory["random_memories"])
    assert found.by_memory["p_value"].between(1 / 6, 1).all()
    assert (found.by_memory["q_value"] >= found.by_memory["p_value"] - 1e-12).all()
    last = of_memory.xs(layers[-1].index, level="layer")
    if kind != "gemma2":  # after the last layer no block runs
        np.testing.assert_array_equal(last.xs("direct", level="reach")["own"], last.xs("total", level="reach")["own"])
    placebo = found.by_prefix.query("source == 'placebo'")
    assert placebo["coefficient"].abs().between(0, 0.05 * own["coefficient"].abs().max(), "right").all()
    whole = found.kept.query("choice == 'all'")
    assert whole["unchanged"].all() and (whole["divergence"] < 1e-5).all()
    assert len(found.kept) == 4 * len(layers) * 5


def test_layers_in_groups_give_the_same_numbers(inputs, measured):
    whole, files = measured("gpt2"), {**inputs("gpt2")}
    projections = read_projections(files["projections"])
    for group in range(3):
        rows = projections.layer == group
        names = [field.name for field in fields(projections) if field.name != "attributes"]
        own = replace(projections, **{name: getattr(projections, name)[rows] for name in names})
        files["projections"] = files["model"].parent / f"{group}.h5"
        write_projections(files["projections"], own)
        part = measure_interventions(Given(Work("cpu", batch_tokens=256, part=Part(group, 3)), **files), FEW)
        for table, expected in zip(part, whole, strict=True):
            expected = expected[expected["layer"] == group].reset_index(drop=True)
            pd.testing.assert_frame_equal(table, expected, check_exact=True)
    with pytest.raises(
        UserError, match=r"2.h5 has layers \[2\], not layers \[0\]: give the file of the same layer group"
    ):
        measure_interventions(Given(Work("cpu", batch_tokens=256, part=Part(0, 3)), **files), FEW)


def test_a_model_of_low_precision_is_measured_in_float32(inputs):
    """A contribution is small beside the residual, so that bfloat16 would round it away."""
    found = measure_interventions(Given(Work("cpu", batch_tokens=256), **inputs("gpt2", "bfloat16")), FEW)
    whole = found.kept.query("choice == 'all'")
    assert (whole["divergence"] < 1e-5).all()
    half = found.by_prefix.query("source == 'own' and change == 'scale' and reach == 'direct'")
    wide = half.pivot_table(index=["layer", "memory", "side", "sentence", "position"], columns="scale", values="top")
    # Scaling by 0.5 takes away half of what scaling by 0 takes away, but for the norm of the head; rounding would not.
    assert np.corrcoef(wide[0.5], wide[0.0])[0, 1] > 0.9


def planted_checkpoint(folder):
    """A GPT-2 with ReLU whose causes are known, like the detector of tests/support.py.

    Layer 0: a -> b, which layer 1 undoes; d -> all words alike, which the final norm takes away; e -> f, which alone causes f.
    Layer 1: b -> minus b.
    """
    config = GPT2Config(
        n_layer=2, n_embd=17, n_head=1, n_inner=4, vocab_size=17, n_positions=16, activation_function="relu",
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        parameter.data = torch.full_like(parameter, "ln_" in name and name.endswith("weight"))
    model.transformer.wte.weight.data = torch.eye(17)
    first, second = (block.mlp for block in model.transformer.h)
    for memory, (detects, writes) in enumerate([("a", ["b"]), ("d", WORDS), ("e", ["f"])]):
        first.c_fc.weight.data[WORDS.index(detects), memory] = 1
        for word in writes:
            first.c_proj.weight.data[memory, WORDS.index(word)] = 1
    first.c_fc.bias.data[3] = second.c_fc.bias.data[1:] = -100
    e_a, e_b = torch.eye(17)[WORDS.index("a")], torch.eye(17)[WORDS.index("b")]
    m = torch.nn.functional.layer_norm(e_a, (17,))[WORDS.index("a")]
    x = torch.nn.functional.layer_norm(e_a + m * e_b, (17,))
    second.c_fc.weight.data[WORDS.index("b"), 0] = 1
    second.c_proj.weight.data[0, WORDS.index("b")] = -m / x[WORDS.index("b")]
    model.save_pretrained(folder)
    word_tokenizer(WORDS).save_pretrained(folder)
    return folder


def test_causes_that_were_planted_are_found(tmp_path):
    sentences = [f"{first} {last} p" for last in "ade" for first in "ghijklmno"]
    files = write_inputs(tmp_path / "run", planted_checkpoint(tmp_path / "checkpoint"), sentences)
    settings = Intervention(memories=4, examples=4, tokens=1, controls=9, top_k=[0, 1], top_k_prefixes=5)
    found = measure_interventions(Given(Work("cpu", batch_tokens=256), **files), settings).by_memory
    found = found.set_index(["layer", "memory", "reach"])
    undone, alike, cause = (found.loc[0, memory] for memory in range(3))
    assert cause.loc["total", "own"] < -1
    assert cause.loc["direct", "own"] == pytest.approx(cause.loc["total", "own"], abs=1e-4)
    assert cause.loc["total", "changed"] == 1 and np.isnan(cause.loc["total", "placebo"])  # with ReLU it is 0 elsewhere
    assert cause.loc["total", "p_value"] == 1 / 3  # of two other living values
    assert undone.loc["direct", "own"] < -0.5 and abs(undone.loc["total", "own"]) < 1e-4
    assert undone.loc["total", "changed"] == 0
    assert np.abs(alike["own"]).max() < 1e-4 and (alike["coefficient"] > 3).all()


@pytest.mark.slow
def test_p_values_are_uniform_where_a_memory_is_like_its_controls(tmp_path, monkeypatch):
    """On random weights, a memory has no more to do with the tokens of another memory's value than its controls have."""
    measure = units.measure_units

    def of_others(model, units, tokens, others, *rest):
        return measure(model, units, others, tokens, *rest)

    monkeypatch.setattr(units, "measure_units", of_others)
    files = write_inputs(tmp_path / "run", random_checkpoint(tmp_path / "checkpoint", "gpt2"), random_sentences(0, 150))
    many = SMALL | {"memories": 30, "controls": 19, "directions": 0, "similar": 0}
    settings = Intervention(**many, top_k=[0], top_k_prefixes=1)
    found = measure_interventions(Given(Work("cpu", batch_tokens=1024), **files), settings).by_memory
    for reach in ("direct", "total"):
        p = found[found["reach"] == reach]["p_value"]
        assert len(p) > 150
        # Units of a layer share prefixes and controls, so that the test is wider than for independent ones.
        assert kstest(p - 1 / 40, "uniform").statistic < 0.15
        assert (p <= 0.05).mean() < 0.12


def test_the_step_that_summarizes_makes_each_table_of_what_was_measured(inputs, measured, tmp_path):
    files, found = inputs("gpt2"), measured("gpt2")
    paths = [tmp_path / f"{name}.parquet" for name in ("by_prefix", "by_memory", "kept")]
    for table, path in zip(found, paths, strict=True):
        tables.write(table, path)
    files = files | {path.stem: [path] for path in paths} | {"projections": [files["projections"]]}
    by_layer, doses, kept, listed = summarize_interventions(Given(**files)).values()
    by_prefix, by_memory, of_kept = map(tables.read, paths)
    pd.testing.assert_frame_equal(by_layer, summarize.summarize_sources(by_memory))
    pd.testing.assert_frame_equal(doses, summarize.summarize_doses(by_prefix))
    pd.testing.assert_frame_equal(kept, summarize.summarize_kept(of_kept))
    top, words = read_projections(inputs("gpt2")["projections"]), read_vocabulary(files["model"])
    first = dict(zip(zip(top.layer, top.memory), (words[token] for token in top.top_token[:, 0])))
    assert listed["token"].tolist() == [first[place] for place in zip(listed["layer"], listed["memory"])]
    assert len(listed) == len(by_memory)
    with pytest.raises(UserError, match=r"--kept: layers .* are there more than once"):
        summarize_interventions(Given(**files | {"kept": [paths[2]] * 2}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": [0.5, 2.0]}, "intervention.scales is .* must contain 0"),
        ({"scales": [0.0, float("nan")]}, r"scales.1 is nan: must be at most 100"),
        ({"scales": [0.0, 1.0, 1.0]}, "must be different numbers"),
        ({"top_k": [1, 1]}, "intervention.top_k is .* must be different"),
    ],
)
def test_contradictions(changes, message):
    with pytest.raises(UserError, match=message):
        ffkv.base.settings.section(Intervention, **changes)
