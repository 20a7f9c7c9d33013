"""The lines of progress below what Snakemake prints."""

import io
import logging
import os
import pty
import re

import pytest
from support import ROOT

from ffkv.workflow import live


def screen(text: str) -> list[str]:
    """What a terminal shows of a text with orders to go up and empty a line."""
    lines = [""]
    for part in re.split(r"(\x1b\[1A\x1b\[2K|\n)", text):
        if part == "\n":
            lines.append("")
        elif part == live.UP:
            lines[-2:] = [""]
        else:
            lines[-1] += part
    return lines


def test_lines_stay_below_what_is_printed():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    draw = live._keep_below(handler)
    tell = lambda text: handler.handle(logging.makeLogRecord({"msg": text}))  # noqa: E731
    tell("one")
    draw(["a 1 %", "b 2 %"])
    assert screen(stream.getvalue()) == ["one", "a 1 %", "b 2 %", ""]
    draw(["a 3 %"])
    assert screen(stream.getvalue()) == ["one", "a 3 %", ""]
    tell("two")  # the next look draws them again
    assert screen(stream.getvalue()) == ["one", "two", ""]
    draw(["a 3 %"])
    assert screen(stream.getvalue()) == ["one", "two", "a 3 %", ""]
    draw([])
    assert screen(stream.getvalue()) == ["one", "two", ""]


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, "demo triggers/0"),
        ("", "demo triggers/0"),
        ("\rtriggers:   0%|   | 0/9\rtriggers:  50%|#  | 4/9 [00:10<00:12, 2 tokens/s]", None),
        ("a warning\ntriggers: 100%|###| 9/9\n", "demo triggers/0  triggers: 100%|###| 9/9"),
        ("\x1b[31mred", r"demo triggers/0  \x1b[31mred"),
        (10_000 * "x" + "\nlast", "demo triggers/0  last"),
    ],
)
def test_a_job_has_the_last_line_of_its_log(tmp_path, content, shown):
    log = tmp_path / "results/demo/logs/triggers/0.log"
    log.parent.mkdir(parents=True)
    if content is not None:
        log.write_text(content)
    expected = shown or "demo triggers/0  triggers:  50%|#  | 4/9 [00:10<00:12, 2 tokens/s]"
    assert live.describe(str(log)) == expected


SNAKEFILE = """
include: {common!r}

rule train:
    output: "done"
    log: "results/mine/logs/train.log"
    shell: "printf '%s' 'training:  40%' > {{log}}; sleep 3; touch {{output}}"

onstart: show_running_jobs()
onsuccess: hide_progress()
"""


@pytest.mark.workflow
@pytest.mark.parametrize(("options", "shown"), [((), True), (("--quiet", "progress"), False)])
def test_a_person_at_a_terminal_sees_the_progress_of_a_job(tmp_path, options, shown):
    """And none of it is left at the end."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(common=str(ROOT / "workflow/rules/common.smk")))
    (tmp_path / "config.yaml").write_text("runs: {mine: {}}")
    command = ["snakemake", "-d", str(tmp_path), "-s", str(tmp_path / "Snakefile"), "--cores", "1"]
    command += ["--configfile", str(tmp_path / "config.yaml"), "--workflow-profile", "none", *options]
    said = bytearray()
    environment = {**os.environ, "TERM": "xterm"}
    child, terminal = pty.fork()
    if not child:
        os.execvpe(command[0], command, environment)
    try:
        while read := os.read(terminal, 4096):
            said += read
    except OSError:  # the child has ended
        pass
    assert os.waitpid(child, 0)[1] == 0, said.decode()
    text = re.sub(r"\x1b\[\d*m", "", said.decode().replace("\r\n", "\n"))
    assert ("mine train  training:  40%\n" in text) == shown
    assert not [line for line in screen(text) if "training" in line]
