"""Records: nothing that was appended is lost, whatever happens beside it."""

import json
import os

import pytest
from pydantic import ValidationError

from ffkv.base.errors import UserError
from ffkv.base.files.journal import append_entry
from ffkv_annotation.records import FOLDER, MarkedPattern, Record, append_record, read_records

IDENTITY = {"model_hash": "a" * 16, "corpus_hash": "c" * 16}


def record(item="aaaaaa", annotator="person:anna", **more) -> Record:
    about = {"annotator": annotator, "sheet": "first", "item": item, "identity": IDENTITY, "kind": "key"}
    return Record(**about | more)


def labelled(label: str, **more) -> Record:
    return record(patterns=(MarkedPattern(label=label, kind="shallow", prefixes=(2, 0, 7)),), **more)


def test_a_record_comes_back_as_it_was_written(tmp_path):
    written = [labelled("ends with “é” 🦊"), record("bbbbbb", kind="change", related="unsure")]
    written += [record("cccccc", "machine:meta/Llama 3")]
    assert read_records(tmp_path) == ([], [], [])  # no records is no error
    for one in written:
        append_record(tmp_path, one)
    assert read_records(tmp_path) == (written, written, [])
    assert written[0].patterns[0].prefixes == (0, 2, 7)


def test_the_latest_record_of_annotator_and_item_wins_and_history_stays(tmp_path):
    first, other, last = labelled("a"), labelled("b", annotator="person:bert"), labelled("c")
    for one in (first, other, last):
        append_record(tmp_path, one)
    records = read_records(tmp_path)
    assert records.latest == [last, other]
    assert records.history == [first, other, last]


def test_between_files_the_time_decides(tmp_path):
    early = append_record(tmp_path, labelled("early", time="2020-01-01T00:00:00.000000Z"))
    late = labelled("late", time="2030-01-01T00:00:00.000000Z")  # of another host, which had not read the other one
    append_entry(early.with_name("another-host.jsonl"), late.model_dump(mode="json", exclude_none=True))
    assert read_records(tmp_path).latest[0].patterns[0].label == "late"


def test_annotators_with_similar_names_have_files_of_their_own(tmp_path):
    paths = {append_record(tmp_path, record(annotator=name)) for name in ("person:a b", "person:a/b", "person:a_b")}
    assert len(paths) == 3 and all(path.parent == tmp_path / FOLDER for path in paths)


def test_records_of_another_model_or_that_name_none_are_refused(tmp_path):
    append_record(tmp_path, record())
    read_records(tmp_path, IDENTITY)
    with pytest.raises(UserError, match="another model"):
        read_records(tmp_path, IDENTITY | {"model_hash": "b" * 16})
    append_record(tmp_path, record(identity={}))
    with pytest.raises(UserError, match="another model"):
        read_records(tmp_path, IDENTITY)


def test_nobody_speaks_for_the_statistical_tests():
    with pytest.raises(ValidationError, match="annotator"):
        record(annotator="tests")


PATTERNS = [{"label": "x" * 501, "kind": "shallow"}, {"kind": "deep"}, {"prefixes": [1]}]
PATTERNS += [{"prefixes": wrong, "kind": "shallow"} for wrong in ([1, 1], [-1])]
OTHER_FORMS = [
    *({"annotator": "anna"}, {"annotator": "person:a\nb"}, {"sheet": "../up"}, {"item": "A b"}, {"kind": "value"}),
    *({"related": "true"}, {"kind": "change"}, {"time": "yesterday"}, {"layer": 3}),
    *({"patterns": [pattern]} for pattern in PATTERNS),
]


def test_a_record_of_another_form_is_refused(subtests, tmp_path):
    for change in OTHER_FORMS:
        with subtests.test(change=change):
            good = record().model_dump(mode="json")
            path = append_record(tmp_path, record())
            path.write_text(json.dumps({**good, **change}) + "\n")
            with pytest.raises(UserError, match="line 1"):
                read_records(tmp_path)


def test_what_was_appended_is_one_line_per_record(tmp_path):
    path = append_record(tmp_path, labelled("two\nlines\u2028here"))
    assert path.read_bytes().count(b"\n") == 1
    assert read_records(tmp_path).latest[0].patterns[0].label == "two lines here"
    assert str(os.getpid()) in path.name
