"""Kept answers, one JSON line each, appended and never changed. A question with a kept answer is not asked again."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ffkv.base.errors import UserError
from ffkv.base.files.journal import append_entry, read_journal


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
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        entry = {
            "key": request_key(request, attempt), "time": time, "endpoint": endpoint, "attempt": attempt,
            "request": dict(request), "answer": answer, "tokens": tokens,
        }  # fmt: skip
        append_entry(self.path, entry)
        self._take(entry)
