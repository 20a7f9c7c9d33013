"""Where a text, or a match of a regular expression, ends in the sentences of the train split."""

import bisect
import re
import time
from collections.abc import Iterator

import numpy as np

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.run.results.run_files import RunFiles

BLOCK = 16_384  # sentences that are searched at a time
NOWHERE = np.iinfo(np.int32).max  # no prefix of the sentence holds the text
LONGEST_EXPRESSION = 500  # characters
SECONDS = 2.0  # that a regular expression may take; some take for ever


def shortest_prefix(files: RunFiles, text: str) -> np.ndarray:
    """Finds the length in tokens of the shortest prefix with a text [sentence]; `NOWHERE` without any."""
    corpus = files.corpus("train")
    shortest = np.full(len(corpus), NOWHERE, np.int32)
    needle = re.compile(re.escape(text.encode()))
    with hdf5.open(files.folder / "corpus" / "train.h5", "corpus") as file:
        for first in range(0, len(corpus), BLOCK):
            last = min(first + BLOCK, len(corpus))
            starts = file["text_offset"][first : last + 1]
            data = file["text"][starts[0] : starts[-1]]
            starts, token_start = starts - starts[0], corpus.offsets[first : last + 1]
            matches = np.array(list(first_matches(data.tobytes(), starts.tolist(), needle)), np.int64).reshape(-1, 2)
            if not len(matches):
                continue
            number, end = matches.T
            # Before byte b of the block so many characters start as bytes that do not go on with one, which UTF-8 marks.
            going_on = np.flatnonzero((data & 0xC0) == 0x80)
            first_character = starts[:-1] - np.searchsorted(going_on, starts[:-1])
            token_end = file["token_end"][token_start[0] : token_start[-1]]
            ends = token_end + np.repeat(first_character, np.diff(token_start))
            last_token = np.searchsorted(ends, end - np.searchsorted(going_on, end))
            shortest[first + number] = last_token + token_start[0] - token_start[number] + 1
    return shortest


def first_matches(data: bytes, starts: list[int], needle: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    """Finds the first match in each text that has one.

    Args:
        data: texts one behind the other, UTF-8.
        starts: where each text starts in `data`, and the end of the last [text + 1].
    Yields:
        The text's number, and where the match ends in `data`.
    """
    place = 0
    while match := needle.search(data, place):
        number = bisect.bisect_right(starts, match.start()) - 1
        inside = match.end() <= starts[number + 1]  # else it reaches into the next text
        if inside:
            yield number, match.end()
        place = starts[number + 1] if inside else match.start() + 1


def shortest_match(files: RunFiles, expression: str) -> np.ndarray:
    """Finds the length in tokens of the prefix that ends with the first match [sentence]; `NOWHERE` without any."""
    corpus = files.corpus("train")
    shortest = np.full(len(corpus), NOWHERE, np.int32)
    with hdf5.open(files.folder / "corpus" / "train.h5", "corpus") as file:
        offsets, data, ends = file["text_offset"][...], file["text"][...].tobytes(), file["token_end"][...]
    texts = (data[start:stop].decode() for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist()))
    for number, end in first_ends(texts, expression):
        start, stop = corpus.offsets[number], corpus.offsets[number + 1]
        shortest[number] = np.searchsorted(ends[start:stop], end) + 1
    return shortest


def first_ends(texts: Iterator[str], expression: str) -> Iterator[tuple[int, int]]:
    """Finds where the first match of a regular expression ends, in characters: (number of the text, end) of each match.

    Raises:
        UserError: the expression is none, is too long, or takes longer than `SECONDS` for all texts.
    """
    import regex  # it can stop after a time, which the standard library's cannot

    if len(expression) > LONGEST_EXPRESSION:
        raise UserError(f"The regular expression is longer than {LONGEST_EXPRESSION} characters. Shorten it.")
    try:
        needle = regex.compile(expression)
    except (regex.error, RecursionError, OverflowError) as error:
        raise UserError(f"{expression!r} is not a regular expression: {error}.") from error
    until = time.monotonic() + SECONDS
    try:
        for number, text in enumerate(texts):
            if match := needle.search(text, timeout=max(0.001, until - time.monotonic())):
                yield number, match.end()
            elif not number % 1024 and time.monotonic() > until:
                raise TimeoutError
    except TimeoutError as error:
        raise UserError(
            f"The regular expression {expression!r} takes longer than {SECONDS:g} s. Write a simpler one: repeats inside"
            " repeats, such as (a+)+, take for ever."
        ) from error
