"""Answers are cut by rows; the pages for agents are current; without its package, the command says what to install."""

import json

import pandas as pd
import pytest
from click.testing import CliRunner
from support import ROOT

from docs.write_agents import agents, llms
from ffkv.base.settings import Section
from ffkv.cli import ADDED, COMMANDS
from ffkv.cli import ffkv as commands
from ffkv_agents.written import MOST, TOOLS, write


@pytest.mark.parametrize("rows", [3, 500])
def test_an_answer_is_cut_by_rows_and_says_so(rows):
    table = pd.DataFrame({"text": ["word " * 20] * rows, "number": 1 / 3})
    found = json.loads(text := write("graph", Section(), ({}, {"nodes": table, "edges": table[:1]})))
    shown = len(found["edges"])
    assert len(text) <= MOST and shown == 1
    left = rows - len(found["nodes"])
    assert found["left_off"] == ({"nodes": f"{left} of {rows} rows. {TOOLS['graph']['more']}"} if left else {})
    assert (left > 400) is (rows == 500)


def test_without_the_package_the_command_says_what_to_install(tmp_path, monkeypatch):
    for known in (COMMANDS, ADDED):
        monkeypatch.delitem(known, "mcp")
    told = CliRunner().invoke(commands, ["mcp", str(tmp_path)])
    assert told.exit_code == 2 and "pip install ./packages/ffkv-agents" in told.output


def test_the_pages_for_agents_are_current():
    assert (ROOT / "AGENTS.md").read_text() == agents(), "run `make docs`"
    assert (ROOT / "docs/llms.txt").read_text() == llms(), "run `make docs`"
