"""Asks a chat endpoint of the OpenAI form: kept answers first, then within a budget of tokens, again after failures.

The key is in a header and nowhere else. Answers are kept as one JSON line each, appended and never changed. A question with a kept
answer is not asked again.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from ffkv.base.errors import UserError
from ffkv.base.files.journal import append_entry, now, read_journal
from ffkv.base.lookup import parse_json
from ffkv.base.process.progress import progress
from ffkv_machines.questions import Question, Refused
from ffkv_machines.settings import Machine


def request_key(request: Mapping[str, Any], attempt: int) -> str:
    """Returns the hash by which an answer is found again, in hexadecimal digits.

    `request`: what is sent: model, messages, parameters, and not the address of the endpoint; `attempt`: how often the
    same question was answered in another form before.
    """
    text = json.dumps({"request": request, "attempt": attempt}, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Ledger:
    """The kept answers of one file."""

    def __init__(self, path: Path):
        """Reads the file, if there is one. Raises UserError if it cannot be read, or a whole line is no kept answer."""
        journal = read_journal(path)
        self.path = path
        self.spent = 0  # tokens of all lines
        self.torn = len(journal.torn)  # lines that were left out, because a kill or a full disk tore them
        self._answers: dict[str, dict[str, Any]] = {}
        for number, entry in journal.entries:
            try:
                self._take(entry)
            except (TypeError, KeyError, AttributeError) as error:
                raise UserError(
                    f"{path}, line {number}, is not a kept answer. Remove the line, or name other --annotations."
                ) from error

    def _take(self, entry: dict[str, Any]) -> None:
        key, answer, tokens = entry["key"], entry["answer"], entry["tokens"]
        if not isinstance(key, str) or type(tokens) is not int or tokens < 0:
            raise TypeError
        if answer is not None:
            answer["content"], answer["problem"]
            self._answers[key] = answer
        self.spent += tokens

    @property
    def answered(self) -> bool:
        """Whether the endpoint ever answered a question, rather than refuse it."""
        return any(not answer["problem"] for answer in self._answers.values())

    def find(self, request: Mapping[str, Any], attempt: int) -> dict[str, Any] | None:
        """Returns the kept answer to a request, or None: content, problem, finish, model, usage. See `request_key`."""
        return self._answers.get(request_key(request, attempt))

    def keep(
        self, request: Mapping[str, Any], attempt: int, endpoint: str, answer: dict[str, Any] | None, tokens: int
    ) -> None:
        """Appends an answer, and the tokens that count as spent. Raises UserError: see `append_entry`.

        When this returns, it is on the disk. `answer`: None if nothing came back in time.
        """
        entry = {
            "key": request_key(request, attempt), "time": now(), "endpoint": endpoint, "attempt": attempt,
            "request": dict(request), "answer": answer, "tokens": tokens,
        }  # fmt: skip
        append_entry(self.path, entry)
        self._take(entry)


LONGEST_BODY = 2**22  # bytes of an answer
SHOWN_BODY = 300  # characters of an error's body
LONGEST_WAIT = 600.0  # seconds that an endpoint may ask for
SECRET = 8  # characters; a shorter key, such as "EMPTY", is not a secret and may be a word of an answer
AGAIN = (408, 409, 425, 429)
TIMED_OUT = (504, 524)  # a proxy stopped waiting for the model, which may have worked
OF_THE_QUESTION = (400, 413, 422)
USAGE = ("prompt_tokens", "completion_tokens")


class Reply(NamedTuple):
    """An answer."""

    # content (text), problem ("" or why the endpoint refused the question), finish, model, usage
    answer: dict[str, Any]
    tokens: int | None  # tokens that the endpoint reports; None if it reports none


class Again(NamedTuple):
    """No answer, but there may be one later."""

    reason: str  # what happened
    wait: float | None  # seconds that the endpoint asks to wait; None if it does not say
    spent: bool  # whether the endpoint may have worked on the question


def read_key(variable: str | None) -> str | None:
    """Reads the API key in an environment variable; None without the name of one.

    Raises UserError if the variable is not set, or its text cannot be a key. The text is not shown.
    """
    if variable is None:
        return None
    where, key = f"The environment variable {variable}", os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"{where} is not set. Put the API key into it.")
    if not re.fullmatch(r"[!-~]+", key):
        raise UserError(f"{where} holds characters that no API key has. Put nothing but the key into it.")
    return key


def chat_address(endpoint: str) -> str:
    """Returns the address of chat completions, of a base such as http://localhost:11434/v1, or as it is.

    Raises UserError if it is no such address, or it holds a user, a password or a query, which may be secret.
    """
    try:
        parts = urlsplit(endpoint)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if not known or not endpoint.isprintable() or " " in endpoint:
            raise ValueError
    except ValueError as error:  # also of a port that is no number
        raise UserError("--endpoint is not an address. Write it as in http://localhost:11434/v1.") from error
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UserError(
            "--endpoint holds a user, a password or a query. Addresses are kept beside the answers. Put the API key"
            " into an environment variable, and name it by --key-variable."
        )
    base = endpoint.rstrip("/")
    return base if base.endswith("/chat/completions") else f"{base}/chat/completions"


class Endpoint:
    """A connection to an endpoint. `address` is that of chat completions, without any secret.

    Its requests are coroutines of `loop`, which can end any of them when its time is over, whatever it waits for.
    """

    def __init__(self, address: str, key: str | None, timeout: float):
        """Connects to nothing yet. `address`: see `chat_address`; `timeout`: seconds for a whole answer."""
        self.address, self._key, self._timeout = chat_address(address), key, timeout
        headers = {"Accept-Encoding": "identity"}  # what is packed may unpack to any size
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        waits = httpx2.Timeout(timeout, connect=timeout / 2)  # so that it is told apart from a slow answer
        self._client = httpx2.AsyncClient(headers=headers, timeout=waits, follow_redirects=False)
        self.loop = asyncio.new_event_loop()

    def close(self) -> None:
        """Ends the connections."""
        self.loop.run_until_complete(self._client.aclose())
        self.loop.close()

    async def post(self, request: Mapping[str, Any]) -> Reply | Again:
        """Sends one request: model, messages, parameters. Reads the answer, up to a size and a time.

        Raises UserError if the endpoint will not answer however often it is asked: a wrong address, key or model, or a
        redirection.
        """
        body = bytearray()
        try:
            async with (
                asyncio.timeout(self._timeout),  # also of headers, and of words to go on
                self._client.stream("POST", self.address, json=dict(request)) as response,
            ):
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > LONGEST_BODY:
                        break
        except httpx2.ConnectError as error:
            return Again(f"no connection ({self._without_key(error)})", None, spent=False)
        except (httpx2.TimeoutException, TimeoutError) as error:
            connected = not isinstance(error, httpx2.ConnectTimeout | httpx2.PoolTimeout)
            return Again(f"no answer within {self._timeout:g} seconds", None, spent=connected)
        except httpx2.TransportError as error:
            return Again(f"the connection broke ({self._without_key(error)})", None, spent=True)
        except httpx2.HTTPError as error:
            raise UserError(f"{self.address} cannot be asked: {self._without_key(error)}") from None
        return self._outcome(response.status_code, response.headers, bytes(body))

    def _outcome(self, status: int, headers: Mapping[str, str], body: bytes) -> Reply | Again:
        said = f"HTTP {status}: {self._without_key(body.decode(errors='replace'))}"
        if status == 200:
            return self._read(body) or Again(f"an answer that is not a chat completion ({said})", None, spent=True)
        if status in AGAIN or status >= 500:
            return Again(said, retry_after(headers.get("retry-after", "")), spent=status in TIMED_OUT)
        if status in OF_THE_QUESTION:
            return Reply({"content": "", "problem": said, "finish": "", "model": "", "usage": {}}, 0)
        raise UserError(f"{self.address} refuses to answer. {said}")

    def _read(self, body: bytes) -> Reply | None:
        """Reads a chat completion; None if the body is none."""
        try:
            found = parse_json(body, object_pairs_hook=dict)
            choice = found["choices"][0]
            content, refusal = choice["message"].get("content"), choice["message"].get("refusal")
            told = {"finish": choice.get("finish_reason"), "model": found.get("model")}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return None
        if not isinstance(content, str | None):
            return None
        told["problem"] = f"the model refuses: {refusal}" if refusal and not content else ""
        hidden = {name: self._without_key(text or "") for name, text in told.items()}
        reported = found.get("usage")
        counts: dict[str, Any] = {name: reported.get(name) for name in USAGE} if isinstance(reported, dict) else {}
        usage = counts if all(type(count) is int and count >= 0 for count in counts.values()) else {}
        answer = {"content": self._hidden(content or ""), **hidden, "usage": usage}
        return Reply(answer, sum(usage.values()) if usage else None)

    def _hidden(self, text: str) -> str:
        """Returns the text without the key, which an endpoint may repeat."""
        return text.replace(self._key, "[key]") if self._key and len(self._key) >= SECRET else text

    def _without_key(self, text: object) -> str:
        """Returns one short line for a message, without the key."""
        return " ".join(self._hidden(str(text)).split())[:SHOWN_BODY]


def retry_after(text: str) -> float | None:
    """Reads the seconds of a header Retry-After: a number or a date; None if it is neither."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), LONGEST_WAIT) if seconds == seconds else None


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
