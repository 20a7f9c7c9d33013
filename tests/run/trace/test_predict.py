"""Predictions on many texts at once, with and without changes, beside one plain pass per text."""

import numpy as np
import pytest
import torch

import ffkv
from ffkv.base.errors import UserError
from ffkv.model.tap.hooks import forward

TEXTS = ["w5 w6 w7 w8", "w1", "w9 w8 w7 w6 w5 w4 w3"]
ROUNDING = {"rtol": 1e-4, "atol": 1e-6}  # float32: batches of other shapes add in another order


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "gemma2", "fairseq"])
def test_losses_and_predictions_are_those_of_the_model_on_each_text_alone(traced, loaded, kind):
    run = traced(kind)
    table = ffkv.predict(run, TEXTS, device="cpu")
    for number, text in enumerate(TEXTS):
        ids = ffkv.trace(run, text, device="cpu").tokens["token_id"].tolist()
        own, first = table[table["text"] == number], max(0, len(run.corpus("train").bos) - 1)
        log_p = forward(loaded(run).model, torch.tensor([ids])).logits[0, first:].double().log_softmax(-1)
        expected = -log_p[:-1].gather(1, torch.tensor(ids[first + 1 :])[:, None])[:, 0]
        np.testing.assert_allclose(own["loss"].iloc[:-1], expected, **ROUNDING)
        np.testing.assert_allclose(own["top_probability"], log_p.exp().amax(-1), **ROUNDING)
        words = [run.vocabulary[token] for token in ids]
        assert own["token"].tolist() == words[first:]
        assert own["next_token"].tolist() == [*words[first + 1 :], ""]
        assert own["top_token"].tolist() == [run.vocabulary[token] for token in log_p.argmax(-1).tolist()]
        assert np.isnan(own["loss"].iloc[-1])
    assert "changed_loss" not in table and "divergence" not in table


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral", "gemma2"])
def test_changes_in_batches_are_those_of_a_trace_everywhere(traced, kind):
    """A trace changes one prompt, and is compared with changed weights in test_changes.py."""
    run = traced(kind)
    first = ffkv.trace(run, TEXTS[0], device="cpu").contributions.groupby("layer").head(1)["name"].tolist()
    changes = {"off": first[0], "scale": {first[1]: -3}}
    table = ffkv.predict(run, TEXTS, device="cpu", **changes)
    last = table.groupby("text").tail(1).set_index("text")
    for number, text in enumerate(TEXTS):
        trace = ffkv.trace(run, text, device="cpu", everywhere=True, top=run.anatomy.vocabulary, **changes)
        assert last["divergence"][number] == pytest.approx(trace.divergence, rel=1e-3, abs=1e-7)
        best = trace.effect.loc[trace.effect["after"].idxmax()]
        assert last["changed_top_token"][number] == best["token"]
        assert last["changed_top_probability"][number] == pytest.approx(best["after"], rel=1e-4)
    assert (table["divergence"] > 1e-8).any()
    assert table["changed_loss"].isna().equals(table["loss"].isna())


def test_factors_of_1_change_no_number(traced):
    table = ffkv.predict(traced("gpt2"), TEXTS, scale={"L1.3": 1}, device="cpu")
    assert (table["divergence"] == 0).all()
    assert table["changed_loss"].equals(table["loss"])


def test_pieces_change_nothing_but_rounding(traced, monkeypatch):
    run = traced("gpt2")
    whole = ffkv.predict(run, TEXTS, off="L1.3", device="cpu")
    monkeypatch.setattr("ffkv.run.trace.coefficients.PIECE_TOKENS", 1)
    parts = ffkv.predict(run, TEXTS, off="L1.3", device="cpu")
    np.testing.assert_allclose(parts["changed_loss"], whole["changed_loss"], **ROUNDING)
    assert parts["token"].tolist() == whole["token"].tolist()
    assert parts["text"].tolist() == whole["text"].tolist()


def test_without_texts_there_are_no_rows(traced):
    table = ffkv.predict(traced("gpt2"), [], off="L1.3", device="cpu")
    assert len(table) == 0 and "changed_loss" in table


def test_traces_of_several_prompts_are_the_traces_of_each(traced):
    run = traced("gpt2")
    tables = ffkv.trace_all(run, TEXTS, off="L1.3", device="cpu")
    for number, text in enumerate(TEXTS):
        alone = ffkv.trace(run, text, off="L1.3", device="cpu")
        for name, table in tables.items():
            own = table[table["prompt"] == number].drop(columns="prompt").reset_index(drop=True)
            of = alone.changed if name.startswith("changed_") else alone
            assert own.equals(getattr(of, name.removeprefix("changed_"))), name
    assert {"contributions", "changed_contributions", "final", "effect"} <= tables.keys()


def test_what_is_impossible_is_refused(traced):
    for options, message in (({"scale": {"L0.1": "x"}}, "'L0.1:x' is not a memory"), ({"of": "L1.3"}, "setting 'of'")):
        with pytest.raises(UserError, match=message):
            ffkv.predict(traced("gpt2"), TEXTS, device="cpu", **options)
    with pytest.raises(UserError, match="There is no prompt"):
        ffkv.trace_all(traced("gpt2"), [], device="cpu")
