"""Search in the text: where a text, or a match of a regular expression, ends in the sentences of the train split."""

import bisect
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ffkv.base.characters import read_bytes
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.files.datasets import Checked
from ffkv.base.settings.section import LONGEST, compile_expression
from ffkv.corpus.corpus_file import Corpus
from ffkv.run.results import indexes
from ffkv.run.results.run_files import RunFiles

BLOCK = 16_384  # sentences that are searched at a time
NOWHERE = np.iinfo(np.int32).max  # no prefix of the sentence holds the text
SECONDS = 5.0  # that a regular expression may take over all sentences
Find = Callable[[bytes, list[int]], Iterator[tuple[int, int]]]


def triggered(files: RunFiles, text: str, expression: bool = False) -> pd.DataFrame:
    """Finds the memories that have a text, or a match of an expression, in one of their trigger examples, see `Search`.

    Returns one row per memory: row (in flat arrays), examples_with_text, coefficient_with_text, see `Run.memories`. Raises UserError
    if the text is empty, or as `shortest_match`.
    """
    if not text:
        raise UserError("The text to search for is empty.")
    shortest = shortest_match(files, text) if expression else shortest_prefix(files, text)
    places = indexes.trigger_places(files)
    contains = (shortest[places.sentence] <= places.position) & (places.sentence >= 0)
    row = np.flatnonzero(contains.any(1))
    # Coefficients descend, so the first example with the text has the highest one.
    highest = places.coefficient[row, contains[row].argmax(1)]
    return pd.DataFrame({"row": row, "examples_with_text": contains[row].sum(1), "coefficient_with_text": highest})


def shortest_prefix(files: RunFiles, text: str) -> np.ndarray:
    """Length in tokens of the shortest prefix with a text, per train sentence [sentence]; `NOWHERE` without one.

    A byte of an unfinished character, as prefixes show it, is found as a byte: `<0xE6>`.
    """
    needle = b"|".join(map(re.escape, dict.fromkeys([text.encode(), read_bytes(text)])))
    return _prefix_lengths(files, partial(first_matches, needle=re.compile(needle)))


def shortest_match(files: RunFiles, expression: str) -> np.ndarray:
    """Length in tokens of the prefix that ends with the first match, per train sentence [sentence]; else `NOWHERE`.

    Raises UserError if the expression is none, is too long, or takes longer than `SECONDS` for all sentences.
    """
    try:
        needle = compile_expression(expression)
    except ValueError as error:
        raise UserError(f"{expression[:LONGEST]!r} is not a regular expression: {error}.") from error
    return _prefix_lengths(files, partial(matches_of_each, needle=needle, until=time.monotonic() + SECONDS))


def _prefix_lengths(files: RunFiles, find: Find) -> np.ndarray:
    """Returns the length in tokens of the prefix that holds what is found in each train sentence; else `NOWHERE`.

    `find` gets the texts of some sentences, as `first_matches` does, and yields what it does.
    """
    corpus = files.corpus("train")
    shortest = np.full(len(corpus), NOWHERE, np.int32)
    with hdf5.open(files.folder / "corpus" / "train.h5", "corpus") as file:
        checked = Checked(file, Corpus)
        for first in range(0, len(corpus), BLOCK):
            last = min(first + BLOCK, len(corpus))
            starts = checked["text_offset"][first : last + 1]
            data = checked["text"][starts[0] : starts[-1]]
            starts, token_start = starts - starts[0], corpus.offsets[first : last + 1]
            matches = np.array(list(find(data.tobytes(), starts.tolist())), np.int64).reshape(-1, 2)
            if not len(matches):
                continue
            number, end = matches.T
            # The characters before a byte are the bytes before it but for those that go on with one, which UTF-8 marks.
            going_on = np.flatnonzero((data & 0xC0) == 0x80)
            first_character = starts[:-1] - np.searchsorted(going_on, starts[:-1])
            token_end = checked["token_end"][token_start[0] : token_start[-1]]
            ends = token_end + np.repeat(first_character, np.diff(token_start))
            last_token = np.searchsorted(ends, end - np.searchsorted(going_on, end))
            length = last_token + token_start[0] - token_start[number] + 1
            for match in np.flatnonzero(np.isin(end, going_on)).tolist():  # it ends inside a character
                begun = 1 + int(np.argmin(np.isin(np.arange(end[match] - 1, end[match] - 4, -1), going_on)))
                length[match] = _first_with_bytes(corpus, int(first + number[match]), int(length[match]), begun)
            shortest[first + number] = np.where(end > starts[number], length, 0)  # nothing is in the empty prefix, too
    return shortest


def _first_with_bytes(corpus: Corpus, sentence: int, length: int, begun: int) -> int:
    """Returns the length of the first prefix that holds `begun` bytes of a character, which is whole at `length`."""
    before = length - 1
    while before and corpus.unfinished(sentence, before):
        before -= 1
    shorter = range(before + 1, length)
    return next((each for each in shorter if len(read_bytes(corpus.unfinished(sentence, each))) >= begun), length)


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


def matches_of_each(data: bytes, starts: list[int], needle: Any, until: float) -> Iterator[tuple[int, int]]:
    """Finds the first match in each text, of an expression that may ask for the beginning and the end of a text.

    Arguments and results: see `first_matches`. Raises UserError if it goes on after the time `until`.
    """
    for number, (start, stop) in enumerate(pairwise(starts)):
        if match := needle.search(data[start:stop]):
            yield number, start + match.end()
        if not number % 256 and time.monotonic() > until:
            raise UserError(
                f"The regular expression {needle.pattern.decode()!r} takes longer than {SECONDS:g} s for the sentences of"
                " this run. Write one with fewer and shorter repeats."
            )
