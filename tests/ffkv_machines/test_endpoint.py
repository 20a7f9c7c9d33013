"""An endpoint that fails, limits, lies or tells secrets."""

import contextlib
import gzip
import json
import logging
import resource
import socket
import threading
import time
from email.utils import formatdate
from itertools import pairwise

import pytest

from ffkv.base.errors import UserError
from ffkv_machines import asking
from ffkv_machines.asking import Again, Endpoint, Ledger, chat_address, read_key, request_key, retry_after
from ffkv_machines.questions import Question, read_label
from tests.ffkv_machines.stub import completion

KEY = "sk-very-secret-0123456789"
LABEL = completion('{"label": "x"}')
BOUND = len("question 0") + 100 + 50  # tokens that a question takes at most


def question(number: int = 0) -> Question:
    return Question("label", [{"role": "user", "content": f"question {number}"}], read_label)


def post(endpoint: Endpoint):
    return endpoint.loop.run_until_complete(endpoint.post({"model": "m", "messages": []}))


@pytest.fixture
def ask(asker):
    """Asks questions at an address; returns what became of them, and the asker."""

    def ask(address: str, questions=1, **options):
        made = asker(address, **{"answer_tokens": 50, "timeout": 5, **options})
        return made.ask([question(number) for number in range(questions)], "questions"), made

    return ask


def at_first(count: int, *answer):
    """The behaviour of an endpoint that answers the first requests otherwise, and notes the times of all."""
    times: list[float] = []

    def behave(number, body):
        times.append(time.monotonic())
        return answer if number < count else (200, {}, LABEL)

    return behave, times


def test_a_limit_of_requests_is_waited_for(stub, ask):
    behave, times = at_first(2, 429, {"Retry-After": "0.3"}, b"slow down")
    ((answered,), asker) = ask(stub(behave).address)
    assert answered.value == "x" and asker.asked == 3
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(times))


def test_retry_after_is_a_number_or_a_date():
    assert retry_after("2.5") == 2.5 and retry_after("") is None and retry_after("soon") is None
    assert retry_after("-1") == 0 and retry_after("1e9") == 600 and retry_after("nan") is None
    assert 55 < retry_after(formatdate(time.time() + 60, usegmt=True)) <= 61
    assert retry_after(formatdate(time.time() - 60, usegmt=True)) == 0


@pytest.mark.parametrize(("status", "counts"), [(408, 0), (429, 0), (500, 0), (503, 0), (504, 1), (524, 1)])
def test_failures_of_the_server_are_tried_again_with_growing_waits(stub, ask, monkeypatch, status, counts):
    """Where a proxy stopped waiting, the upper bound of the question counts as spent, each time."""
    monkeypatch.setattr(asking, "FIRST_WAIT", 0.05)
    behave, times = at_first(3, status, {}, b"<html>failure</html>")
    ((answered,), asker) = ask(stub(behave).address)
    assert answered.value == "x" and asker.ledger.spent == 55 + 3 * counts * BOUND
    waited = [later - earlier for earlier, later in pairwise(times)]
    assert len(waited) == 3 and all(seconds >= least for seconds, least in zip(waited, (0.05, 0.1, 0.2)))


def test_who_never_answers_is_given_up_and_said(stub, ask):
    endpoint = stub(lambda number, body: (503, {}, b"overloaded"))
    with pytest.raises(UserError, match=r"gave no answer in 3 tries\. The last: HTTP 503: overloaded"):
        ask(endpoint.address, tries=3)
    assert len(endpoint.requests) == 3
    with pytest.raises(UserError, match="no connection"):
        ask("http://127.0.0.1:9", tries=2)


def test_a_slow_answer_is_given_up_counted_and_asked_again(stub, ask):
    """Also one of which each piece comes in time, and the whole does not."""
    endpoint = stub(lambda number, body: time.sleep(0.5 if number == 0 else 0) or (200, {}, LABEL))
    ((answered,), asker) = ask(endpoint.address, timeout=0.25)
    assert answered.value == "x"
    assert asker.ledger.spent == BOUND + 55  # the endpoint may have worked on what came too late
    slow = stub(lambda number, body: (200, {}, b" " * 40), pause=0.05)
    endpoint, start = Endpoint(slow.address, None, 0.3), time.monotonic()
    assert post(endpoint) == Again("no answer within 0.3 seconds", None, spent=True)
    assert time.monotonic() - start < 1.5
    endpoint.close()


@pytest.mark.parametrize("piece", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: 1\r\n" + b"X: 1\r\n", b""])
@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_an_answer_that_never_gets_to_its_body_is_given_up(piece, pause):
    """Each part of the headers comes in time, and they have no end; or nothing comes at all."""
    listener, ended = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def answer() -> None:
        connection = listener.accept()[0]
        with contextlib.suppress(OSError):
            connection.sendall(piece)
            while not ended.wait(pause):
                connection.sendall(piece if b"100" in piece else piece[-6:])

    threading.Thread(target=answer, daemon=True).start()
    endpoint, start = Endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}", None, 1.0), time.monotonic()
    found = post(endpoint)
    assert isinstance(found, Again) and found.spent
    assert time.monotonic() - start < 5
    ended.set()
    endpoint.close()


def test_an_answer_that_unpacks_to_gigabytes_is_not_unpacked(stub):
    packed = gzip.compress(bytes(2**28))
    endpoint = Endpoint(stub(lambda number, body: (200, {"Content-Encoding": "gzip"}, packed)).address, None, 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert isinstance(post(endpoint), Again)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # kB
    endpoint.close()


NO_COMPLETIONS = [b"", b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": {"content": 5}}]}']


def test_what_is_no_chat_completion_or_has_no_end_is_tried_again(stub, subtests):
    bodies = [*NO_COMPLETIONS, b"[" * 50_000, b" " * (2**22 + 2**16)]
    endpoint = Endpoint(stub(lambda number, body: (200, {}, bodies[number])).address, None, 20)
    for body in bodies:
        with subtests.test(body=body[:50]):
            assert isinstance(post(endpoint), Again)
    endpoint.close()


def test_what_will_not_change_ends_at_once_and_is_not_kept(stub, ask, tmp_path):
    elsewhere, statuses = stub(), [301, 401, 403, 404, 410]
    endpoint = stub(lambda number, body: (statuses[number], {"Location": elsewhere.address}, b"no such model"))
    for asked, status in enumerate(statuses, 1):
        with pytest.raises(UserError, match=f"refuses to answer. HTTP {status}: no such model"):
            ask(endpoint.address)
        assert len(endpoint.requests) == asked and not elsewhere.requests
    endpoint = stub(lambda number, body: (400, {}, b"max_tokens is not supported"))
    with pytest.raises(UserError, match="max_tokens is not supported Change --parameters"):
        ask(endpoint.address)
    assert not (tmp_path / "answers.jsonl").exists()


def test_one_question_that_is_refused_does_not_end_the_others(stub, ask):
    def filtered(number, body):
        return (400, {}, b"content filter") if "question 1" in body["messages"][0]["content"] else (200, {}, LABEL)

    answers, _ = ask(stub(filtered).address, questions=3)
    assert answers == [("x", ""), (None, "HTTP 400: content filter"), ("x", "")]


def test_a_refusal_of_the_model_is_a_refusal(stub, ask):
    endpoint = stub(lambda number, body: (200, {}, completion(None, refusal="I cannot help")))
    ((answered,), asker) = ask(endpoint.address)
    assert answered == (None, "the model refuses: I cannot help") and asker.asked == 1


def test_a_form_that_comes_right_later_counts(stub, ask):
    ((answered,), asker) = ask(stub(at_first(2, 200, {}, completion("hm"))[0]).address)
    assert answered.value == "x" and asker.asked == 3


def test_broken_json_counts_as_refused_after_so_many_answers(stub, ask):
    endpoint = stub(lambda number, body: (200, {}, completion('{"label": ')))
    ((answered,), asker) = ask(endpoint.address, forms=3)
    assert answered.value is None and "not JSON" in answered.refusal and asker.asked == 3
    ((again,), later) = ask(endpoint.address, forms=3)
    assert again == answered and later.asked == 0


# The budget


def test_the_budget_counts_what_the_endpoint_reports_over_all_starts(stub, ask):
    endpoint = stub(lambda number, body: (200, {}, LABEL))
    for budget, spent in ((300, 165), (300, 165), (500, 385), (1000, 880)):  # the next may take 160 or 161
        with pytest.raises(UserError, match=rf"budget of {budget:,} tokens.*All answers are kept"):
            ask(endpoint.address, questions=100, budget=budget)
        assert len(endpoint.requests) * 55 == spent


def test_without_a_report_that_makes_sense_the_upper_bound_counts(stub, ask):
    usages = [None, [], {"prompt_tokens": -5, "completion_tokens": 1}, {"prompt_tokens": "9"}, {"prompt_tokens": 1}]
    bodies = [json.dumps({**json.loads(LABEL), "usage": usage}).encode() for usage in usages]
    _, asker = ask(stub(lambda number, _: (200, {}, bodies[number])).address, questions=len(usages), budget=1000)
    assert asker.ledger.spent == len(usages) * BOUND


def test_no_two_connections_exceed_the_budget_together(stub, ask):
    endpoint = stub(lambda number, body: (200, {}, completion('{"label": "x"}', (110, 50))), delay=0.02)
    with pytest.raises(UserError):
        ask(endpoint.address, questions=100, connections=8, budget=900)
    assert 160 * len(endpoint.requests) <= 900


def test_a_budget_needs_a_limit_of_answers(asker):
    with pytest.raises(UserError, match="needs a limit"):
        asker(None, parameters={"max_tokens": "null"}, budget=100)


# Keys and addresses


def test_the_key_is_in_the_header_and_nowhere_else(stub, ask, tmp_path, monkeypatch, caplog, capfd):
    monkeypatch.setenv("SOME_KEY", f" {KEY}\n")
    caplog.set_level(logging.DEBUG)
    repeated = completion(json.dumps({"label": f"the key {KEY}"}))
    endpoint = stub(lambda number, body: (200, {}, repeated))
    ((answered,), _) = ask(endpoint.address, key=read_key("SOME_KEY"))
    assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert answered.value == "the key [key]"
    refused = stub(lambda number, body: (400, {}, f"bad key {KEY}".encode()))
    assert ask(refused.address, key=KEY, questions=2)[0][1].refusal == "HTTP 400: bad key [key]"
    for status in (401, 500):
        failing = stub(lambda number, body, status=status: (status, {}, f"bad key {KEY} {'x' * 200}{KEY}".encode()))
        with pytest.raises(UserError) as error:
            ask(failing.address, key=KEY, questions=3, tries=1)
        assert KEY not in str(error.value) and "[key]" in str(error.value)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"Bearer" not in written and KEY.encode() not in written
    assert KEY not in caplog.text and KEY not in "".join(capfd.readouterr())


def test_no_key_is_sent_unless_one_is_named_and_one_that_is_none_is_not_shown(stub, ask, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint = stub(lambda number, body: (200, {}, LABEL))
    ask(endpoint.address)
    assert "Authorization" not in endpoint.headers[0] and read_key(None) is None
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(UserError, match="SOME_KEY is not set"):
        read_key("SOME_KEY")
    for text in (f"{KEY}\nX-Other: 1", f"{KEY} {KEY}", f"{KEY}é"):
        monkeypatch.setenv("SOME_KEY", text)
        with pytest.raises(UserError) as error:
            read_key("SOME_KEY")
        assert KEY not in str(error.value)


def test_addresses():
    assert chat_address("http://localhost:11434/v1/") == "http://localhost:11434/v1/chat/completions"
    assert chat_address("https://x.org/v1/chat/completions") == "https://x.org/v1/chat/completions"
    wrong = ("localhost:11434", "ftp://x.org", "http://", "", "http://x:y", "http://[::1", "http://x/v1\nx")
    for each in (*wrong, "http://x /v1"):
        with pytest.raises(UserError, match="address"):
            chat_address(each)
    for secret in (f"http://user:{KEY}@x.org/v1", f"http://x.org/v1?key={KEY}", f"http://x.org/v1#{KEY}"):
        with pytest.raises(UserError, match="environment variable") as error:
            chat_address(secret)
        assert KEY not in str(error.value)


# Kept answers


def test_a_line_that_a_kill_tore_is_left_out_and_the_file_goes_on(tmp_path):
    path = tmp_path / "answers.jsonl"
    answer = {"content": "x", "problem": "", "finish": "stop", "model": "m", "usage": {}}
    requests = [{"model": "m", "messages": [number]} for number in range(3)]
    for request in requests[:2]:
        Ledger(path).keep(request, 0, "http://x", answer, 7)
    path.write_bytes(path.read_bytes()[:-20])
    torn = Ledger(path)
    assert (torn.torn, torn.spent, torn.find(requests[0], 0), torn.find(requests[1], 0)) == (1, 7, answer, None)
    torn.keep(requests[2], 0, "http://x", answer, 7)
    later = Ledger(path)
    assert (later.torn, later.spent, later.find(requests[2], 0)) == (1, 14, answer)


def test_a_foreign_line_is_refused(tmp_path):
    objects = ['{"key": "a", "answer": {}, "tokens": 1}', '{"key": "a", "answer": null, "tokens": -1}']
    for line in ("5", "[]", "{}", *objects):
        (tmp_path / "a.jsonl").write_text(f"{line}\n")
        with pytest.raises(UserError, match="line 1, is not a kept answer"):
            Ledger(tmp_path / "a.jsonl")


def test_another_model_parameter_text_or_attempt_is_another_question():
    request = {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0.0}
    others = [{**request, "model": "n"}, {**request, "temperature": 0.5}, {**request, "messages": []}]
    keys = {request_key(request, 0), request_key(request, 1), *(request_key(other, 0) for other in others)}
    assert len(keys) == 5
    assert request_key(dict(reversed(request.items())), 0) == request_key(request, 0)
