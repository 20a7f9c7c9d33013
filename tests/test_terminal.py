"""What strangers wrote sends no command to a terminal."""

import ast
import subprocess

import pytest
from forks import with_forks
from hypothesis import given
from hypothesis import strategies as st
from support import OFFLINE, ROOT, edit_json, random_checkpoint

from ffkv.base import terminal
from ffkv.base.process.progress import progress
from ffkv.base.terminal import plain

pytestmark = pytest.mark.slow

EVIL = "relu\x1b]52;c;ZXZpbA==\x07\x9b31m\u202e"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ü and 漢", "plain text, ü and 漢"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b]52;c;x\x07", r"\x1b]52;c;x\x07"),
        ("\x9b2J", r"\x9b2J"),
        ("over\rwritten", r"over\rwritten"),
        ("\u202eleft", r"\u202eleft"),
        ("caf\udce9", r"caf\udce9"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_controls_are_spelled_out(text, shown):
    assert plain(text) == shown


@given(st.text())
def test_nothing_that_a_terminal_obeys_is_left(text):
    assert all(one in "\n\t" or one.isprintable() for one in plain(text))
    plain(text).encode()


@pytest.mark.parametrize("at_terminal", [False, True])
def test_what_programs_read_is_not_changed_and_a_terminal_obeys_nothing_of_it(monkeypatch, capfdbinary, at_terminal):
    text = "name,note\nL0.1,caf\u00a0\x7f\x1b[31m é \U000e0041"
    monkeypatch.setattr("sys.stdout.isatty", lambda: at_terminal)
    terminal.emit(text)
    terminal.emit("half a character \ud83d")
    printed = capfdbinary.readouterr().out.decode()
    assert printed.startswith((plain(text) if at_terminal else text) + "\n")


def test_a_bar_names_a_file_of_strangers(capfd):
    with progress(3, "prompts", f"a{EVIL}.jsonl") as bar:
        bar.update(3)
    shown = capfd.readouterr().err
    assert plain(EVIL) in shown and not {"\x1b", "\x07", "\x9b", "\u202e"} & {*shown}


def test_only_one_function_prints():
    """Whoever prints by another way could forget to spell out what strangers wrote."""
    for path in (ROOT / "src/ffkv").rglob("*.py"):
        if path.name == "terminal.py" or path.parts[-2:] == ("workflow", "jobs.py"):  # a program, read by another one
            continue
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not [one for one in calls if isinstance(one, ast.Name) and one.id == "print"], path
        assert not [one for one in calls if isinstance(one, ast.Attribute) and one.attr in ("echo", "secho")], path


def inspected(folder) -> subprocess.CompletedProcess:
    command = ["ffkv", "inspect", "--checkpoint", str(folder)]
    return subprocess.run(command, env=with_forks(OFFLINE), capture_output=True, text=True)


@pytest.mark.parametrize("field", ["model_type", "architectures", "activation_function"])
def test_a_strangers_config_reaches_the_terminal_spelled_out(tmp_path, field):
    """The control sequence OSC 52 would write into the clipboard."""
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    edit_json(folder / "config.json", **{field: [EVIL] if field == "architectures" else EVIL})
    done = inspected(folder)
    said = done.stdout + done.stderr
    assert not any(one in said for one in "\x1b\x07\x9b\u202e")


def test_a_file_name_reaches_the_terminal_spelled_out(tmp_path):
    done = inspected(tmp_path / EVIL.replace("/", ""))
    assert done.returncode == 2
    assert r"\x1b]52" in done.stderr
    assert not any(one in done.stderr for one in "\x1b\x07\x9b\u202e")


def test_the_programs_own_style_stays(capsys, monkeypatch):
    monkeypatch.setattr(terminal.click, "style", lambda text, **_: f"<{text}>")
    terminal.say("evil \x1b[2J", error=True)
    assert capsys.readouterr().err == "<ffkv: >evil \\x1b[2J\n"
