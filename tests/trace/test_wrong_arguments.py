"""A wrong argument of what a notebook calls becomes one sentence, whatever it is."""

from collections.abc import Callable
from typing import Any

import pytest

import ffkv
from ffkv.run.results.run import Run

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
    "memory to show": lambda run, wrong: ffkv.circuitsvis(wrong),
    "corpus": lambda run, wrong: ffkv.read_corpus(wrong),
    "triggers": lambda run, wrong: ffkv.read_triggers(wrong),
    "values": lambda run, wrong: ffkv.read_values(wrong),
    "model": lambda run, wrong: ffkv.load_model(wrong, "cpu"),
    "head": lambda run, wrong: ffkv.load_head(wrong, "cpu"),
    "records": lambda run, wrong: ffkv.read_records(3 if wrong == "x" else wrong),
}  # fmt: skip


def test_a_wrong_argument_is_one_sentence(subtests, traced):
    for place in PLACES:
        for wrong in WRONG:
            with subtests.test(place=place, wrong=wrong):
                with pytest.raises(ffkv.UserError) as error:
                    PLACES[place](traced("gpt2"), wrong)
                assert len(str(error.value).splitlines()) == 1
