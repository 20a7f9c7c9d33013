"""Journals: lines are appended, and a torn line loses nothing else."""

import threading

import pytest

from ffkv.base.errors import UserError
from ffkv.base.files.journal import append_entry, read_journal


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
    with pytest.raises(UserError, match=r"a\.jsonl cannot be read"):
        read_journal(tmp_path / "a.jsonl")
    with pytest.raises(UserError, match=r"a\.jsonl"):
        append_entry(tmp_path / "a.jsonl", {})
