"""What a lent card is asked: each part is written when it is done, and it works on a card that is none, at tiny sizes."""

import contextlib
import importlib
import json
import sys
import time
from functools import partial

import pytest
import torch
import yaml
from support import ROOT

from benchmarks import card, inputs
from benchmarks.cases import smollm2
from benchmarks.inputs import Llama
from benchmarks.measure import Contender, Measurement
from benchmarks.pretended_card import DEVICE, PretendedCard, as_device
from ffkv.workflow.runs import resolve

TINY = Llama(2, 32, 1024, 4, 2, 800)
EMPTY = f"# Speed\n\n{card.BEGIN}\n{card.END}\n"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Results and page in a folder of their own, both empty."""
    for name, text in (("RESULTS", "{}"), ("PAGE", EMPTY)):
        monkeypatch.setattr(card, name, tmp_path / name)
        (tmp_path / name).write_text(text)
    return tmp_path


def on_pretended_card(contender: Contender, scratch) -> Measurement:
    """Does the work of a contender in this process, on the pretended card."""
    module, function = contender.function.split(":")
    with as_device(), PretendedCard(), torch.no_grad():
        work = getattr(importlib.import_module(module), function)(scratch, **contender.arguments)
        start = time.perf_counter()
        extra = work() or {}
        seconds = time.perf_counter() - start
    return Measurement(seconds, seconds, seconds, 0, extra)


@pytest.mark.slow
def test_speed_is_measured_on_a_pretended_card(written, monkeypatch):
    for module in (inputs, smollm2):
        monkeypatch.setattr(module, "configure", lambda threads: None)
        monkeypatch.setattr(module, "torch_with", lambda threads: torch)
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)  # in which the pretended card sees no single operations
    monkeypatch.setattr(card, "run_contender", on_pretended_card)
    part = card.Part(0, partial(card.rates, TINY, 110, "float32", device=DEVICE, tokens=256))
    told = []
    card.take("NVIDIA H200", written, 1, told.append, {"SmolLM2, float32": part})
    assert [line[:20] for line in told] == ["SmolLM2, float32: {'"]
    found = json.loads(card.RESULTS.read_text())["SmolLM2, float32"]
    assert found.pop("card") == "NVIDIA H200" and all(number > 0 for number in found.values())
    weights = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 1024)  # of attention and of the memories, in two layers
    assert found["share"] == pytest.approx(2 * weights * found["forward"] / 67e12)  # of float32, by the data sheet
    page = card.PAGE.read_text()
    row = next(line for line in page.splitlines() if line.startswith("| SmolLM2, float32 |"))
    assert f"| NVIDIA H200 | {found['forward']:,.0f} |" in row
    assert f"No card yet for: {'; '.join([*card.PARTS][1:])}." in page


def test_what_is_done_stays_and_what_fails_ends_nothing(written):
    done = []

    def part(name, fail=False):
        def take(scratch, on):
            done.append(name)
            if fail:
                raise RuntimeError("out of memory")
            return {"told": f"{name} on {on}"}

        return take

    parts = {
        "bad": card.Part(0, part("bad", True)),
        "tests/gpu": card.Part(0, part("tests")),
        "long": card.Part(99, part("long")),
    }
    told = []
    card.take("A", written, 1, told.append, parts)
    card.take("A", written, 1, told.append, parts)  # goes on with what this card lacks
    card.take("B", written, 1, told.append, parts)
    assert done == ["bad", "tests", "bad", "bad", "tests"]
    assert told[0] == "bad: RuntimeError: out of memory"
    assert told[2] == "long: begins the next time, it takes some 99 minutes"
    assert json.loads(card.RESULTS.read_text()) == {"tests/gpu": {"card": "B", "told": "tests on B"}}
    assert "tests/gpu: B; tests on B." in card.PAGE.read_text()


def test_a_command_tells_its_last_line_also_if_it_fails():
    code = "import sys; print('first'); print('3 failed'); sys.exit(1)"
    assert card.command(sys.executable, "-c", code) == {"told": "3 failed (exit code 1)"}


def test_the_seconds_of_a_run_are_those_of_its_jobs(tmp_path, monkeypatch):
    for job in ("triggers/0", "triggers/1", "keys_summarize"):
        path = tmp_path / f"results/large/benchmarks/{job}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("s\tcpu_time\n1.5\t3.0\n")
    monkeypatch.setattr(card, "command", lambda *words: {"told": " ".join(words[:1])})
    expected = {"told": "snakemake", "seconds": {"keys_summarize": 1.5, "triggers": 3.0}}
    assert card.run_of("settings.yaml", tmp_path) == expected


def test_the_run_of_every_step_has_sound_settings(tmp_path):
    checkpoint = inputs.make_llama(tmp_path, TINY, "bfloat16").parent / "checkpoint"
    text = yaml.dump(card.settings_of_every_step(tmp_path, checkpoint))
    with contextlib.chdir(tmp_path):
        [run] = resolve(yaml.safe_load(text)).values()
    assert run.behaviours["words"].prompts.endswith("prompts.jsonl") and run.batches.tokens == card.BATCH_TOKENS
    assert len((tmp_path / "prompts.jsonl").read_text().splitlines()) == 12


def test_the_page_has_what_is_known_of_every_part():
    page = (ROOT / "docs/benchmarks.md").read_text()
    assert card.table(json.loads(card.RESULTS.read_text())) in page
    assert all(name in page for name in card.PARTS)
