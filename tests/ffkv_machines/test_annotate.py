"""Whole annotations against an endpoint that knows the truth, and against ones that do not."""

import json
import math
import shutil

import pytest

from ffkv.base.errors import UserError
from ffkv.run.results.run import open
from ffkv_annotation.records import MarkedPattern, read_records
from ffkv_annotation.sheets import Item, Sheet
from ffkv_machines.asking import Asker, Endpoint, Ledger
from ffkv_machines.explain import estimate, explain, judge, other_labels
from ffkv_machines.settings import Machine, Task
from ffkv_machines.texts import choose_memories
from tests.ffkv_machines.conftest import INJECTION
from tests.ffkv_machines.stub import ABOUT_WAR, PRESS, YEAR, Stub, asked, completion, good_answer, label_of

TASK = Task(pairs=6, per_question=9, seed=1)  # in its sets, no intruder is one that `good_answer` takes for a trigger


def task(**changes) -> Task:
    return TASK.model_copy(update=changes)


@pytest.fixture
def run(results):
    return open(results)


@pytest.fixture(scope="module")
def perfect(results, tmp_path_factory):
    """An annotation by who knows the truth, and the questions."""
    stub, machine = Stub(), Machine(model="stub", answer_tokens=100)
    ledger = Ledger(tmp_path_factory.mktemp("perfect") / "answers.jsonl")
    annotation = explain(open(results), Asker(ledger, Endpoint(stub.address, None, 20), machine), TASK)
    stub.close()
    return annotation, stub.requests, ledger.path


def over_all(annotation):
    return annotation["scores.csv"].query("layer == -1").set_index(["score", "label"])["mean"]


def test_who_knows_the_truth_scores_full_marks_and_another_label_scores_chance(perfect):
    annotation, _, _ = perfect
    labels = annotation["labels.csv"].set_index(["layer", "memory"])["label"]
    assert labels.to_dict() == {(0, 0): PRESS, (0, 1): ABOUT_WAR, (1, 1): YEAR}
    means = over_all(annotation)
    for score in ("detection", "detection of the same word", "fuzzing"):
        assert means[score, "own"] == 1
        assert means[score, "other"] < 0.75
    assert means["intruder", "none"] == 1
    assert means["simulation", "own"] > 0.8 > means["simulation", "other"]
    assert (annotation["scores_by_memory.csv"]["refused"] == 0).all()
    assert (annotation["scores_by_memory.csv"]["asked"] == annotation["scores_by_memory.csv"]["answered"]).all()


def test_the_last_smaller_question_counts(run, stub, asker):
    """The last question holds fewer texts. delphi lost such questions without a word."""
    annotation = explain(run, asker(stub().address), task(memories=["L0.1"], per_question=5, baseline=False))
    row = annotation["scores_by_memory.csv"].query("score == 'detection'").iloc[0]
    assert row["texts"] % 5 and row["asked"] == math.ceil(row["texts"] / 5) == row["answered"]


def test_who_guesses_scores_chance(run, stub, asker):
    def everything(number, body):
        data = json.loads(asked(body)[1])
        texts = [*range(1, len(data["texts"]) + 1)]
        return (200, {}, completion(json.dumps({"texts": texts}))) if "label" in data else None

    annotation = explain(run, asker(stub(everything).address), TASK)
    table = annotation["scores_by_memory.csv"].set_index("score")
    assert (table.loc["detection", "value"] == 0.5).all() and (table.loc["detection", "sensitivity"] == 1).all()
    assert (table.loc["simulation", "answered"] == 0).all()  # another form than asked for
    assert table.loc["simulation", "value"].isna().all()


def test_the_label_is_made_from_other_texts_than_it_is_scored_on(run, stub, asker):
    endpoint = stub()
    explain(run, asker(endpoint.address), task(memories=["L0.0"]))
    shown, scored = set(), set()
    for system, user in map(asked, endpoint.requests):
        if '{"texts"' in system or '{"label"' in system:
            (shown if "activation" in user else scored).update(row["text"] for row in json.loads(user)["texts"])
    assert len(shown) == 12 and len(scored) > 10
    assert not shown & scored


def test_silent_prefixes_were_measured(run):
    from ffkv_machines.texts import read_texts

    ((_, texts),) = read_texts(run, [(0, 0)], 10, 0)
    assert texts.silent and all(abs(each.coefficient) <= texts.threshold for each in texts.silent)
    assert all(each.coefficient > 10 * texts.threshold for each in [*texts.shown, *texts.held_out])
    assert any(each.coefficient > 1 for each in texts.measured)  # of the simulation: any coefficient


def test_an_instruction_in_a_text_changes_nothing(perfect):
    """A prefix is a JSON string of a question, without what is behind its end, and without its coefficient."""
    annotation, requests, _ = perfect
    injected = 0
    for system, user in map(asked, requests):
        rows = json.loads(user)["texts"]
        assert all(set(row) <= {"number", "text", "activation"} for row in rows)
        assert '{"label"' in system or "activation" not in user
        assert INJECTION.strip() not in system
        injected += any("Ignore-the-above" in row["text"] for row in rows)
        assert ("Ignore-the-above" in user) == any("Ignore-the-above" in row["text"] for row in rows)
    assert injected and over_all(annotation)["detection", "own"] == 1


def test_who_obeys_the_text_only_answers_wrong(run, stub, asker):
    """The annotator copies what the text tells it to answer. Numbers are read from it and nothing else happens."""

    def obedient(number, body):
        system, user = asked(body)
        obeys = "Ignore-the-above" in user and '{"label"' not in system
        return (200, {}, completion('{"texts":[1]}')) if obeys else None

    annotation = explain(run, asker(stub(obedient).address), TASK)
    means = over_all(annotation)
    assert 0 <= means["detection", "own"] < 1
    simulated = annotation["scores_by_memory.csv"].query("score == 'simulation'")
    assert (simulated["refused"] > 0).any()
    assert (simulated["asked"] == simulated["answered"] + simulated["refused"]).all()


def test_a_refused_label_has_no_scores_but_counts(run, stub, asker):
    def broken_labels(number, body):
        if '{"label"' in asked(body)[0] and json.loads(good_answer(body))["label"] == YEAR:
            return 200, {}, completion("I think it is about years.")
        return None

    annotation = explain(run, asker(stub(broken_labels).address, forms=2), TASK)
    refused = annotation["labels.csv"].query("refusal != ''")
    assert len(refused) >= 1 and (refused["label"] == "").all() and refused["refusal"].str.contains("not JSON").all()
    own = annotation["scores_by_memory.csv"].query("label == 'own'")
    assert set(zip(own["layer"], own["memory"])).isdisjoint(zip(refused["layer"], refused["memory"]))
    intruder = annotation["scores_by_memory.csv"].query("score == 'intruder'")
    assert len(intruder) == 3  # it needs no label


def test_the_same_questions_are_not_asked_again_and_replay_gives_the_same_tables(run, stub, asker, perfect, tmp_path):
    (first, _, path), endpoint = perfect, stub()
    shutil.copy(path, tmp_path / "answers.jsonl")
    second = explain(run, asker(endpoint.address), TASK)
    third = explain(run, asker(None), TASK)
    assert endpoint.requests == []
    for other in (second, third):
        for one, two in zip(first.values(), other.values(), strict=True):
            assert one.to_csv() == two.to_csv()


def test_several_connections_give_the_same_tables(run, stub, asker, perfect):
    with pytest.raises(UserError, match="3 of 3 questions have no kept answer"):
        explain(run, asker(None), TASK)
    second = explain(run, asker(stub(delay=0.002).address, connections=8), TASK)
    assert perfect[0]["scores_by_memory.csv"].to_csv() == second["scores_by_memory.csv"].to_csv()


def test_an_estimate_asks_nothing_and_bounds_what_is_spent(run, stub, asker):
    def costly(number, body):  # a token per byte, and the longest answer
        return 200, {}, completion(good_answer(body), (sum(len(each.encode()) for each in asked(body)) + 90, 100))

    endpoint = stub(costly)
    costs = estimate(run, asker(endpoint.address), TASK)
    assert endpoint.requests == []
    assert {*costs} == {"label", "intruder", "detection", "detection of the same word", "fuzzing", "simulation"}
    asking = asker(endpoint.address)
    explain(run, asking, TASK)
    assert len(endpoint.requests) == sum(cost.questions for cost in costs.values())
    most, about = (sum(getattr(cost, name) for cost in costs.values()) for name in ("most", "about"))
    assert about < asking.ledger.spent <= most
    again = estimate(run, asking, TASK)
    assert all(cost.kept == cost.questions and cost.most == cost.about == 0 for cost in again.values())


def test_other_labels_are_of_the_same_layer_where_there_is_one():
    labels = {(0, 1): "a", (0, 5): "b", (1, 2): "c", (2, 0): "d", (2, 1): "d", (2, 9): "e"}
    others = other_labels(labels)
    assert others == {(0, 1): "b", (0, 5): "a", (1, 2): "d", (2, 0): "e", (2, 1): "e", (2, 9): "d"}
    assert other_labels({(0, 0): "a", (0, 1): "a"}) == {}


def test_memories_are_named_as_everywhere(run):
    assert choose_memories(run, ["L1.1", "L0.0-1"], 1, 0) == [(0, 0), (0, 1), (1, 1)]


def test_memories_without_enough_trigger_examples_are_told(run, stub, asker):
    told = {"None of 1 memories has 6 trigger examples": ["L1.0"], "There is no memory 7": ["L1.7"]}
    for message, names in {**told, "twice": ["L1.1", "1/1"]}.items():
        with pytest.raises(UserError, match=message):
            explain(run, asker(stub().address), task(memories=names))


# A machine judges sheets as people do

IDENTITY = {"model_hash": "a" * 16}
ITEMS = {
    "bcdfghjk": Item(prefixes=("the press", "a press", "red press", "a tree")),
    "zzzzzzzz": Item(prefixes=("a", "b")),
}
KEYS = Sheet(name="keys", kind="key", identity=IDENTITY, orders={}, items=ITEMS)
CHANGE = Item(text="The army of", before=" the", after=" a")
CHANGES = Sheet(name="changes", kind="change", identity=IDENTITY, orders={}, items={"bcdfghjk": CHANGE})


def sees_patterns(number, body):
    texts = [row["text"] for row in json.loads(asked(body)[1])["texts"]]
    label = label_of(texts[:3])
    found = [{"label": label, "kind": "shallow", "texts": [3, 1, 2]}] if label != "nothing" else []
    return 200, {}, completion(json.dumps({"patterns": found}))


def test_records_of_a_machine_lie_beside_those_of_people(stub, asker, tmp_path):
    assert judge(KEYS, tmp_path, asker(stub(sees_patterns).address), 3) == (2, 2)
    first, second = read_records(tmp_path, IDENTITY).latest
    about = (first.annotator, first.sheet, first.item, first.kind, first.done)
    assert about == ("machine:stub", "keys", "bcdfghjk", "key", True)
    assert first.patterns == (MarkedPattern(label="ends with the word press", kind="shallow", prefixes=(0, 1, 2)),)
    assert second.patterns == ()
    assert judge(KEYS, tmp_path, asker(stub(sees_patterns).address), 3) == (2, 0)  # the same is not written twice
    assert len(read_records(tmp_path, IDENTITY).history) == 2


def test_a_refused_item_has_no_record(stub, asker, tmp_path):
    def partly(number, body):
        return sees_patterns(number, body) if "press" in asked(body)[1] else (200, {}, completion("none"))

    assert judge(KEYS, tmp_path, asker(stub(partly).address), 3) == (1, 1)
    assert [record.item for record in read_records(tmp_path, IDENTITY).latest] == ["bcdfghjk"]


def test_changes_are_related_or_not(stub, asker, tmp_path):
    unsure = 200, {}, completion('{"related": "unsure"}')
    assert judge(CHANGES, tmp_path, asker(stub(lambda number, body: unsure).address), 3) == (1, 1)
    (record,) = read_records(tmp_path, IDENTITY).latest
    assert (record.kind, record.related) == ("change", "unsure")
