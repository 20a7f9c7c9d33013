"""A chat endpoint of the OpenAI form, and its kept answers: one request, one outcome.

The key is in a header and nowhere else. Answers are kept as one JSON line each, appended and never changed. A question with a kept
answer is not asked again.
"""

import asyncio
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2

from ffkv.base.errors import UserError
from ffkv.base.files.journal import append_entry, now, read_journal
from ffkv.base.lookup import parse_json


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
        if not (parts.scheme in ("http", "https") and parts.hostname and parts.port != 0):
            raise ValueError
        if not endpoint.isprintable() or " " in endpoint:
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
            return Again(said, retry_after(headers.get("retry-after")), spent=status in TIMED_OUT)
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


def retry_after(text: str | None) -> float | None:
    """Reads the seconds of a header Retry-After: a number or a date; None if there is none or it is neither."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), LONGEST_WAIT) if seconds == seconds else None
