"""Prompts, positions and tokens that are asked for, and what is refused: a wrong argument becomes one sentence, whatever it is."""

import gc
import inspect
import json
import re
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import random_checkpoint, word_tokenizer

import ffkv
import ffkv_annotation
import ffkv_formats
from ffkv.base.errors import UserError
from ffkv.run.results.run import Run
from ffkv.run.trace.prompt import read_prompt
from ffkv.run.trace.settings import TraceOptions

PROMPT = "w5 w6 w7"


def test_a_prompt_has_the_ids_that_the_corpus_gives_the_same_sentence(traced):
    run = traced("gpt2")
    corpus = run.corpus("train")
    trace = ffkv.trace(run, corpus.texts[3], device="cpu")
    assert trace.tokens["token_id"].tolist() == [*corpus.bos, *corpus.ids(3)]
    assert trace.tokens["beginning"].tolist() == [True] + [False] * len(corpus.ids(3))
    assert "".join(trace.tokens["text"]) == corpus.texts[3]
    assert trace.tokens["token"].tolist() == [run.vocabulary[number] for number in trace.tokens["token_id"]]


def test_a_prompt_that_begins_with_the_beginning_does_not_get_it_twice(traced):
    run = traced("gpt2")
    assert ffkv.trace(run, f"<bos> {PROMPT}", device="cpu").tokens["token_id"].tolist() == [0, 6, 7, 8]


def test_a_lone_surrogate_is_replaced(traced):
    trace = ffkv.trace(traced("gpt2"), "w1 \ud800", device="cpu")
    assert trace.text == "w1 \ufffd" and len(trace.tokens) == 3


def test_the_position_is_the_last_one_or_counts_from_either_end(traced):
    run = traced("gpt2")
    positions = [ffkv.trace(run, PROMPT, position=position, device="cpu").position for position in (None, 1, -1, -4)]
    assert positions == [3, 1, 3, 0]


@pytest.mark.parametrize("position", [4, -5])
def test_a_position_out_of_range_is_refused(traced, position):
    with pytest.raises(UserError, match=f"no position {position}. The model reads 4 tokens: positions 0 to 3"):
        ffkv.trace(traced("gpt2"), PROMPT, position=position, device="cpu")


def test_later_tokens_change_nothing_at_an_earlier_position(traced):
    run = traced("llama")
    short, long = ffkv.trace(run, PROMPT, device="cpu"), ffkv.trace(run, f"{PROMPT} w8 w9", position=3, device="cpu")
    np.testing.assert_allclose(short.final["probability"], long.final["probability"], rtol=1e-5)


def test_an_empty_prompt_is_read_behind_the_beginning_and_the_trace_says_so(traced):
    trace = ffkv.trace(traced("gpt2"), "", device="cpu")
    assert trace.tokens["token"].tolist() == ["<bos>"] and trace.position == 0
    assert trace.note == "The prompt is empty: the model reads <bos> only, which precedes every sentence."


def test_an_empty_prompt_without_a_beginning_is_refused(traced):
    run = traced("gpt2", "never")
    assert not ffkv.trace(run, PROMPT, device="cpu").tokens["beginning"].any()
    with pytest.raises(UserError, match="The prompt is empty, and run puts no token in front of a text"):
        ffkv.trace(run, "", device="cpu")


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(traced):
    run = traced("gpt2")
    assert len(ffkv.trace(run, " ".join(["w1"] * 31), device="cpu").tokens) == run.anatomy.context == 32
    with pytest.raises(UserError, match=r"The prompt has 33 tokens, 1 in front of it included; .* reads at most 32\."):
        ffkv.trace(run, " ".join(["w1"] * 32), device="cpu")


def test_a_token_is_chosen_by_its_text_or_its_id(traced):
    run = traced("gpt2")
    by_text, by_id = (
        ffkv.trace(run, PROMPT, token="w20", device="cpu"),
        ffkv.trace(run, PROMPT, token_id=21, device="cpu"),
    )
    assert (by_text.token_id, by_text.token) == (by_id.token_id, by_id.token) == (21, "w20")
    assert by_text.contributions.equals(by_id.contributions)
    assert 21 in by_text.final["token_id"].tolist()


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (" w20", "' w20' is not a token of .*Similar tokens: 'w20'"),
        ("w2000", "longer words are several.*Similar tokens: 'w20', 'w2'"),
        ("", r"'' is not a token of [^ ]+\. Blanks count: .* are several\.$"),
    ],
)
def test_a_token_that_does_not_exist_is_refused(traced, token, message):
    with pytest.raises(UserError, match=message):
        ffkv.trace(traced("gpt2"), PROMPT, token=token, device="cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_id": 60}, "There is no token 60. The model has tokens 0 to 59"),
        ({"token_id": -1}, "There is no token -1"),
        ({"token": 5}, "^token is 5: must be text$"),
        ({"token": "w1", "token_id": 5}, "^token and token_id name one token. Give one of them.$"),
        ({"top": 0}, "^top is 0: must be at least 1$"),
        ({"memories": -1}, "^memories is -1: must be at least 0$"),
        ({"position": "last"}, "^position is 'last': must be a whole number$"),
        ({"everywhere": 1}, "^everywhere is 1: must be true or false$"),
        ({"of": ["L1.2"]}, "^Unknown setting 'of'. Did you mean 'off'?"),
        ({"off": [3]}, "^off.0 is 3: must be text$"),
        ({"scale": {"L1.2": "twice"}}, "'L1.2:twice' is not a memory with a factor"),
        ({"scale": {"L1.2": float("nan")}}, "The factor of L1.2 is nan. Write a finite number."),
    ],
)
def test_an_impossible_option_is_refused_in_one_sentence(traced, options, message):
    with pytest.raises(UserError, match=message):
        ffkv.trace(traced("gpt2"), PROMPT, device="cpu", **options)


def test_memories_are_named_in_any_form_that_python_has(traced):
    run = traced("gpt2")
    listed = ffkv.trace(run, PROMPT, device="cpu").contributions["name"][:2]  # a column of a table
    forms = [listed, listed.tolist(), tuple(listed), ", ".join(listed), " ".join(listed)]
    changes = [ffkv.trace(run, PROMPT, off=form, device="cpu").changes for form in forms]
    assert all(each == dict.fromkeys(listed, 0.0) for each in changes)
    factors = dict(zip(listed, [np.float32(0.1), 2]))
    texts = [f"{name}:{float(factor)}" for name, factor in factors.items()]
    changes = [ffkv.trace(run, PROMPT, scale=form, device="cpu").changes for form in (factors, texts, ",".join(texts))]
    assert all(each == {name: float(factor) for name, factor in factors.items()} for each in changes)


def test_numbers_of_a_table_are_positions_and_tokens(traced):
    run = traced("gpt2")
    row = ffkv.trace(run, PROMPT, device="cpu").tokens.iloc[1]
    trace = ffkv.trace(run, PROMPT, position=row["position"], token_id=np.int64(21), device="cpu")
    assert (trace.position, trace.token_id) == (1, 21)


def test_the_options_stand_in_the_signature_and_in_the_docstring():
    parameters = inspect.signature(ffkv.trace).parameters
    assert [*parameters] == ["run", "text", "device", *TraceOptions.model_fields]
    assert parameters["memories"].default == TraceOptions().memories
    for name in TraceOptions.model_fields:
        assert re.search(rf"^    {name}: [A-Z]", ffkv.trace.__doc__, re.MULTILINE)
    assert "sets: list[int] = [1, 2, 5," in str(inspect.signature(ffkv.behaviour))  # as a notebook shows it


def test_no_memory_needs_to_be_listed(traced):
    trace = ffkv.trace(traced("gpt2"), PROMPT, memories=0, device="cpu")
    assert trace.contributions.empty and (trace.layers["listed_share"] == 0).all()
    np.testing.assert_allclose(trace.remainders.groupby("layer")["share"].sum(), 1, atol=1e-5)


def test_the_model_is_loaded_once_per_run(traced, monkeypatch):
    run = traced("gpt2")
    kept = run.model("cpu")
    monkeypatch.setattr("ffkv.model.checkpoint.load.load_for", None)  # would be called
    assert run.model("cpu") is kept
    assert ffkv.trace(run, PROMPT, device="cpu").note  # uses the same


def test_one_thread_at_a_time_loads_a_model(traced, monkeypatch):
    """Of two runs, too: transformers changes classes of its own meanwhile."""
    made, loading, most = traced("gpt2").folder, [], []

    def slow(folder, work, gradients):
        loading.append(folder)
        time.sleep(0.05)
        most.append(len(loading))
        loading.pop()
        return SimpleNamespace()

    monkeypatch.setattr("ffkv.model.checkpoint.load.load_for", slow)
    monkeypatch.setattr("ffkv.run.results.run_model.RunModel", lambda **about: about)
    runs = [ffkv.open(made) for _ in range(3)]
    threads = [threading.Thread(target=run.model, args=("cpu",)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


@pytest.fixture
def moved(traced, tmp_path):
    """A copy of the run whose model is read from another checkpoint."""

    def move(checkpoint) -> Run:
        folder = shutil.copytree(traced("gpt2").folder, tmp_path / "run")
        anatomy = folder / "model/anatomy.json"
        anatomy.write_text(json.dumps(json.loads(anatomy.read_text()) | {"checkpoint": str(checkpoint)}))
        return ffkv.open(folder)

    return move


def test_the_model_goes_when_the_run_does(traced):
    run = ffkv.open(traced("gpt2").folder)
    ffkv.trace(run, PROMPT, device="cpu")
    kept = weakref.ref(run.model("cpu").model)
    del run
    gc.collect()
    assert kept() is None


def test_a_checkpoint_that_is_gone_is_refused(moved, tmp_path):
    with pytest.raises(UserError, match="gone"):
        ffkv.trace(moved(tmp_path / "gone"), PROMPT, device="cpu")


def test_a_checkpoint_with_other_weights_is_refused(moved, tmp_path):
    with pytest.raises(UserError, match=r"The weights of .*other have changed"):
        ffkv.trace(moved(random_checkpoint(tmp_path / "other", "gpt2", seed=1)), PROMPT, device="cpu")


def test_a_token_that_the_model_does_not_know_is_refused(traced):
    run = traced("gpt2")
    tokenizer = word_tokenizer(["<bos>", *[f"w{number}" for number in range(70)]])
    assert len(read_prompt(run, tokenizer, "w58").ids) == 2
    with pytest.raises(UserError, match=r"a token with the id 66, and .* knows 60 tokens only"):
        read_prompt(run, tokenizer, "w1 w65")


def test_a_trace_becomes_json_and_html(traced):
    run = traced("gpt2")
    trace = ffkv.trace(run, PROMPT, off=["L1.2"], device="cpu")
    stored = json.loads(trace.to_json())
    assert stored == json.loads(json.dumps(trace.to_dict()))
    assert stored["layers"] == trace.layers.to_dict("records")
    assert (stored["changes"], stored["position"], stored["token"]) == ({"L1.2": 0.0}, 3, trace.token)
    html = trace._repr_html_()
    assert "L1.2 × 0 at the chosen token" in html and trace.strongest()["name"][0] in html
    assert "<script" not in html
    assert (
        repr(trace) == f"<Trace of 'w5 w6 w7' in run: position 3, before the changes, deviation {trace.deviation:.0e}>"
    )


def test_numbers_that_are_not_finite_are_null_in_json(traced):
    trace = ffkv.trace(traced("gpt2"), PROMPT, device="cpu")
    trace.layers.loc[0, "logit"] = float("nan")
    trace.layers.loc[1, "logit"] = float("-inf")
    assert [layer["logit"] is None for layer in trace.to_dict()["layers"]] == [True, True, False]
    json.loads(trace.to_json())


WRONG = [None, "x", 1.5, -1, [], {}, object(), float("nan"), 10**30, ["a", 1], "a\0b"]
TEXTS = ["w1 w2"]
# What is called with a run, and with each of the wrong arguments in its place.
PLACES: dict[str, Callable[[Run, Any], Any]] = {
    "folder of a run": lambda run, wrong: ffkv.open(wrong),
    "table": lambda run, wrong: run.table(wrong),
    "split": lambda run, wrong: run.corpus(wrong),
    "device": lambda run, wrong: run.model(wrong),
    "name": lambda run, wrong: run.memory(wrong),
    "layer": lambda run, wrong: run.memory(wrong, 3),
    "memory": lambda run, wrong: run.memory(1, "x" if wrong is None else wrong),
    "tokens": lambda run, wrong: run.memory("L1.3").promotes(wrong),
    "similar by": lambda run, wrong: run.memory("L1.3").similar(wrong),
    "similar memories": lambda run, wrong: run.memory("L1.3").similar("value", 0 if wrong == 10**30 else wrong),
    "details": lambda run, wrong: run.files.details(wrong),
    "run": lambda run, wrong: ffkv.trace(wrong, "w1"),
    "run of texts": lambda run, wrong: ffkv.predict(wrong, TEXTS),
    "run of a report": lambda run, wrong: ffkv.write_report(wrong, "page.html"),
    "prompt": lambda run, wrong: ffkv.trace(run, 3 if isinstance(wrong, str) else wrong, device="cpu"),
    "position": lambda run, wrong: ffkv.trace(run, "w1", position=99 if wrong in (None, -1) else wrong, device="cpu"),
    "token": lambda run, wrong: ffkv.trace(run, "w1", token=3 if wrong is None else wrong, device="cpu"),
    "texts": lambda run, wrong: ffkv.predict(run, [wrong] if wrong in ([], {}, ["a", 1]) else wrong, device="cpu"),
    "text": lambda run, wrong: ffkv.predict(run, [3.5 if isinstance(wrong, str) else wrong], device="cpu"),
    "off": lambda run, wrong: ffkv.predict(run, TEXTS, off=[wrong], device="cpu"),
    "factor": lambda run, wrong: ffkv.predict(
        run, TEXTS, scale={"L1.3": "x" if wrong in (1.5, -1, 10**30) else wrong}, device="cpu"
    ),
    "memories": lambda run, wrong: ffkv.coefficients(run, TEXTS, "x" if wrong is None else wrong, "cpu"),
    "parquet": lambda run, wrong: ffkv.write_coefficients(3 if isinstance(wrong, str) and "\0" not in wrong else wrong, run, TEXTS),
    "memory to show": lambda run, wrong: ffkv_formats.circuitsvis(wrong),
    "corpus": lambda run, wrong: ffkv.read_corpus(wrong),
    "triggers": lambda run, wrong: ffkv.read_triggers(wrong),
    "values": lambda run, wrong: ffkv.read_values(wrong),
    "model": lambda run, wrong: ffkv.load_model(wrong, "cpu"),
    "head": lambda run, wrong: ffkv.load_head(wrong, "cpu"),
    "records": lambda run, wrong: ffkv_annotation.read_records(3 if wrong == "x" else wrong),
}  # fmt: skip


def test_a_wrong_argument_is_one_sentence(subtests, traced):
    for place in PLACES:
        for wrong in WRONG:
            with subtests.test(place=place, wrong=wrong):
                with pytest.raises(ffkv.UserError) as error:
                    PLACES[place](traced("gpt2"), wrong)
                assert len(str(error.value).splitlines()) == 1
