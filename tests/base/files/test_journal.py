"""Journals: lines are appended, and a torn line loses nothing else."""

import subprocess
import sys
import threading

import pytest
from support import refused

from ffkv.base.files.journal import OWN, Entry, append_entry, append_shared, read_journal, read_shared


def test_what_was_appended_is_read_in_its_order(tmp_path):
    entries = [{"text": "né\n😀"}, {"text": "\ud800 alone"}, {"n": [1, None]}]
    for entry in entries:
        append_entry(tmp_path / "deep/a.jsonl", entry)
    assert read_journal(tmp_path / "deep/a.jsonl") == ([*enumerate(entries, 1)], [])
    assert "né" in (tmp_path / "deep/a.jsonl").read_text(errors="replace")


def test_a_journal_that_was_never_written_is_empty(tmp_path):
    assert read_journal(tmp_path / "a.jsonl") == ([], [])


@pytest.mark.parametrize("torn", [b'{"n": 1', b"\xff\xfe", b'{"n": "\xc3'])
def test_a_torn_line_is_told_and_the_next_entry_has_its_own_line(tmp_path, torn):
    path = tmp_path / "a.jsonl"
    append_entry(path, {"n": 0})
    path.write_bytes(path.read_bytes() + torn)
    append_entry(path, {"n": 2})
    assert read_journal(path) == ([(1, {"n": 0}), (3, {"n": 2})], [2])


def test_lines_of_zeros_are_passed_over(tmp_path):
    """NFS shows them where a write of another host has not arrived."""
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 0}\n' + bytes(100))
    assert read_journal(tmp_path / "a.jsonl") == ([(1, {"n": 0})], [])


def test_threads_that_append_at_once_lose_nothing(tmp_path):
    def write(number):
        for place in range(25):
            append_entry(tmp_path / "a.jsonl", {"n": [number, place]})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    found = read_journal(tmp_path / "a.jsonl")
    assert sorted(entry["n"] for _, entry in found.entries) == [[n, place] for n in range(4) for place in range(25)]
    assert found.torn == []


def test_a_folder_in_its_place_is_named(tmp_path):
    (tmp_path / "a.jsonl").mkdir()
    with refused(r"a\.jsonl cannot be read"):
        read_journal(tmp_path / "a.jsonl")
    with refused(r"a\.jsonl"):
        append_entry(tmp_path / "a.jsonl", {})


class Said(Entry):
    words: str


def said(words: str, time: str = "") -> Said:
    return Said(identity={}, words=words, **({"time": time} if time else {}))


@pytest.mark.parametrize("year", [1990, 2343])
def test_an_entry_comes_behind_all_that_was_there_whatever_the_clocks_say(tmp_path, year):
    """Another host, whose clock is wrong, has written; nothing of it was read by this process before."""
    other = tmp_path / "ada.00000000.elsewhere.1.jsonl"
    append_entry(other, said("first", f"{year}-01-01T00:00:00.000000Z").model_dump())
    append_shared(tmp_path, "ada", said("second"))
    append_entry(other, said("third", f"{year + 1}-01-01T00:00:00.000000Z").model_dump())
    found = [entry.words for _, entry in read_shared(tmp_path, Said)[0]]
    assert found == (["first", "second", "third"] if year > 2000 else ["first", "third", "second"])
    append_shared(tmp_path, "ben", said("fourth"))  # behind what was read, "third" included
    assert [entry.words for _, entry in read_shared(tmp_path, Said)[0]][-1] == "fourth"


def test_entries_of_one_process_keep_their_order_though_its_clock_goes_back(tmp_path):
    for number in range(20):
        append_shared(tmp_path, f"writer {number % 3}", said(str(number), f"20{40 - number}-01-01T00:00:00.000000Z"))
    assert [entry.words for _, entry in read_shared(tmp_path, Said)[0]] == [str(number) for number in range(20)]


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59.999999Z", "2026-99-99T00:00:00.000000Z"])
def test_a_time_behind_which_nothing_comes_is_named_and_blocks_nothing_once_it_is_away(tmp_path, time):
    wrong = tmp_path / "bob.jsonl"
    append_entry(wrong, said("last").model_dump() | {"time": time})
    for use in (lambda: append_shared(tmp_path, "ada", said("more")), lambda: read_shared(tmp_path, Said)):
        with refused(r"bob\.jsonl, line 1: time: .*Correct the line, or move the file away"):
            use()
    wrong.unlink()
    append_shared(tmp_path, "ada", said("more"))
    assert [entry.words for _, entry in read_shared(tmp_path, Said)[0]] == ["more"]


@pytest.mark.parametrize("there", [True, False])
def test_a_journal_is_not_written_through_a_link(tmp_path, there):
    outside, link = tmp_path / "outside", tmp_path / "folder" / "ada.jsonl"
    link.parent.mkdir()
    if there:
        outside.write_text("a file of the user\n")
    link.symlink_to(outside)
    with refused(r"ada\.jsonl cannot be written"):
        append_entry(link, {})
    assert not there or outside.read_text() == "a file of the user\n"
    assert outside.exists() == there


def test_the_name_of_a_new_journal_cannot_be_guessed(tmp_path):
    path = append_shared(tmp_path, "ada", said("x"))
    script = "import sys; from ffkv.base.files import journal; print(journal.OWN)"
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert OWN in path.name
    assert len(OWN) == 8
    assert other != OWN
