"""Whole annotations against an endpoint that knows the truth, and against ones that do not."""

import json
import math
import shutil

import pytest
from machine.conftest import INJECTION
from machine.stub import ABOUT_WAR, PRESS, YEAR, Stub, completion, good_answer

from ffkv.apps.machine.asking import Asker
from ffkv.apps.machine.endpoint import Endpoint
from ffkv.apps.machine.explain import estimate, explain, other_labels
from ffkv.apps.machine.ledger import Ledger
from ffkv.apps.machine.settings import Machine, Task
from ffkv.base.errors import UserError
from ffkv.run.results.run import open

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
    return annotation.by_layer.query("layer == -1").set_index(["score", "label"])["mean"]


def test_who_knows_the_truth_scores_full_marks_and_another_label_scores_chance(perfect):
    annotation, _, _ = perfect
    labels = annotation.labels.set_index(["layer", "memory"])["label"]
    assert labels.to_dict() == {(0, 0): PRESS, (0, 1): ABOUT_WAR, (1, 1): YEAR}
    means = over_all(annotation)
    for score in ("detection", "detection of the same word", "fuzzing"):
        assert means[score, "own"] == 1
        assert means[score, "other"] < 0.75
    assert means["intruder", "none"] == 1
    assert means["simulation", "own"] > 0.8 > means["simulation", "other"]
    assert (annotation.by_memory["refused"] == 0).all()
    assert (annotation.by_memory["asked"] == annotation.by_memory["answered"]).all()


def test_the_last_smaller_question_counts(run, stub, asker):
    """The last question holds fewer texts. delphi lost such questions without a word."""
    annotation = explain(run, asker(stub().address), task(memories=["L0.1"], per_question=5, baseline=False))
    row = annotation.by_memory.query("score == 'detection'").iloc[0]
    assert row["texts"] % 5 and row["asked"] == math.ceil(row["texts"] / 5) == row["answered"]


def test_who_guesses_scores_chance(run, stub, asker):
    def everything(number, body):
        data = json.loads(body["messages"][1]["content"])
        if "label" not in data:
            return None
        texts = len(data["texts"])
        return 200, {}, completion(json.dumps({"texts": [*range(1, texts + 1)]}))

    annotation = explain(run, asker(stub(everything).address), TASK)
    table = annotation.by_memory.set_index("score")
    assert (table.loc["detection", "value"] == 0.5).all() and (table.loc["detection", "sensitivity"] == 1).all()
    assert (table.loc["simulation", "answered"] == 0).all()  # another form than asked for
    assert table.loc["simulation", "value"].isna().all()


def test_the_label_is_made_from_other_texts_than_it_is_scored_on(run, stub, asker):
    endpoint = stub()
    explain(run, asker(endpoint.address), task(memories=["L0.0"]))
    questions = [
        ("activation" in body["messages"][1]["content"], json.loads(body["messages"][1]["content"]))
        for body in endpoint.requests
        if '{"texts"' in body["messages"][0]["content"] or '{"label"' in body["messages"][0]["content"]
    ]
    shown, scored = (
        {row["text"] for first, data in questions if first == which for row in data["texts"]} for which in (True, False)
    )
    assert len(shown) == 12 and len(scored) > 10
    assert not shown & scored


def test_prefixes_show_nothing_behind_their_end_and_no_coefficient(perfect):
    for body in perfect[1]:
        for row in json.loads(body["messages"][1]["content"])["texts"]:
            assert set(row) <= {"number", "text", "activation"}
        if '{"label"' not in body["messages"][0]["content"]:
            assert "activation" not in body["messages"][1]["content"]


def test_silent_prefixes_were_measured(run):
    from ffkv.apps.machine.material import read_texts

    ((_, texts),) = read_texts(run, [(0, 0)], 10, 0)
    assert texts.silent and all(abs(each.coefficient) <= texts.threshold for each in texts.silent)
    assert all(each.coefficient > 10 * texts.threshold for each in [*texts.shown, *texts.held_out])
    assert any(each.coefficient > 1 for each in texts.measured)  # of the simulation: any coefficient


def test_an_instruction_in_a_text_changes_nothing(perfect):
    annotation, requests, _ = perfect
    injected = [body for body in requests if INJECTION.split("-")[0].strip() in body["messages"][1]["content"]]
    assert injected
    for body in injected:
        assert INJECTION.strip() not in body["messages"][0]["content"]  # it stands in a JSON string and nowhere else
        texts = [row["text"] for row in json.loads(body["messages"][1]["content"])["texts"]]
        assert any("Ignore-the-above" in text for text in texts)
    assert over_all(annotation)["detection", "own"] == 1


def test_who_obeys_the_text_only_answers_wrong(run, stub, asker):
    """The annotator copies what the text tells it to answer. Numbers are read from it and nothing else happens."""

    def obedient(number, body):
        if "Ignore-the-above" in body["messages"][1]["content"] and '{"label"' not in body["messages"][0]["content"]:
            return 200, {}, completion('{"texts":[1]}')
        return None

    annotation = explain(run, asker(stub(obedient).address), TASK)
    means = over_all(annotation)
    assert 0 <= means["detection", "own"] < 1
    simulated = annotation.by_memory.query("score == 'simulation'")
    assert (simulated["refused"] > 0).any() and (
        simulated["asked"] == simulated["answered"] + simulated["refused"]
    ).all()


def test_a_refused_label_has_no_scores_but_counts(run, stub, asker):
    def broken_labels(number, body):
        if '{"label"' in body["messages"][0]["content"] and json.loads(good_answer(body))["label"] == YEAR:
            return 200, {}, completion("I think it is about years.")
        return None

    annotation = explain(run, asker(stub(broken_labels).address, forms=2), TASK)
    refused = annotation.labels.query("refusal != ''")
    assert len(refused) >= 1 and (refused["label"] == "").all() and refused["refusal"].str.contains("not JSON").all()
    own = annotation.by_memory.query("label == 'own'")
    assert set(zip(own["layer"], own["memory"])).isdisjoint(zip(refused["layer"], refused["memory"]))
    intruder = annotation.by_memory.query("score == 'intruder'")
    assert len(intruder) == 3  # it needs no label


def test_the_same_questions_are_not_asked_again_and_replay_gives_the_same_tables(run, stub, asker, perfect, tmp_path):
    (first, _, path), endpoint = perfect, stub()
    shutil.copy(path, tmp_path / "answers.jsonl")
    second = explain(run, asker(endpoint.address), TASK)
    third = explain(run, asker(None), TASK)
    assert endpoint.requests == []
    for other in (second, third):
        for one, two in zip(first, other, strict=True):
            assert one.to_csv() == two.to_csv()


def test_replay_says_what_was_never_asked(run, asker):
    with pytest.raises(UserError, match="3 of 3 questions have no kept answer"):
        explain(run, asker(None), TASK)


def test_several_connections_give_the_same_tables(run, stub, asker, perfect):
    second = explain(run, asker(stub(delay=0.002).address, connections=8), TASK)
    assert perfect[0].by_memory.to_csv() == second.by_memory.to_csv()


def test_an_estimate_asks_nothing_and_bounds_what_is_spent(run, stub, asker):
    def costly(number, body):  # a token per byte, and the longest answer
        size = sum(len(message["content"].encode()) for message in body["messages"])
        return 200, {}, completion(good_answer(body), (size + 90, 100))

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


def test_memories_without_enough_trigger_examples_are_told(run, stub, asker):
    with pytest.raises(UserError, match="None of 1 memories has 6 trigger examples"):
        explain(run, asker(stub().address), task(memories=["L1.0"]))
    with pytest.raises(UserError, match="There is no memory 7"):
        explain(run, asker(stub().address), task(memories=["L1.7"]))
    with pytest.raises(UserError, match="twice"):
        explain(run, asker(stub().address), task(memories=["L1.1", "1/1"]))
