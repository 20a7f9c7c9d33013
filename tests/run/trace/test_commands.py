"""The command `ffkv trace`: text, JSON, and mistakes; and what a terminal shows of a behaviour."""

import json
from pathlib import Path
from unicodedata import east_asian_width

import pandas as pd
import pytest
from click.testing import CliRunner

import ffkv
from ffkv.base.errors import UserError
from ffkv.base.files import tables
from ffkv.base.terminal import plain
from ffkv.run.commands import trace as command
from ffkv.run.results import indexes
from ffkv.run.results.text import NO_BREAK_SPACE
from ffkv.run.trace.result import _table, behaviour_as_text, plain_token

PROMPT = "w5 w6 w7"


@pytest.fixture
def call(traced):
    """Calls the command on the run of the plain GPT-2; returns what it prints."""

    def run(*arguments: str) -> str:
        words = [str(traced("gpt2").folder), PROMPT, *arguments, "--device", "cpu"]
        result = CliRunner().invoke(command, words, catch_exceptions=False, standalone_mode=False)
        return result.output

    return run


def test_too_many_tokens_and_a_file_for_a_folder_are_refused(traced, tmp_path):
    """A whole vocabulary at every token and layer is millions of rows. A file is no folder for tables."""
    folder, file = str(traced("gpt2").folder), tmp_path / "file"
    file.write_text("w5\n")
    many = CliRunner().invoke(command, [folder, PROMPT, "--top", "1001"])
    assert many.exit_code == 2 and "'--top': 1001: must be at most 1000" in many.output
    into = CliRunner().invoke(command, [folder, "--prompts", str(file), "--output", str(file)])
    assert into.exit_code == 2 and "is a file" in into.output


def test_it_prints_the_prediction_the_changes_the_layers_and_the_memories(call, traced):
    printed = call("--off", "L0.3", "--scale", "L1.4:2.5", "--top", "3", "--memories", "2", "--layers")
    trace = ffkv.trace(traced("gpt2"), PROMPT, off=["L0.3"], scale=["L1.4:2.5"], top=3, memories=2, device="cpu")
    lines = printed.splitlines()
    assert lines[1] == "  <bos> w5 w6 [w7]"
    assert "before and after L0.3 x 0, L1.4 x 2.5 at position 3 only (KL divergence " in printed
    names = trace.changed.contributions["name"]
    shown = [line.split()[1] for line in lines if any(f" {name} " in line for name in names)]
    assert set(shown) >= set(names)
    for token in trace.final["token"]:
        assert token in printed
    assert printed.count("other memories") == printed.count("bias") == 3
    assert f"All sums hold up to a relative deviation of {trace.changed.deviation:.1e} " in lines[-1]
    assert "\\xa0" not in printed


def test_it_says_whether_tables_are_before_or_after_the_changes(call, traced):
    trace = ffkv.trace(traced("gpt2"), PROMPT, off=["L0.3"], top=5, memories=10, device="cpu")
    for option, when, shown in (([], "after", trace.changed), (["--before"], "before", trace)):
        printed = call("--off", "L0.3", "--layers", *option)
        assert [
            line.partition(f", {when} the changes")[0] for line in printed.splitlines() if " the changes" in line
        ] == [
            "Strongest memories of all layers",
            "Layers at position 3",
            "Contributions",
            f"All sums hold up to a relative deviation of {shown.deviation:.1e} (the model's own logits:"
            f" {shown.logits_deviation:.1e})",
        ]
        of_layers = printed.partition("Contributions")[2]
        (row,) = [line.split() for line in of_layers.splitlines() if " L0.3 " in line and "x 0" not in line]
        assert (float(row[2]) == 0) == (when == "after")
    assert "the changes" not in call()


def test_it_shows_the_ten_strongest_memories_of_all_layers_first(call, traced):
    printed = call()
    every = ffkv.trace(traced("gpt2"), PROMPT, memories=1000, device="cpu").contributions
    strongest = every.assign(size=every["logit"].abs()).sort_values("size", ascending=False)["name"][:10].tolist()
    head, shown = printed.partition("Strongest memories of all layers")[::2]
    assert "The model predicts" in head
    assert [line.split()[0] for line in shown.splitlines()[2:12]] == strongest
    assert "Layers at" not in printed and "Contributions" not in printed and "Layers at" in call("--layers")


def test_blanks_and_line_breaks_of_tokens_show():
    assert plain_token(" a\n") == "␣a\\n"
    assert plain_token("\x01") == r"\x01"


def test_columns_stand_below_each_other_whatever_the_tokens():
    """What `say` spells out, and wide characters, are as wide in the table as in the terminal."""
    frame = pd.DataFrame({"token": ["a\x0e\u202e", "漢字", "b"], "rank": ["1", "2", "3"]})
    lines = _table(frame, {"token": "token", "rank": "text"}).splitlines()
    assert [plain(line) for line in lines] == lines
    assert len({sum(1 + (east_asian_width(one) == "W") for one in line) for line in lines}) == 1


def test_everywhere_is_said(call):
    assert "before and after L0.3 x 0 at every token (KL" in call("--off", "L0.3", "--everywhere")


def test_it_prints_the_whole_trace_as_json(call, traced):
    options = ["--position", "-2", "--token-id", "9", "--top", "2", "--memories", "1", "--off", "L0.3"]
    trace = ffkv.trace(traced("gpt2"), PROMPT, position=-2, token="w8", top=2, memories=1, off="L0.3", device="cpu")
    printed = json.loads(call("--json", *options))
    assert printed == json.loads(trace.to_json())
    assert printed["changed"] == json.loads(trace.changed.to_json()) and printed["changed"]["changed"] is None


@pytest.fixture
def call_many(traced, tmp_path):
    """Calls the command on a file of prompts; returns what it prints, and the folder of its tables."""

    def run(content: bytes, *arguments: str) -> tuple[str, Path]:
        (tmp_path / "prompts.txt").write_bytes(content)
        files = ["--prompts", str(tmp_path / "prompts.txt"), "--output", str(tmp_path / "tables")]
        words = [str(traced("gpt2").folder), *arguments, *files, "--device", "cpu"]
        return CliRunner().invoke(command, words, catch_exceptions=False, standalone_mode=False).output, Path(files[-1])

    return run


def test_a_file_of_prompts_becomes_the_tables_of_all_of_them(call_many, traced):
    """A line is a prompt to the letter. Numbers in CSV files have ten digits."""
    printed, folder = call_many(b"w5 w6\r\n w7\nw1 w2 w3\n", "--memories", "1", "--off", "L0.3")
    expected = ffkv.trace_all(traced("gpt2"), ["w5 w6", " w7", "w1 w2 w3"], memories=1, top=5, off="L0.3", device="cpu")
    assert printed.split() == [str(folder / f"{name}.csv") for name in expected]
    for name, table in expected.items():
        pd.testing.assert_frame_equal(
            tables.read(folder / f"{name}.csv"), table, check_dtype=False, rtol=1e-9, atol=1e-300
        )


def test_prompts_that_are_no_text_are_refused(call_many):
    with pytest.raises(UserError, match=r"prompts\.txt cannot be read as text in UTF-8: 'utf-8' codec"):
        call_many(b"w5\n\xff\n")
    with pytest.raises(UserError, match=r"prompts\.txt is empty\. Write a prompt per line"):
        call_many(b"")


@pytest.mark.parametrize("arguments", [["w5"], ["--json"]])
def test_one_prompt_or_many(call_many, arguments):
    with pytest.raises(UserError, match="Name one prompt as TEXT, or a file of prompts with --prompts and a folder"):
        call_many(b"w5\n", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "tables"], "Name one prompt as TEXT, or a file"),
        (["--scale", "L0.3"], "not a memory with a factor"),
    ],
)
def test_mistakes_are_sentences(call, arguments, message):
    with pytest.raises(UserError, match=message):
        call(*arguments)


BEHAVIOUR = {
    "prompts": 40, "lines": 50, "kind": "pairs", "groups": 20, "accuracy": 0.9, "explained": True, "by_memories": 0.5,
    "by_memories_low": 0.25, "by_memories_high": 0.75, "smallest_p": 0.001,
}  # fmt: skip
MEMORY = {
    "layer": 1, "memory": 7, "reach": "total", "coefficient": -0.25, "token": " was", "effect": 0.5, "effect_q": 0.01, "random_memories": 0.001,
    "screen_estimate": 0.4,
}  # fmt: skip


def found(memories: list[dict]) -> dict[str, pd.DataFrame]:
    return {"behaviours": pd.DataFrame([BEHAVIOUR]), "behaviour_memories": pd.DataFrame(memories, columns=[*MEMORY])}


def test_a_behaviour_is_told_with_blanks_that_every_terminal_has(traced):
    files = traced("gpt2").files
    text = behaviour_as_text(found([MEMORY]), files, 99)
    bottom = indexes.values_by_memory(files).query("layer == 1 and memory == 7")["bottom_token"].item()
    assert text.splitlines()[-1].split()[:3] == ["L1.7", "-0.2500", files.vocabulary[bottom]]
    assert "on 90 % of them" in text and "carry 50 % of the behaviour (25 % to 75 %)" in text and "L1.7" in text
    assert NO_BREAK_SPACE not in text


def test_a_behaviour_without_memories_says_so(traced):
    assert behaviour_as_text(found([]), traced("gpt2").files, 19).endswith("  none")


def test_a_behaviour_says_what_its_controls_cannot_show(traced):
    """Seven candidates with 19 controls: p is 1/20 at least, so that only seven such together have q = 0.05."""
    few, files = found([{**MEMORY, "memory": memory} for memory in range(7)]), traced("gpt2").files
    floor = "A p-value is at least 1/20: so 7 or more of them are significant, or none is. With 139 controls, one alone can be."
    assert floor in behaviour_as_text(few, files, 19)
    assert "A p-value is at least" not in behaviour_as_text(few, files, 139)
