"""Asks questions: kept answers first, then the endpoint, within a budget of tokens, again after failures."""

import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, NamedTuple

from ffkv.apps.machine.answers import Refused
from ffkv.apps.machine.endpoint import LONGEST_WAIT, Endpoint, Reply
from ffkv.apps.machine.ledger import Ledger
from ffkv.apps.machine.questions import Question
from ffkv.apps.machine.settings import Machine
from ffkv.base.errors import UserError
from ffkv.base.process.progress import progress

FRAME = 100  # tokens that a chat template puts around the messages, at most
FIRST_WAIT = 1.0  # seconds before the second try, doubled for each later one
LIMITS = ("max_completion_tokens", "max_tokens")  # parameters that limit the length of an answer


class Answered(NamedTuple):
    """What became of a question."""

    value: Any  # what the answer says; None if the question was refused
    refusal: str  # why it was refused; "" if it was not


class Cost(NamedTuple):
    """What questions would take."""

    questions: int
    kept: int  # of these, how many have a kept answer
    about: int  # tokens of the others, as a guess: four bytes of text per token, and a short answer
    most: int  # tokens of the others, at most, if each is answered at once


class Asker:
    """Asks a machine. Several threads may use it."""

    def __init__(self, ledger: Ledger, endpoint: Endpoint | None, machine: Machine):
        """Asks nothing yet.

        Args:
            ledger: the kept answers.
            endpoint: where new questions go; None: nowhere.
            machine: which model is asked, and how.
        Raises:
            UserError: there is a budget, and no parameter limits the length of an answer.
        """
        self.ledger, self.machine = ledger, machine
        self.asked = 0  # requests that were sent
        self._endpoint, self._parameters = endpoint, machine.sent
        self._reserved, self._lock, self._stopped = 0, threading.Lock(), threading.Event()
        self._answered = ledger.answered
        limits = [self._parameters[name] for name in LIMITS if type(self._parameters.get(name)) is int]
        if machine.budget is not None and not limits:
            raise UserError(
                f"--budget needs a limit of the length of an answer. Give one of the parameters {' and '.join(LIMITS)}."
            )
        self._longest_answer = max(limits, default=0)

    def about(self) -> dict[str, Any]:
        """Returns what the answers depend on: model, parameters, forms."""
        return {"model": self.machine.model, "parameters": self._parameters, "forms": self.machine.forms}

    def request(self, question: Question) -> dict[str, Any]:
        """Returns what is sent for a question."""
        return {"model": self.machine.model, "messages": question.messages, **self._parameters}

    def most_tokens(self, request: Mapping[str, Any]) -> int:
        """Returns an upper bound of the tokens of a request and its answer: a token is at least one byte of text."""
        size = sum(len(message["content"].encode()) for message in request["messages"])
        return size + FRAME + self._longest_answer

    def cost(self, questions: Sequence[Question]) -> Cost:
        """Returns what questions would take."""
        most = [self.most_tokens(self.request(each)) for each in questions if self.settle(each) is None]
        about = sum((tokens - self._longest_answer) // 4 + 40 for tokens in most)
        return Cost(len(questions), len(questions) - len(most), about, sum(most))

    def settle(self, question: Question, endpoint: Endpoint | None = None) -> Answered | None:
        """Reads the answers to a question, one after the other, until one has the form that was asked for.

        Without an endpoint, the kept answers alone are read. None: they do not say what became of the question.
        """
        request, refusal = self.request(question), ""
        for attempt in range(self.machine.forms):
            answer = self.ledger.find(request, attempt)
            if answer is None:
                if endpoint is None:
                    return None
                answer = self._from_endpoint(endpoint, request, attempt)
            if answer["problem"]:
                return Answered(None, answer["problem"])
            try:
                return Answered(question.read(answer["content"]), "")
            except Refused as error:
                cut = " (the answer was cut off: raise max_tokens)" if answer.get("finish") == "length" else ""
                refusal = f"{error}{cut}"
        return Answered(None, refusal)

    def ask(self, questions: Sequence[Question], name: str) -> list[Answered]:
        """Asks questions; those with kept answers are not asked again. Returns what became of each [question].

        Args:
            name: name of the progress bar.
        Raises:
            UserError: the budget is used up; the endpoint does not answer; or there is no endpoint and an answer is not
                kept. All answers so far are kept.
        """
        found = [self.settle(question) for question in questions]
        missing = [number for number, answered in enumerate(found) if answered is None]
        if missing and self._endpoint is None:
            raise UserError(
                f"{len(missing)} of {len(questions)} questions have no kept answer in {self.ledger.path}. Run without"
                " --replay to ask them, with the same options as before to replay what was asked."
            )
        self._stopped.clear()
        with (
            progress(len(questions), "questions", name, len(questions) - len(missing)) as bar,
            ThreadPoolExecutor(self.machine.connections) as pool,
        ):

            def answer(number: int) -> None:
                found[number] = self.settle(questions[number], self._endpoint)
                bar.update()

            futures = [pool.submit(answer, number) for number in missing]
            try:
                ended = wait(futures, return_when=FIRST_EXCEPTION).done
            finally:  # also of Ctrl-C: nobody waits for the rest
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
        for future in futures:
            if future in ended:  # later ones only say that they were stopped
                future.result()
        return [answered for answered in found if answered is not None]

    def _from_endpoint(self, endpoint: Endpoint, request: dict[str, Any], attempt: int) -> dict[str, Any]:
        bound, tries, reason = self.most_tokens(request), self.machine.tries, ""
        for number in range(tries):
            with self._reserve(bound):
                outcome = endpoint.post(request)
                if isinstance(outcome, Reply):
                    self._refuse_all(endpoint, outcome)
                    tokens = bound if outcome.tokens is None else outcome.tokens
                    self.ledger.keep(request, attempt, endpoint.address, outcome.answer, tokens)
                    return outcome.answer
                if outcome.spent:
                    self.ledger.keep(request, attempt, endpoint.address, None, bound)
            reason = outcome.reason
            pause = FIRST_WAIT * 2**number * random.uniform(1, 1.25)
            if number + 1 < tries:
                self._stopped.wait(min(outcome.wait if outcome.wait is not None else pause, LONGEST_WAIT))
        raise UserError(
            f"{endpoint.address} gave no answer in {tries} tries. The last: {reason}. All answers so far are kept:"
            " start the same command again when it answers."
        )

    def _refuse_all(self, endpoint: Endpoint, outcome: Reply) -> None:
        """A request that the endpoint refuses before it has answered any is malformed, whatever the question."""
        problem = outcome.answer["problem"]
        self._answered = self._answered or not problem
        if problem.startswith("HTTP") and not self._answered:
            raise UserError(
                f"{endpoint.address} does not take the request. {problem} Change --parameters, or ask again if this was"
                " about the first question alone."
            )

    @contextmanager
    def _reserve(self, tokens: int) -> Iterator[None]:
        """Reserves tokens while a request is under way. One that might exceed the budget is not sent."""
        if self._stopped.is_set():
            raise UserError("Stopped. All answers so far are kept.")
        budget = self.machine.budget
        with self._lock:
            if budget is not None and self.ledger.spent + self._reserved + tokens > budget:
                raise UserError(
                    f"The budget of {budget:,} tokens may not suffice for the next question: {self.ledger.spent:,} are"
                    f" spent, {self._reserved:,} may be spent by questions under way, and it may take {tokens:,}. All"
                    " answers are kept. Run the same command with a larger --budget to go on."
                )
            self._reserved += tokens
            self.asked += 1
        try:
            yield
        finally:
            with self._lock:
                self._reserved -= tokens
