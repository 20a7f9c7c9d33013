"""Asks questions: kept answers first, then the endpoint, within a budget of tokens, again after failures."""

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from ffkv.apps.machine.answers import Refused
from ffkv.apps.machine.endpoint import LONGEST_WAIT, Endpoint, Reply
from ffkv.apps.machine.ledger import Ledger, request_key
from ffkv.apps.machine.questions import Question
from ffkv.base.errors import UserError

FRAME = 100  # tokens that a chat template puts around the messages, at most
LIMITS = ("max_completion_tokens", "max_tokens")  # parameters that limit the length of an answer


class Answered(NamedTuple):
    """What became of a question.

    Attributes:
        value: what the answer says; None if the question was refused.
        refusal: why it was refused; "" if it was not.
    """

    value: Any
    refusal: str


class Cost(NamedTuple):
    """What questions would take.

    Attributes:
        questions: number of questions.
        kept: number of questions whose answers are kept.
        about: tokens of the others, as a guess: four bytes of text per token, and a short answer.
        most: tokens of the others, at most, if each is answered at once.
    """

    questions: int
    kept: int
    about: int
    most: int


class Asker:
    """Asks one model with one set of parameters. Several threads may use it.

    Attributes:
        ledger: the kept answers.
        asked: number of requests that were sent.
    """

    def __init__(
        self,
        ledger: Ledger,
        endpoint: Endpoint | None,
        model: str,
        parameters: Mapping[str, Any],
        *,
        forms: int = 3,
        tries: int = 6,
        budget: int | None = None,
        connections: int = 1,
        first_wait: float = 1.0,
    ):
        """Asks nothing yet.

        Args:
            ledger: the kept answers.
            endpoint: where new questions go; None: nowhere.
            model: name of the model at the endpoint.
            parameters: what else is sent, such as temperature and max_tokens.
            forms: how many answers in another form than asked for count as a refusal.
            tries: how often a request is sent until there is an answer.
            budget: tokens that the ledger may hold in all; None: no limit.
            connections: how many questions are asked at the same time.
            first_wait: seconds before the second try; doubled for each later one.
        Raises:
            UserError: there is a budget, and no parameter limits the length of an answer.
        """
        self.ledger, self.asked = ledger, 0
        self._endpoint, self._model, self._parameters = endpoint, model, dict(parameters)
        self._forms, self._tries, self._budget = forms, tries, budget
        self._connections, self._first_wait = connections, first_wait
        self._reserved, self._lock, self._stopped = 0, threading.Lock(), threading.Event()
        self._answered = ledger.answered
        limits = [parameters[name] for name in LIMITS if type(parameters.get(name)) is int]
        if budget is not None and not limits:
            raise UserError(
                f"--budget needs a limit of the length of an answer. Give one of the parameters {' and '.join(LIMITS)}."
            )
        self._longest_answer = max(limits, default=0)

    def about(self) -> dict[str, Any]:
        """What the answers depend on: model, parameters, forms."""
        return {"model": self._model, "parameters": self._parameters, "forms": self._forms}

    def request(self, question: Question) -> dict[str, Any]:
        """What is sent for a question."""
        return {"model": self._model, "messages": question.messages, **self._parameters}

    def most_tokens(self, request: Mapping[str, Any]) -> int:
        """An upper bound of the tokens of a request and its answer: a token is at least one byte of text."""
        size = sum(len(message["content"].encode()) for message in request["messages"])
        return size + FRAME + self._longest_answer

    def cost(self, questions: Sequence[Question]) -> Cost:
        """What questions would take."""
        kept, about, most = 0, 0, 0
        for question in questions:
            if self.kept(question) is not None:
                kept += 1
                continue
            request = self.request(question)
            most += self.most_tokens(request)
            about += (self.most_tokens(request) - self._longest_answer) // 4 + 40
        return Cost(len(questions), kept, about, most)

    def kept(self, question: Question) -> Answered | None:
        """What became of a question, by the kept answers alone; None if they do not say."""
        return self._settle(question, lambda *_: None)

    def _settle(self, question: Question, ask: Callable[..., dict[str, Any] | None]) -> Answered | None:
        """Reads the answers to a question, one after the other, until one has the form that was asked for."""
        request, refusal = self.request(question), ""
        for attempt in range(self._forms):
            key = request_key(request, attempt)
            answer = self.ledger.find(key) or ask(request, attempt, key)
            if answer is None:
                return None
            if answer["problem"]:
                return Answered(None, answer["problem"])
            try:
                return Answered(question.read(answer["content"]), "")
            except Refused as error:
                cut = " (the answer was cut off: raise max_tokens)" if answer.get("finish") == "length" else ""
                refusal = f"{error}{cut}"
        return Answered(None, refusal)

    def ask(self, questions: Sequence[Question], done: Callable[[], object] = lambda: None) -> list[Answered]:
        """Asks questions; those with kept answers are not asked again.

        Args:
            questions: the questions.
            done: called after each question.
        Returns:
            What became of each question [question].
        Raises:
            UserError: the budget is used up; the endpoint does not answer; or there is no endpoint and an answer is not
                kept. All answers so far are kept.
        """
        found = [self.kept(question) for question in questions]
        missing = [number for number, answered in enumerate(found) if answered is None]
        for _ in range(len(found) - len(missing)):
            done()
        if missing and self._endpoint is None:
            raise UserError(
                f"{len(missing)} of {len(questions)} questions have no kept answer in {self.ledger.path}. Run without"
                " --replay to ask them, with the same options as before to replay what was asked."
            )
        self._stopped.clear()

        def answer(number: int) -> None:
            found[number] = self._settle(questions[number], self._from_endpoint)
            done()

        with ThreadPoolExecutor(self._connections) as pool:
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

    def _from_endpoint(self, request: dict[str, Any], attempt: int, key: str) -> dict[str, Any]:
        assert self._endpoint is not None
        bound, reason = self.most_tokens(request), ""
        for number in range(self._tries):
            self._reserve(bound)
            try:
                outcome = self._endpoint.post(request)
                if isinstance(outcome, Reply):
                    self._refuse_all(outcome)
                    tokens = bound if outcome.tokens is None else outcome.tokens
                    self.ledger.keep(key, request, attempt, self._endpoint.address, outcome.answer, tokens)
                    return outcome.answer
                if outcome.spent:
                    self.ledger.keep(key, request, attempt, self._endpoint.address, None, bound)
            finally:
                self._release(bound)
            reason = outcome.reason
            pause = self._first_wait * 2**number * random.uniform(1, 1.25)
            if number + 1 < self._tries:
                self._stopped.wait(min(outcome.wait if outcome.wait is not None else pause, LONGEST_WAIT))
        raise UserError(
            f"{self._endpoint.address} gave no answer in {self._tries} tries. The last: {reason}. All answers so far are"
            " kept: start the same command again when it answers."
        )

    def _refuse_all(self, outcome: Reply) -> None:
        """A request that the endpoint refuses before it has answered any is malformed, whatever the question."""
        if not outcome.answer["problem"]:
            self._answered = True
        elif outcome.answer["problem"].startswith("HTTP") and not self._answered:
            assert self._endpoint is not None
            raise UserError(
                f"{self._endpoint.address} does not take the request. {outcome.answer['problem']} Change --parameter, or"
                " ask again if this was about the first question alone."
            )

    def _reserve(self, tokens: int) -> None:
        """Waits for nothing: a request that might exceed the budget is not sent."""
        if self._stopped.is_set():
            raise UserError("Stopped. All answers so far are kept.")
        with self._lock:
            most = self.ledger.spent + self._reserved + tokens
            if self._budget is not None and most > self._budget:
                raise UserError(
                    f"The budget of {self._budget:,} tokens may not suffice for the next question: {self.ledger.spent:,} are"
                    f" spent, {self._reserved:,} may be spent by questions under way, and it may take {tokens:,}. All answers"
                    " are kept. Run the same command with a larger --budget to go on."
                )
            self._reserved += tokens
            self.asked += 1

    def _release(self, tokens: int) -> None:
        with self._lock:
            self._reserved -= tokens
