"""Asks questions: kept answers first, then the endpoint, within a budget of tokens, again after failures."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ffkv.base.errors import UserError
from ffkv.base.process.progress import progress
from ffkv_annotation.machine.endpoint import LONGEST_WAIT, Endpoint, Ledger, Reply
from ffkv_annotation.machine.questions import Question, Refused
from ffkv_annotation.settings import Machine

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
    """Asks a machine."""

    def __init__(self, ledger: Ledger, endpoint: Endpoint | None, machine: Machine):
        """Asks nothing yet. Without an endpoint, only kept answers are known.

        Raises UserError if there is a budget, and no parameter limits the length of an answer.
        """
        self.ledger, self.machine = ledger, machine
        self.asked = 0  # requests that were sent
        self._endpoint, self._parameters = endpoint, machine.sent
        self._reserved, self._stopped = 0, asyncio.Event()  # tokens of the requests under way; whether no other is sent
        limits = [self._parameters[name] for name in LIMITS if type(self._parameters.get(name)) is int]
        if machine.budget is not None and not limits:
            raise UserError(
                f"--budget needs a limit of the length of an answer. Give one of the parameters {' and '.join(LIMITS)}."
            )
        self._longest_answer = max(limits, default=0)

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

    def settle(self, question: Question) -> Answered | None:
        """Reads the kept answers to a question until one has the form that was asked for.

        None: they do not say what became of the question.
        """
        request, refusal = self.request(question), ""
        for attempt in range(self.machine.forms):
            answer = self.ledger.find(request, attempt)
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

    def ask(self, questions: Sequence[Question], name: str) -> list[Answered]:
        """Asks questions; those with kept answers are not asked again. Returns what became of each [question].

        `name` is that of the progress bar. Raises UserError if the budget is used up, the endpoint does not answer, or
        there is no endpoint and an answer is not kept. All answers so far are kept.
        """
        found = {at: answered for at, each in enumerate(questions) if (answered := self.settle(each)) is not None}
        missing, endpoint = [number for number in range(len(questions)) if number not in found], self._endpoint
        if not missing:
            return [*found.values()]
        if endpoint is None:
            raise UserError(
                f"{len(missing)} of {len(questions)} questions have no kept answer in {self.ledger.path}. Run without"
                " --replay to ask them, with the same options as before to replay what was asked."
            )
        connections, run = asyncio.Semaphore(self.machine.connections), endpoint.loop.run_until_complete
        self._stopped.clear()
        with progress(len(questions), "questions", name, len(questions) - len(missing)) as bar:

            async def answer(number: int) -> None:
                async with connections:
                    while (settled := self.settle(questions[number])) is None:
                        await self._ask(endpoint, self.request(questions[number]))
                found[number] = settled
                bar.update()

            tasks = [endpoint.loop.create_task(answer(number)) for number in missing]
            try:
                ended, _ = run(asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION))
            finally:  # also of Ctrl-C: requests under way end, and no other is sent
                self._stopped.set()
                run(asyncio.gather(*tasks, return_exceptions=True))
        for task in tasks:
            if task in ended:  # later ones only say that they were stopped
                task.result()
        return [found[number] for number in range(len(questions))]

    async def _ask(self, endpoint: Endpoint, request: dict[str, Any]) -> None:
        """Keeps one more answer to a request. One that might exceed the budget is not sent."""
        attempt = next(number for number in itertools.count() if self.ledger.find(request, number) is None)
        bound, tries, budget = self.most_tokens(request), self.machine.tries, self.machine.budget
        for number in range(1, tries + 1):
            if self._stopped.is_set():
                raise UserError("Stopped. All answers so far are kept.")
            if budget is not None and self.ledger.spent + self._reserved + bound > budget:
                raise UserError(
                    f"The budget of {budget:,} tokens may not suffice for the next question: {self.ledger.spent:,} are"
                    f" spent, {self._reserved:,} may be spent by questions under way, and it may take {bound:,}. All"
                    " answers are kept. Run the same command with a larger --budget to go on."
                )
            self.asked += 1
            self._reserved += bound
            try:
                outcome = await endpoint.post(request)
            finally:
                self._reserved -= bound
            if isinstance(outcome, Reply):
                # What an endpoint refuses before it has answered any request is malformed, whatever the question.
                if (problem := outcome.answer["problem"]).startswith("HTTP") and not self.ledger.answered:
                    raise UserError(
                        f"{endpoint.address} does not take the request. {problem} Change --parameters, or ask again if"
                        " this was about the first question alone."
                    )
                tokens = bound if outcome.tokens is None else outcome.tokens
                return self.ledger.keep(request, attempt, endpoint.address, outcome.answer, tokens)
            if outcome.spent:
                self.ledger.keep(request, attempt, endpoint.address, None, bound)
            if number == tries:
                raise UserError(
                    f"{endpoint.address} gave no answer in {tries} tries. The last: {outcome.reason}. All answers so"
                    " far are kept: start the same command again when it answers."
                )
            pause = FIRST_WAIT * 2 ** (number - 1) * random.uniform(1, 1.25) if outcome.wait is None else outcome.wait
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), min(pause, LONGEST_WAIT))
