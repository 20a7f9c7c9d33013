"""The command `ffkv trace`: text, JSON, and mistakes."""

import json
from unicodedata import east_asian_width

import pandas as pd
import pytest
from click.testing import CliRunner

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.terminal import plain
from ffkv.run.trace.commands import trace as command

PROMPT = "w5 w6 w7"


@pytest.fixture
def call(traced):
    """Calls the command on the run of the plain GPT-2; returns what it prints."""

    def run(*arguments: str) -> str:
        words = [str(traced("gpt2").folder), PROMPT, *arguments, "--device", "cpu"]
        result = CliRunner().invoke(command, words, catch_exceptions=False, standalone_mode=False)
        return result.output

    return run


def test_it_prints_the_prediction_the_changes_the_layers_and_the_memories(call, traced):
    printed = call("--off", "L0.3", "--scale", "L1.4:2.5", "--top", "3", "--memories", "2")
    trace = ffkv.trace(traced("gpt2"), PROMPT, off=["L0.3"], scale=["L1.4:2.5"], top=3, memories=2, device="cpu")
    lines = printed.splitlines()
    assert lines[1] == "  <bos> w5 w6 [w7]"
    assert f"With L0.3 x 0, L1.4 x 2.5 at position 3 only (KL divergence {trace.divergence:.2e} nats):"[:46] in printed
    shown = [line.split()[1] for line in lines if any(f" {name} " in line for name in trace.contributions["name"])]
    assert set(shown) >= set(trace.contributions["name"])
    for token in trace.final["token"]:
        assert token in printed
    assert printed.count("other memories") == printed.count("bias") == 3
    assert "All sums hold up to a relative deviation of " in lines[-1]
    assert "\\xa0" not in printed


def test_blanks_and_line_breaks_of_tokens_show(traced):
    from ffkv.run.trace.text import _token

    assert _token(" a\n") == "␣a\\n"
    assert _token("\x01") == r"\x01"


def test_columns_stand_below_each_other_whatever_the_tokens():
    """What `say` spells out, and wide characters, are as wide in the table as in the terminal."""
    from ffkv.run.trace.text import _table, _token

    frame = pd.DataFrame({"token": ["a\x0e\u202e", "漢字", "b"], "rank": ["1", "2", "3"]})
    lines = _table(frame, {"token": _token, "rank": str})
    assert [plain(line) for line in lines] == lines
    assert len({sum(1 + (east_asian_width(one) == "W") for one in line) for line in lines}) == 1


def test_everywhere_is_said(call):
    assert "With L0.3 x 0 at every token (KL" in call("--off", "L0.3", "--everywhere")


def test_it_prints_the_whole_trace_as_json(call, traced):
    printed = json.loads(call("--json", "--position", "-2", "--token-id", "9", "--top", "2", "--memories", "1"))
    trace = ffkv.trace(traced("gpt2"), PROMPT, position=-2, token="w8", top=2, memories=1, device="cpu")
    assert printed == json.loads(trace.to_json())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--off", "L0.999"], "There is no memory 999"),
        (["--scale", "L0.3"], "not a memory with a factor"),
        (["--position", "9"], "There is no position 9"),
        (["--token", "w9999"], "'w9999' is not a token"),
        (["--token", "w1", "--token-id", "2"], "Give one of them"),
    ],
)
def test_mistakes_are_sentences(call, arguments, message):
    import click

    with pytest.raises((UserError, click.UsageError), match=message):
        call(*arguments)
