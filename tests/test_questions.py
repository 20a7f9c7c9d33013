"""The ten questions of docs/recipes.md: each line is run as it is written, on a small run."""

import json
import re
import shlex

import matplotlib.pyplot as plt
import pytest
from click.testing import CliRunner
from support import ROOT

import ffkv
from ffkv.cli import ffkv as command

pytestmark = pytest.mark.workflow
ROW = re.compile(r"^\| (which|what|how) ([^|]+)\? \| ([^|]*) ?\| `(.+)` \|$", re.M)
QUESTIONS = {
    f"{first} {rest}": (clicks.strip(), line)
    for first, rest, clicks, line in ROW.findall((ROOT / "docs/recipes.md").read_text())
}
# What the small run has in the place of the demo.
INSTEAD = {
    "results/demo-untrained": "results/tiny",
    "results/demo": "results/tiny",
    "L3.17-26": "L1.17-26",
    "L3.17": "L1.17",
    "L29.1512": "L1.17",
}
SHORTER = {
    "causes": ["--minimum-accuracy", "0", "--candidates", "1", "--controls", "19", "--flips", "100"],
    "generate": ["--tokens", "3"],
}


def test_there_are_ten_and_each_takes_three_clicks_or_a_line():
    assert len(QUESTIONS) == 10
    assert all(len(clicks.split(", ")) <= 3 for clicks, _ in QUESTIONS.values())


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_line_answers_it(own_tiny, monkeypatch, question):
    monkeypatch.chdir(own_tiny)
    run, (_, line) = ffkv.open("results/tiny"), QUESTIONS[question]
    fires = ",".join(run.memories(sort="firing_rate")["name"].head(5))  # others have no keys to judge
    line = re.sub(r"L[\d.]+(,L[\d.]+){4}", fires, line)
    for word, other in INSTEAD.items():
        line = line.replace(word, other)
    line = line.replace("Paris", run.memory("L1.17").promotes(1)["token"][0].strip() or "a")
    if not line.startswith("ffkv "):
        answer = eval(line, {"ffkv": ffkv, "run": run})
        plt.close("all")
        assert (own_tiny / "figure_4.pdf").stat().st_size > 1000 if "savefig" in line else answer is not None
        return
    lists = [
        {kind: f"{word} {kind}"}
        for word in ("one", "two", "three", "four", "five", "six", "seven")
        for kind in ("positive", "negative")
    ]
    (own_tiny / "lists.jsonl").write_text("\n".join(map(json.dumps, lists)))
    _, *words = shlex.split(line)
    done = CliRunner().invoke(command, [*words, *SHORTER.get(words[0], [])])
    assert done.exit_code == 0, (done.output, done.exception)
    assert done.output.strip()
    if "--output" in words:
        assert [*(own_tiny / words[-1]).iterdir()]
