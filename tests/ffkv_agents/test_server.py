"""An agent asks finished runs by the official client, over standard input and output: what it is told is what Python tells."""

import json
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pandas as pd
import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner
from forks import forks_of
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from support import OFFLINE, ROOT, refused

import ffkv
import ffkv_comparison
from ffkv.base.settings import Comparison
from ffkv.cli import ffkv as commands
from ffkv_agents import server
from ffkv_agents.written import MOST, TOOLS
from tests.run.report.conftest import write_results
from tests.run.report.made_up import HOSTILE
from tests.test_docs import anchors

pytestmark = pytest.mark.slow
NAMES = ["describe_run", "verdicts", "search_memories", "memory", "trace", "graph", "behaviour", "compare"]
SIX_DIGITS = 5.1e-6  # a number with six significant digits differs by half a unit of the last one at most, relative to the smallest, 1.00000
PROMPT, OFF = "The function returns a list", ["L0.17", "L1.62"]
ROWS = [{"prompt": f"This {word}", "answer": " is", "wrong": " are"} for word in ("list", "file", "name", "line")]
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def results(tiny, tmp_path_factory) -> Path:
    """A folder of runs: two alike, one with hostile texts and a behaviour, an unfinished and a damaged one, one that asks for trust."""
    folder = tmp_path_factory.mktemp("agents") / "results"
    for name in ("tiny", "other", "unfinished", "damaged", "asking"):
        shutil.copytree(tiny / "results/tiny", folder / name, copy_function=os.link)
    write_results(folder / "hostile")
    shutil.rmtree(folder / "unfinished/values")
    triggers, anatomy = folder / "damaged/triggers.h5", folder / "asking/model/anatomy.json"
    content, about = triggers.read_bytes(), json.loads(anatomy.read_text())
    triggers.unlink(), anatomy.unlink()  # they are files of `tiny`, too
    triggers.write_bytes(content[: len(content) // 2])
    anatomy.write_text(json.dumps(about | {"trust_remote_code": True}))
    (folder / "asking/.model.sha256").unlink()  # as a stranger would
    return folder


@pytest.fixture(scope="module")
def run(results) -> ffkv.Run:
    return ffkv.open(results / "tiny")


@pytest.fixture(scope="module")
def portal() -> Iterator[Any]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def client(results, portal) -> Iterator[Client]:
    """The official client, of one server with all of the runs. Its standard output is the protocol's alone, or the client fails."""
    runs = [str(results / name) for name in ("tiny", "other", "hostile", "unfinished", "damaged", "asking")]
    started = StdioServerParameters(
        command=str(forks_of(OFFLINE) / "ffkv"), args=["mcp", *runs, "--threads", "1"], env=OFFLINE
    )
    with portal.wrap_async_context_manager(Client(stdio_client(started))) as client:
        yield client


@pytest.fixture(scope="module")
def told(client, portal) -> Callable[..., str]:
    """Returns the text of an answer, and asserts whether it is a refusal."""

    def told(tool: str, /, *, is_refused: bool = False, **given: Any) -> str:
        answer = portal.call(client.call_tool, tool, given)
        (part,) = answer.content
        assert answer.is_error == is_refused, part.text
        assert len(part.text) <= MOST
        return part.text

    return told


@pytest.fixture(scope="module")
def ask(told) -> Ask:
    return lambda tool, /, **given: json.loads(told(tool, **given))


def same(found: Any, expected: Any) -> bool:
    """Whether a value of an answer is that of Python."""
    if isinstance(expected, float) and not math.isfinite(expected):
        return found is None
    if isinstance(expected, str):
        return found == expected or found == f"…{expected[-300:]}"
    return found == (pytest.approx(expected, rel=SIX_DIGITS, abs=0) if isinstance(expected, float) else expected)


def assert_rows(rows: list[dict[str, Any]], table: pd.DataFrame) -> None:
    """The rows are the first ones of a table, in the columns that both have."""
    assert rows
    for row, expected in zip(rows, table.to_dict("records"), strict=False):
        both = [name for name in row if name in expected]
        assert len(both) > 1
        for name in both:
            own = expected[name].item() if hasattr(expected[name], "item") else expected[name]
            assert same(row[name], own), (name, row[name], own)


def test_eight_tools_say_what_they_take(client, portal):
    tools = portal.call(client.list_tools).tools
    assert [tool.name for tool in tools] == NAMES
    for tool in tools:
        assert len(tool.description) > 200 and tool.annotations.read_only_hint
        assert tool.input_schema["additionalProperties"] is False
        fields = tool.input_schema["properties"]
        assert all(field["description"] for field in fields.values()) and "run" in fields
        assert not [name for name, field in fields.items() if "title" in field or "examples" in field]
    assert "never instructions" in client.instructions and "tiny, other, hostile" in client.instructions.replace(
        "\n", " "
    )


def test_the_run_is_described_beside_what_chance_gives(ask, run):
    found = ask("describe_run")
    assert found["memories"] == run.anatomy.layer_offset[-1] and found["vocabulary"] == run.anatomy.vocabulary
    assert all(same(found["proof"][name], error) for name, error in run.anatomy.errors.items())
    assert_rows(found["layers"], run.layers)
    agreement, ends = run.table("figure_4_agreement"), ("rate", "low", "high")
    for source, names in {
        "trigger": ("agreement", "low", "high"),
        "permuted": ("chance", "chance_low", "chance_high"),
    }.items():
        rows = [{end: row[name] for end, name in zip(ends, names, strict=True)} for row in found["layers"]]
        assert_rows(rows, agreement[agreement["source"] == source])
    assert ask("describe_run", start=1)["layers"] == found["layers"][1:]


def test_verdicts_are_those_of_python(ask, run):
    found, table = ask("verdicts")["claims"], ffkv.verdicts(run)
    assert len(found) == len(table)
    assert_rows(found, table.assign(reason=table["reason"].str.replace("\xa0", " ")))


def test_a_search_goes_on_where_its_rows_ended(ask, run):
    expected = run.memories(promotes=" the", between={"firing_rate": (0.1, None)}, sort="norm")
    found = ask("search_memories", promotes=" the", between={"firing_rate": [0.1, None]}, sort="norm", count=4)
    assert found["found"] == len(expected) > 8
    assert_rows(found["memories"], expected)
    assert {"norm", "firing_rate", "promoted_probability"} <= found["memories"][0].keys()
    assert found["left_off"]["memories"] == f"{len(expected) - 4} of {len(expected)} rows. Ask with start=4."
    more = ask("search_memories", promotes=" the", between={"firing_rate": [0.1, None]}, sort="norm", count=4, start=4)
    assert_rows(more["memories"], expected[4:])
    norms = next(row for row in found["of_all"] if row["quantity"] == "norm")
    assert same(norms["median"], float(run.memories()["norm"].median()))
    assert same(found["by_chance"], 1 / run.anatomy.vocabulary)


@pytest.mark.parametrize("name", ["L0.17", "L1.62"])
def test_a_memory_stands_beside_those_of_its_layer(ask, run, name):
    found, memory = ask("memory", memory=name, count=3, tokens=4), run.memory(name)
    assert_rows(found["trigger_examples"], memory.triggers)
    assert_rows(found["promotes"], memory.promotes(4))
    assert_rows(found["demotes"], memory.demotes(4))
    of_layer = run.memories(layer=memory.layer)
    for row in found["numbers"]:
        values = of_layer[row["quantity"]]
        assert same(row["value"], float(memory.statistics[row["quantity"]]))
        assert same(row["layer_median"], float(values.median())) and 0 <= row["below"] < 1
    assert {"firing_rate", "norm", "contribution"} <= {row["quantity"] for row in found["numbers"]}


def test_patterns_and_effects_have_their_chance(ask, run):
    sampled = next(one for each in run.memories()["name"] if (one := run.memory(each)).sampled and len(one.patterns))
    found = ask("memory", memory=sampled.name)
    assert_rows(found["patterns"], sampled.patterns)
    assert {"chance", "q_value"} <= found["patterns"][0].keys()
    removed = run.memories().dropna(subset="effect")["name"].iloc[0]
    found = ask("memory", memory=removed)
    assert_rows(found["effects"], run.memory(removed).effects)
    assert {"own", "random_memories", "random_directions", "p_value"} <= found["effects"][0].keys()


def test_a_trace_stands_beside_random_memories(ask, run):
    found, trace = (
        ask("trace", prompt=PROMPT, off=OFF, memories=4, controls=2),
        ffkv.trace(run, PROMPT, top=5, memories=4, off=OFF),
    )
    assert_rows(found["predicted"], trace.final)
    assert_rows(found["memories"], trace.strongest(4))
    assert_rows(found["effect"], trace.effect)
    assert_rows(found["layers"], trace.layers)
    assert same(found["divergence"], trace.divergence) and found["deviation"] < 1e-4
    assert len(found["controls"]) == 2
    for control in found["controls"]:
        assert [run.memory(name).layer for name in control["memories"]] == [0, 1] and not {*OFF} & {
            *control["memories"]
        }
        again = ffkv.trace(run, PROMPT, off=control["memories"], token_id=trace.token_id)
        assert same(control["divergence"], again.divergence)
        assert same(control["change"], again.effect.set_index("token_id")["change"][trace.token_id])
    assert all(trace.contributions.set_index("name").loc[name, "coefficient"] >= 0 for name in OFF)


def test_a_graph_stands_beside_random_sets(ask, run):
    found, graph = ask("graph", prompt=PROMPT, share=0.5), ffkv.graph(run, PROMPT, share=0.5)
    assert found["told"] == graph.told.replace("\xa0", " ")
    assert_rows(found["nodes"], graph.nodes)
    sets = {row["choice"]: row for row in found["sets"]}
    kept = graph.sets.groupby("choice")["kept"]
    assert sets["random"]["sets"] == 20 and sets.keys() == {"graph", "random", "none", "all"}
    for choice, row in sets.items():
        own = kept.get_group(choice)
        assert all(same(row[f"kept_{how}"], float(getattr(own, how)())) for how in ("mean", "min", "max"))


def test_own_prompts_are_asked_for_a_behaviour(ask, run, tmp_path):
    found = ask("behaviour", prompts=ROWS, candidates=1, controls=19)
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    expected = ffkv.behaviour(run, path, candidates=1, controls=19)
    assert_rows(found["behaviours"], expected["behaviours"])
    assert_rows(found["behaviour_memories"], expected.memories.query("reach != 'direct'"))
    assert {"random_memories", "random_directions", "chance"} <= found["behaviour_memories"][0].keys()
    assert {row["choice"] for row in found["behaviour_sets"]} == {"screen", "size", "random", "all"}
    assert ask("behaviour")["measured"] == []


def test_behaviours_of_a_run_are_those_of_its_tables(ask, results):
    run = ffkv.open(results / "hostile")
    assert ask("behaviour", run="hostile")["measured"] == ["agreement"]
    found = ask("behaviour", run="hostile", name="agreement")
    assert_rows(found["behaviours"], run.table("behaviours"))
    named = run.table("behaviour_memories").query("reach == 'total'").sort_values("effect", key=abs, ascending=False)
    assert_rows(found["behaviour_memories"], named)


def test_two_runs_are_compared(ask, results):
    folders = [results / "tiny", results / "other"]
    expected = ffkv_comparison.compare_runs(folders, Comparison(runs=["tiny", "other"], memories="no"))
    found = ask("compare", other_run="other")
    assert_rows(found["claims"], expected.claims)
    found = ask("compare", other_run="other", figure="figure_4")
    assert_rows(found["differences"], expected.differences.query("figure == 'figure_4'"))
    assert all(row["low"] <= row["difference"] <= row["high"] for row in found["differences"])


NONSENSE = [
    ("describe_run", {"run": "../tiny"}, "There is no open run '../tiny'. Did you mean 'tiny'?"),
    ("describe_run", {"start": -1}, "start is -1: must be at least 0"),
    ("search_memories", {"promotes": "no such token"}, "token"),
    ("search_memories", {"between": {"norm": ["NaN", None]}}, "The range of norm"),
    ("search_memories", {"sort": "norms"}, "There is no column 'norms'. Did you mean 'norm'?"),
    ("search_memories", {"text": "(a+)+$" * 200, "expression": True}, "longer than 500 characters"),
    ("search_memories", {"cuont": 3}, "Did you mean 'count'?"),
    ("memory", {}, "memory is missing"),
    ("memory", {"memory": 17}, "memory is 17: must be text"),
    ("memory", {"memory": "L9.17"}, "There is no layer 9. The model has layers 0 to 1."),
    ("memory", {"memory": "L0.17", "count": 10**30}, "count is"),
    ("memory", {"memory": "<script>\u202e\x1b[2J"}, "script"),
    ("trace", {"prompt": "a " * 3000}, "at most 4000 characters"),
    ("trace", {"prompt": "list " * 300}, "tokens"),
    ("trace", {"prompt": PROMPT, "scale": ["L0.17:nan"]}, "finite"),
    ("trace", {"prompt": PROMPT, "off": ["@../../secret"]}, "list"),
    ("trace", {"prompt": PROMPT, "position": 99}, "There is no position 99"),
    ("trace", {"prompt": PROMPT, "controls": 10**6}, "controls is 1000000: must be at most 10"),
    ("graph", {"prompt": "a " * 300}, "at most 400 characters"),
    ("search_memories", {"text": "a" * 10**6}, "The question has 1,000,"),
    ("graph", {"prompt": PROMPT, "maximum": 10**6}, "maximum is 1000000: must be at most 200"),
    ("graph", {"prompt": PROMPT, "share": -1}, "share is -1"),
    ("behaviour", {"name": "agreement", "run": "tiny"}, "There is no behaviour 'agreement'"),
    ("behaviour", {"name": "agreement", "prompts": ROWS}, "exclude each other"),
    ("behaviour", {"prompts": ROWS * 51}, "prompts is"),
    ("behaviour", {"prompts": [{"prompt": 1}]}, "must be text"),
    ("behaviour", {"prompts": [{"text": "../../etc/passwd"}]}, "has none of the fields|lacks|field"),
    ("compare", {"other_run": "tiny"}, "compared with itself"),
    ("compare", {"other_run": "/etc"}, "There is no open run '/etc'"),
    ("compare", {"other_run": "other", "figure": "../figure_4"}, "There is no figure"),
    ("rm", {"-r": "/"}, "There is no tool 'rm'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "message"), NONSENSE)
def test_nonsense_is_refused_in_a_sentence(told, name, given, message):
    text = told(name, is_refused=True, **given)
    assert re.search(message if "|" in message else re.escape(message), text), text
    assert "Traceback" not in text and "defect of ffkv" not in text and len(text) <= server.TOLD
    assert not any(sign in text for sign in "\u202e\x1b")


@pytest.mark.parametrize(
    ("run", "name", "given"),
    [
        ("unfinished", "memory", {"memory": "L0.17"}),
        ("unfinished", "describe_run", {}),
        ("unfinished", "verdicts", {}),
        ("damaged", "memory", {"memory": "L0.17"}),
        ("damaged", "search_memories", {}),
    ],
)
def test_what_is_not_finished_or_damaged_is_named(told, run, name, given):
    text = told(name, is_refused=True, run=run, **given)
    assert re.search(rf"{run}.*(values|triggers\.h5)|no figure_4|table", text) and "defect of ffkv" not in text, text


def test_a_run_that_asks_for_trust_gets_none(told):
    text = told("trace", is_refused=True, run="asking", prompt=PROMPT)
    assert re.search(r"model/anatomy\.json asks to run Python code .*--trust-remote-code", text), text


def test_texts_of_strangers_are_marked_and_spelled_out(ask):
    seen = set()
    layers = ask("describe_run", run="hostile")["layers"]
    for name in [f"L{layer['layer']}.{memory}" for layer in layers for memory in (1, 2, 3)]:
        found = ask("memory", run="hostile", memory=name, count=20, tokens=15)
        tables = {name: rows for name, rows in found.items() if isinstance(rows, list)}
        for table, rows in tables.items():
            for row in (row for row in rows if isinstance(row, dict)):
                for column, text in row.items():
                    if isinstance(text, str) and any(each.strip() and each.strip() in text for each in HOSTILE):
                        assert f"{table}.{column}" in found["untrusted"]
                        seen.add(column)
        assert not re.search("[\u202a-\u202e\x00-\x08\x1b]", json.dumps(found, ensure_ascii=False))
    assert {"text", "token"} <= seen


def test_no_question_changes_the_run(ask, results, tiny, run):
    name = next(
        each for each in run.memories()["name"] if not run.memory(each).sampled and len(run.memory(each).triggers)
    )
    assert ask("memory", memory=name)["patterns_sought"] is False
    found = ask("memory", memory=name, seek_patterns=True)
    assert found["patterns_sought"] and len(found["patterns"]) == len(run.memory(name).sought)
    folders = (results / "tiny", tiny / "results/tiny")
    files = [
        {path.relative_to(folder): path.stat() for path in folder.rglob("*") if path.is_file()} for folder in folders
    ]
    own, linked = ({path: (each.st_ino, each.st_mtime_ns) for path, each in found.items()} for found in files)
    assert own == linked  # each is still the file of `tiny`


def test_every_page_that_defines_a_number_can_be_read(client, portal):
    listed = {str(resource.uri) for resource in portal.call(client.list_resources).resources}
    assert listed == {f"ffkv://docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    links = {link for tool in NAMES for link in TOOLS[tool]["defined"].values()}
    assert len(links) > 15
    for link in links:
        page, _, anchor = link.partition("#")
        assert not anchor or anchor in anchors(ROOT / "docs" / page), link
    (part,) = portal.call(client.read_resource, "ffkv://docs/trace.md#contributions").contents
    assert part.text == (ROOT / "docs/trace.md").read_text()
    for strange in ("ffkv://docs/../README.md", "ffkv://docs//etc/passwd", "file:///etc/passwd"):
        with pytest.raises(MCPError, match="There is no page"):
            portal.call(client.read_resource, strange)


def test_what_takes_long_goes_on_and_is_there_when_it_is_asked_again(run, monkeypatch):
    may_end = threading.Event()
    monkeypatch.setitem(server.ANSWERS, "verdicts", lambda run, asked: may_end.wait(60) and ({}, {}))
    monkeypatch.setattr(server, "SECONDS", 0.1)
    desk = server.Desk({"tiny": run}, 1)

    async def check() -> None:
        for _ in range(2):
            with refused("This takes long, and goes on. Ask the same again"):
                await desk.ask("verdicts", {})
        with refused("Another question is still being answered"):
            await desk.ask("memory", {"memory": "L0.17"})
        may_end.set()
        monkeypatch.setattr(server, "SECONDS", 60)
        assert json.loads(await desk.ask("verdicts", {}))["run"] == "tiny"
        assert json.loads(await desk.ask("memory", {"memory": "L0.17"}))["name"] == "L0.17"
        assert not desk.begun

    anyio.run(check)


def test_two_runs_of_one_name_are_refused(results, tmp_path):
    again = tmp_path / "tiny"
    again.symlink_to(results / "tiny")
    told = CliRunner().invoke(commands, ["mcp", str(results / "tiny"), str(results / "tiny")])
    assert "the same name" in str(told.exception)
