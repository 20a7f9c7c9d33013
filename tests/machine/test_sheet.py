"""A machine judges sheets as people do."""

import json

from machine.stub import completion, label_of

from ffkv.apps.annotation.records import MarkedPattern, read_records
from ffkv.apps.annotation.sheets import Item, Sheet
from ffkv.apps.machine.step import judge

IDENTITY = {"model_hash": "a" * 16}
KEYS = Sheet(
    name="keys", kind="key", identity=IDENTITY, orders={},
    items={"bcdfghjk": Item(prefixes=("the press", "a press", "red press", "a tree")), "zzzzzzzz": Item(prefixes=("a", "b"))},
)  # fmt: skip
CHANGES = Sheet(
    name="changes", kind="change", identity=IDENTITY, orders={},
    items={"bcdfghjk": Item(text="The army of", before=" the", after=" a")},
)  # fmt: skip


def patterns(number, body):
    texts = [row["text"] for row in json.loads(body["messages"][1]["content"])["texts"]]
    label = label_of(texts[:3])
    found = [{"label": label, "kind": "shallow", "texts": [3, 1, 2]}] if label != "nothing" else []
    return 200, {}, completion(json.dumps({"patterns": found}))


def test_records_lie_beside_those_of_people(stub, asker, tmp_path):
    assert judge(KEYS, tmp_path, asker(stub(patterns).address), 3) == (2, 2)
    first, second = read_records(tmp_path, IDENTITY).latest
    about = (first.annotator, first.sheet, first.item, first.kind, first.done)
    assert about == ("machine:stub", "keys", "bcdfghjk", "key", True)
    assert first.patterns == (MarkedPattern(label="ends with the word press", kind="shallow", prefixes=(0, 1, 2)),)
    assert second.patterns == ()


def test_the_same_judgement_is_not_written_twice(stub, asker, tmp_path):
    judge(KEYS, tmp_path, asker(stub(patterns).address), 3)
    assert judge(KEYS, tmp_path, asker(stub(patterns).address), 3) == (2, 0)
    assert len(read_records(tmp_path, IDENTITY).history) == 2


def test_a_refused_item_has_no_record(stub, asker, tmp_path):
    def partly(number, body):
        return patterns(number, body) if "press" in body["messages"][1]["content"] else (200, {}, completion("none"))

    assert judge(KEYS, tmp_path, asker(stub(partly).address), 3) == (1, 1)
    assert [record.item for record in read_records(tmp_path, IDENTITY).latest] == ["bcdfghjk"]


def test_changes_are_related_or_not(stub, asker, tmp_path):
    related = lambda number, body: (200, {}, completion('{"related": "unsure"}'))  # noqa: E731
    assert judge(CHANGES, tmp_path, asker(stub(related).address), 3) == (1, 1)
    (record,) = read_records(tmp_path, IDENTITY).latest
    assert (record.kind, record.related) == ("change", "unsure")
