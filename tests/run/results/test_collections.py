"""Lists of memories and notes: what events leave, who may write, and where a list stands for its memories."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner
from forks import with_forks
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import OFFLINE, tries

import ffkv
from ffkv.base.errors import UserError
from ffkv.cli import ffkv as command
from ffkv.run.results.collections import FOLDER, Event, append_event, choose_memories, expand, read_kept, replay
from ffkv.run.trace.prompt import read_changes
from tests.run.results.conftest import add_behaviours

MODEL = {"model_hash": "a" * 16}
NAMES = ("a", "b", "c")
MEMORIES = ("L0.0", "L0.1", "L1.0")


@pytest.fixture
def run(written, tmp_path):
    """A small run of one's own, with room for annotations beside it."""
    return ffkv.open(shutil.copytree(written, tmp_path / "results" / "small"))


@pytest.fixture
def folder(run) -> Path:
    return run.files.annotations / FOLDER


def event(action: str, collection: str | None = None, memories: tuple[str, ...] = (), **more) -> Event:
    return Event(
        **{"identity": MODEL, "person": "anna", "action": action, "collection": collection, "memories": memories} | more
    )


def content(kept) -> dict[str, list[str]]:
    return {name: [*own] for name, own in kept.lists.items()}


def test_events_by_hand():
    kept = replay(
        [
            event("add", "dates", ("L0.0", "L1.1"), time="2026-01-01T00:00:00.000000Z"),
            event("add", "dates", ("L1.1", "L0.2"), person="ben"),  # L1.1 is in the list: it stays anna's
            event("remove", "dates", ("L0.0",)),
            event("add", "dates", ("L0.0",), person="ben"),  # now the last one, and ben's
            event("remove", "never-made", ("L0.0",)),
            event("add", "other", ("L0.2", "L0.1")),
            event("rename", "other", to="dates"),  # two lists become one
            event("add", "other", ("L1.0",)),  # the name is free again
            event("note", memories=("L0.0",), text="  fires on\tdates \n too"),
            event("note", memories=("L0.0",), text="no", person="ben"),
            event("note", memories=("L0.1",), text="x"),
            event("note", memories=("L0.1",), text=""),
        ]
    )
    assert content(kept) == {"dates": ["L1.1", "L0.2", "L0.0", "L0.1"], "other": ["L1.0"]}
    assert [each.person for each in kept.lists["dates"].values()] == ["anna", "anna", "ben", "anna"]
    assert kept.lists["dates"]["L1.1"].time == "2026-01-01T00:00:00.000000Z"
    assert {who: note.text for who, note in kept.notes["L0.0"].items()} == {"anna": "fires on dates\n too", "ben": "no"}
    assert [*kept.notes] == ["L0.0"]


changes = st.one_of(
    st.builds(event, st.sampled_from(["add", "remove"]), st.sampled_from(NAMES), st.lists(st.sampled_from(MEMORIES)).map(tuple)),
    st.builds(lambda old, new: event("rename", old, to=new), st.sampled_from(NAMES), st.sampled_from(NAMES)),
)  # fmt: skip


@given(st.lists(changes, max_size=12))
@hypothesis_settings(max_examples=tries(100))
def test_a_list_holds_what_the_events_say_one_by_one(events):
    sets: dict[str, set[str]] = {name: set() for name in NAMES}
    for each in events:
        if each.action == "rename":
            moved, sets[each.collection] = sets[each.collection], set()
            sets[each.to] |= moved
        else:
            sets[each.collection] = (set.union if each.action == "add" else set.difference)(
                sets[each.collection], each.memories
            )
    assert {name: {*own} for name, own in replay(events).lists.items()} == {n: own for n, own in sets.items() if own}
    assert replay(events + [event("remove", name, MEMORIES) for name in NAMES]).lists == {}


def test_what_is_kept_comes_back(run):
    assert ffkv.collections(run).empty
    ffkv.collect(run, "dates", ["L1.0", "0/1"])
    ffkv.collect(run, "starred", "L0")
    ffkv.collect(run, "starred", "L0.2, L1.1", remove=True)
    ffkv.note(run, "L0.0", "fires on “é” 🦊")
    table = ffkv.collections(run)
    assert table[["collection", "memory", "note"]].to_numpy().tolist() == [
        ["dates", "L0.1", ""], ["dates", "L1.0", ""], ["starred", "L0.0", ""], ["starred", "L0.1", ""],
        ["", "L0.0", "fires on “é” 🦊"],
    ]  # fmt: skip
    assert (table["person"].str.len() > 0).all() and table["time"].str.endswith("Z").all()
    ffkv.note(run, "L0.0", "")
    assert (ffkv.collections(run)["note"] == "").all()
    assert len([*run.files.annotations.rglob("*")]) == 2  # the folder and one file: nothing in the results


@pytest.mark.parametrize("name", ["ähnlich-日付_1.2", "नमस्ते", "!?*/$", "x" * 60, "Ａ"])
def test_a_list_may_have_a_name_of_any_script(run, name):
    ffkv.collect(run, name, "L0.0")
    assert expand(run.files, [f"@{name}", "L1.0"]) == ["L0.0", "L1.0"]


@pytest.mark.parametrize("name", ["", "two words", "a,b", "a:2", "@a", "x" * 61, "a\nb", "a\u202eb", "\ud800"])
def test_a_name_that_could_not_be_asked_for_is_refused(run, folder, name):
    with pytest.raises(UserError, match="the name of a list must have 1 to 60 characters"):
        ffkv.collect(run, name, "L0.0")
    assert not folder.exists()


def test_both_spellings_of_a_letter_are_one_name(run):
    ffkv.collect(run, "e\u0301", "L0.0")
    ffkv.collect(run, "\u00e9", "L0.1")
    assert expand(run.files, ["@e\u0301"]) == ["L0.0", "L0.1"]
    assert run.memories(collection="e\u0301")["name"].tolist() == ["L0.0", "L0.1"]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda run: ffkv.collect(run, "a", "L9.0"), "There is no layer 9"),
        (lambda run: ffkv.collect(run, "a", "L0.3"), "There is no memory 3 in layer 0"),
        (lambda run: ffkv.collect(run, "a", None), "memories is None"),
        (lambda run: ffkv.collect(run, "a", []), r"memories is \[\]"),
        (lambda run: ffkv.collect(run, "a", "L0.0", remove=True), "Nobody has made a list of memories"),
        (lambda run: ffkv.collect("small", "a", "L0.0"), "run is 'small'"),
        (lambda run: ffkv.note(run, "L0.0", "x" * 5001), "at most 5000 characters"),
        (lambda run: ffkv.note(run, "L0.9", "x"), "There is no memory 9"),
        (lambda run: run.memories(collection=3), "collection is 3"),
    ],
)
def test_what_cannot_be_kept_is_refused(run, call, message):
    with pytest.raises(UserError, match=message):
        call(run)


def test_a_list_that_does_not_exist_is_told_with_those_that_do(run):
    ffkv.collect(run, "dates", "L0.0")
    ffkv.collect(run, "colours", "L0.0")
    for ask in (
        lambda: choose_memories(run.files, ["@names"]),
        lambda: run.memories(collection="names"),
        lambda: read_changes(["@names"], [], run.files),
    ):
        with pytest.raises(UserError, match=r"called 'names'\. Choose one of: colours, dates"):
            ask()


def test_a_list_stands_for_its_memories_wherever_they_are_named(run):
    ffkv.collect(run, "few", "L1.1, L0.2")
    places = choose_memories(run.files, ["L0.0, @few", "L0.2"])
    assert [*zip(*places)] == [(0, 0), (0, 2), (1, 1)]
    assert read_changes(["L0.0"], ["@few:2"], run.files) == {(0, 0): 0.0, (0, 2): 2.0, (1, 1): 2.0}
    with pytest.raises(UserError, match=r"L0\.2 is changed twice"):
        read_changes(["@few", "L0.2"], [], run.files)
    ffkv.collect(run, "more", "@few, L0.1")
    assert run.memories(collection="more", layer=0)["name"].tolist() == ["L0.1", "L0.2"]
    from ffkv_machines.texts import choose_memories as chosen_for_machines

    assert chosen_for_machines(run, ["@few"], 1, 0) == [(0, 2), (1, 1)]


def test_a_search_says_what_is_kept_of_each_memory(run):
    ffkv.collect(run, "few", "L0.1, L0.0")
    ffkv.note(run, "L0.0", "often")
    append_event(run.files, "note", memories=["L0.0"], text="never", person="ben")
    found = run.memories(collection="@few").set_index("name")
    assert found.index.tolist() == ["L0.0", "L0.1"]
    me = ffkv.collections(run)["person"][0]
    assert found.loc["L0.0", "note"].split("; ") == sorted([f"{me}: often", "ben: never"])
    assert found["detects"].str.startswith("ends with").tolist() == [True, False]  # only key 0 was sampled
    assert found["added_by"].tolist() == [me, me]


WRITE = """
import sys, ffkv
results, name, memory, times = sys.argv[1:]
run = ffkv.open(results)
for number in range(int(times)):
    ffkv.collect(run, f"{name}-{number}", memory)
"""


def test_two_processes_append_at_once_and_nothing_is_lost(run, folder):
    memories, times = {"one": "L0.0", "two": "L1.0"}, 40
    writers = [
        subprocess.Popen(["python-code", WRITE, run.folder, *named, str(times)], env=with_forks(OFFLINE))
        for named in memories.items()
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    expected = {f"{name}-{number}": [memory] for name, memory in memories.items() for number in range(times)}
    assert content(read_kept(run.files)) == expected
    assert len([*folder.iterdir()]) == 2  # no file has two writers


def test_very_many_memories_come_into_several_lines(run, folder):
    append_event(run.files, "add", memories=["L0.0"] * 10_000 + ["L0.1"], collection="many")
    assert content(read_kept(run.files)) == {"many": ["L0.0", "L0.1"]}
    assert len(next(folder.iterdir()).read_text().splitlines()) == 2


def test_a_torn_line_is_left_out_and_told(run, folder, capsys):
    ffkv.collect(run, "a", "L0.0")
    (file,) = folder.iterdir()
    with file.open("a") as journal:
        journal.write('{"action": "add", "collec')
    ffkv.collect(run, "a", "L0.1")
    assert ffkv.collections(run)["memory"].tolist() == ["L0.0", "L0.1"]
    assert f"{file}, line 2, is not whole" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize(
    "more, message",
    [
        ({"identity": {"model_hash": "f" * 16}}, "line 1 belongs to another model"),
        ({"identity": {}}, "line 1 belongs to another model"),
        ({"memories": ("L7.0",)}, "line 1: There is no layer 7"),
        ({"memories": ("seven",)}, "line 1: memories.0: String should match pattern"),
    ],
)
def test_events_about_other_memories_are_refused_by_name(run, folder, more, message):
    folder.mkdir(parents=True)
    line = json.dumps(event("add", "a", ("L0.0",)).model_dump(mode="json", exclude_none=True) | more)
    (folder / "odd.jsonl").write_text(line + "\n")
    for ask in (ffkv.collections, lambda run: run.memories(collection="a"), lambda run: expand(run.files, ["@a"])):
        with pytest.raises(UserError, match=message) as refused:
            ask(run)
        assert str(folder / "odd.jsonl") in str(refused.value)
    assert len(run.memories()) == 5 and expand(run.files, ["L0.0"]) == ["L0.0"]  # who asks for no list is not refused


@pytest.mark.parametrize(
    "line",
    ['{"action": "add"}', '{"action": "erase", "collection": "a"}', "[]", '{"action": "note", "collection": "a"}'],
)
def test_a_line_of_another_form_is_refused(run, folder, line):
    folder.mkdir(parents=True)
    (folder / "odd.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"odd\.jsonl, line 1: "):
        ffkv.collections(run)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(run):
    run.files.annotations.parent.mkdir()
    run.files.annotations.parent.chmod(0o500)
    with pytest.raises(UserError, match="cannot be written"):
        ffkv.collect(run, "a", "L0.0")
    assert ffkv.collections(run).empty


def test_something_else_in_the_place_of_the_folder_is_told(run):
    run.files.annotations.parent.write_text("a file")
    with pytest.raises(UserError, match="small"):
        ffkv.collect(run, "a", "L0.0")


def test_an_account_without_a_name_has_a_number(run, monkeypatch):
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    ffkv.collect(run, "a", "L0.0")
    assert ffkv.collections(run)["person"].tolist() == [str(os.getuid())]


def test_the_commands_keep_and_print(run):
    def call(*arguments: str) -> str:
        answer = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert answer.exit_code == 0, answer.output
        return answer.output

    results = str(run.folder)
    assert call("collect", results, "dates", "L0.0-1", "L1") == "@dates has 4 memories.\n"
    assert call("collect", results, "dates", "L1", "L0.1", "--remove") == "@dates has 1 memory.\n"
    assert call("collect", results, "dates", "L0.1") == "@dates has 2 memories.\n"
    assert call("collect", results, "e\u0301", "@dates").endswith(" has 2 memories.\n")  # it is kept as one letter
    assert call("collect", results, "\u00e9", "@dates", "--remove") == "@\u00e9 has 0 memories.\n"
    ffkv.note(run, "L1.1", "=1+1\nsecond line")
    from io import StringIO

    printed = pd.read_csv(StringIO(call("collections", results)), keep_default_na=False)
    assert printed[["collection", "memory"]].to_numpy().tolist() == [["dates", "L0.0"], ["dates", "L0.1"], ["", "L1.1"]]
    assert printed["note"].tolist() == ["", "", "'=1+1\nsecond line"]  # no spreadsheet runs it


def test_a_behaviour_stands_for_its_candidates(run):
    run = ffkv.open(add_behaviours(run.folder))
    assert expand(run.files, ["@behaviour:agreement, L0.2"]) == ["L0.0", "L0.1", "L1.1", "L0.2"]
    places = choose_memories(run.files, ["@behaviour:lists"])
    assert [*zip(places.layer, places.memory)] == [(0, 1), (1, 0)]
    factors = read_changes(["@behaviour:lists"], ["L1.1:2"], run.files)
    assert factors == {(0, 1): 0.0, (1, 0): 0.0, (1, 1): 2.0}
    assert read_changes([], ["@behaviour:lists:0.5"], run.files) == {(0, 1): 0.5, (1, 0): 0.5}
    with pytest.raises(UserError, match="called 'agreeing'"):
        expand(run.files, ["@behaviour:agreeing"])
