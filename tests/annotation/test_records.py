"""Records: nothing that was appended is lost, whatever happens beside it."""

import json
import multiprocessing
import os
import threading

import pytest
from pydantic import ValidationError

from ffkv.apps.annotation.records import FOLDER, MarkedPattern, Record, append_record, read_records
from ffkv.base.errors import UserError

IDENTITY = {"model_hash": "a" * 16, "corpus_hash": "c" * 16}


def record(item="aaaaaa", annotator="person:anna", **more) -> Record:
    return Record(
        **{"annotator": annotator, "sheet": "first", "item": item, "identity": IDENTITY, "kind": "key"} | more
    )


def labelled(label: str, **more) -> Record:
    return record(patterns=(MarkedPattern(label=label, kind="shallow", prefixes=(2, 0, 7)),), **more)


def test_a_record_comes_back_as_it_was_written(tmp_path):
    written = [
        labelled("ends with “é” 🦊"),
        record("bbbbbb", kind="change", related="unsure"),
        record("cccccc", "machine:meta/Llama 3"),
    ]
    for one in written:
        append_record(tmp_path, one)
    assert read_records(tmp_path).history == written
    assert read_records(tmp_path).latest == written
    assert written[0].patterns[0].prefixes == (0, 2, 7)


def test_the_latest_record_of_annotator_and_item_wins_and_history_stays(tmp_path):
    first, other, last = labelled("a"), labelled("b", annotator="person:bert"), labelled("c")
    for one in (first, other, last):
        append_record(tmp_path, one)
    records = read_records(tmp_path)
    assert records.latest == [last, other]
    assert records.history == [first, other, last]


def test_within_a_file_the_last_line_wins_even_if_the_clock_went_back(tmp_path):
    append_record(tmp_path, labelled("first", time="2030-01-01T00:00:00.000000Z"))
    append_record(tmp_path, labelled("second", time="2020-01-01T00:00:00.000000Z"))
    assert read_records(tmp_path).latest[0].patterns[0].label == "second"


def test_between_files_the_time_decides(tmp_path):
    late = append_record(tmp_path, labelled("late", time="2030-01-01T00:00:00.000000Z"))
    late.rename(late.with_name("another-host.jsonl"))
    append_record(tmp_path, labelled("early", time="2020-01-01T00:00:00.000000Z"))
    assert read_records(tmp_path).latest[0].patterns[0].label == "late"


@pytest.mark.parametrize("kept", [1, 40, 200])
def test_a_torn_last_line_is_left_out_and_told_and_the_next_record_is_whole(tmp_path, kept):
    append_record(tmp_path, labelled("kept"))
    path = append_record(tmp_path, labelled("torn", item="bbbbbb"))
    whole, torn, _ = path.read_bytes().split(b"\n")
    path.write_bytes(whole + b"\n" + torn[:kept])
    records = read_records(tmp_path)
    assert [one.patterns[0].label for one in records.latest] == ["kept"]
    assert len(records.torn) == 1 and "line 2" in records.torn[0]
    append_record(tmp_path, labelled("next", item="cccccc"))
    assert [one.patterns[0].label for one in read_records(tmp_path).latest] == ["kept", "next"]
    assert len(read_records(tmp_path).torn) == 1


def write_many(folder, annotator, count):
    for number in range(count):
        append_record(folder, record(f"item{number:04d}", annotator))


def test_processes_that_write_at_once_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=write_many, args=(tmp_path, name, 150)) for name in ("person:a", "person:a", "person:b")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert all(writer.exitcode == 0 for writer in writers)
    records = read_records(tmp_path)
    assert len(records.history) == 450 and len(records.latest) == 300 and not records.torn
    assert len(list((tmp_path / FOLDER).iterdir())) == 3


def test_threads_that_write_at_once_lose_nothing(tmp_path):
    threads = [threading.Thread(target=write_many, args=(tmp_path, "person:a", 50)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_records(tmp_path).history) == 200


def test_annotators_with_similar_names_have_files_of_their_own(tmp_path):
    paths = {append_record(tmp_path, record(annotator=name)) for name in ("person:a b", "person:a/b", "person:a_b")}
    assert len(paths) == 3 and all(path.parent == tmp_path / FOLDER for path in paths)


def test_no_records_is_no_error(tmp_path):
    assert read_records(tmp_path / "none") == ([], [], [])


def test_records_of_another_model_are_refused(tmp_path):
    append_record(tmp_path, record())
    read_records(tmp_path, IDENTITY)
    with pytest.raises(UserError, match="another model"):
        read_records(tmp_path, IDENTITY | {"model_hash": "b" * 16})


def test_records_that_name_no_model_are_refused(tmp_path):
    append_record(tmp_path, record(identity={}))
    with pytest.raises(UserError, match="another model"):
        read_records(tmp_path, IDENTITY)


def test_nobody_speaks_for_the_statistical_tests():
    with pytest.raises(ValidationError, match="annotator"):
        record(annotator="tests")


OTHER_FORMS = [
    {"annotator": "anna"},
    {"annotator": "person:a\nb"},
    {"sheet": "../up"},
    {"item": "A b"},
    {"kind": "value"},
    {"related": "true"},
    {"kind": "change"},
    {"patterns": [{"label": "x" * 501, "kind": "shallow"}]},
    {"patterns": [{"kind": "deep"}]},
    {"patterns": [{"prefixes": [1, 1], "kind": "shallow"}]},
    {"patterns": [{"prefixes": [1]}]},
    {"patterns": [{"prefixes": [-1], "kind": "shallow"}]},
    {"time": "yesterday"},
    {"layer": 3},
]


def test_a_record_of_another_form_is_refused(subtests, tmp_path):
    for change in OTHER_FORMS:
        with subtests.test(change=change):
            good = record().model_dump(mode="json")
            path = append_record(tmp_path, record())
            path.write_text(json.dumps({**good, **change}) + "\n")
            with pytest.raises(UserError, match="line 1"):
                read_records(tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / FOLDER).write_text("a file where the folder should be")
    with pytest.raises(UserError, match="cannot be"):
        append_record(tmp_path, record())


def test_what_was_appended_is_one_line_per_record(tmp_path):
    path = append_record(tmp_path, labelled("two\nlines\u2028here"))
    assert path.read_bytes().count(b"\n") == 1
    assert read_records(tmp_path).latest[0].patterns[0].label == "two lines here"
    assert str(os.getpid()) in path.name
