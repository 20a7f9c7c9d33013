"""Search over all memories of a run: by the tokens that they promote, and by the texts that trigger them."""

import bisect
import re
from collections.abc import Iterator

import h5py
import numpy as np
import pandas as pd

from ffkv.errors import UserError
from ffkv.files import hdf5
from ffkv.results.memory_statistics import token_texts
from ffkv.results.run_files import RunFiles

BLOCK = 16_384  # sentences that are searched at a time
NOWHERE = np.iinfo(np.int32).max  # no prefix of the sentence holds the text
SUGGESTED = 10  # tokens that a message suggests


def promoting(files: RunFiles, text: str) -> pd.DataFrame:
    """Finds the memories that keep a token among the top tokens of their value.

    Args:
        text: the token's text. Blanks at its two ends do not count, so that "church" finds the token " church" too.
    Returns:
        One row per memory: row (of the memory in flat arrays), promoted_token, promoted_rank (from 0),
        promoted_probability. Where several such tokens are kept, the one with the highest logit.
    Raises:
        UserError: the model has no such token; suggests others.
    """
    ids = _tokens(files, text)
    hits = []
    for group, layers in enumerate(files.layer_groups):
        with files.open_projections(group) as file:
            tokens, first = file["top_token"], files.anatomy.layer_offset[layers.start] if len(layers) else 0
            for start, stop in _row_blocks(tokens):
                block = tokens[start:stop]
                kept = np.isin(block, ids)
                rows = np.flatnonzero(kept.any(1))
                ranks = kept[rows].argmax(1)
                probability = np.exp(file["top_log_probability"][start:stop][rows, ranks].astype(float))
                hits.append((first + start + rows, block[rows, ranks], ranks, probability))
    row, token, rank, probability = (np.concatenate(columns) for columns in zip(*hits))
    found = {"promoted_token": token_texts(token, files.vocabulary), "promoted_rank": rank}
    return pd.DataFrame({"row": row, **found, "promoted_probability": probability})


def _tokens(files: RunFiles, text: str) -> list[int]:
    """The ids of all tokens whose text is `text` but for blanks at the ends."""
    wanted, texts = text.strip(), list(files.vocabulary)
    ids = [number for number, token in enumerate(texts) if token.strip() == wanted]
    if ids:
        return ids
    similar = [
        repr(token) for token in texts if wanted and (wanted in token or wanted.startswith(token.strip() or "\0"))
    ]
    advice = f" Similar tokens: {', '.join(similar[:SUGGESTED])}." if similar else ""
    raise UserError(f"{text!r} is not a token of {files.anatomy.checkpoint}: longer words are several tokens.{advice}")


def triggered(files: RunFiles, text: str) -> pd.DataFrame:
    """Finds the memories that have a text, to the letter, in one of their trigger examples.

    Returns:
        One row per memory: row (of the memory in flat arrays), examples_with_text (number of trigger examples that
        contain the text), coefficient_with_text (the highest coefficient of these).
    Raises:
        UserError: the text is empty.
    """
    if not text:
        raise UserError("The text to search for is empty.")
    shortest = _shortest_prefix(files, text)
    hits = []
    with files.open_triggers() as file:
        for start, stop in _row_blocks(file["sentence"]):
            sentence, position = file["sentence"][start:stop], file["position"][start:stop]
            kept = np.arange(sentence.shape[1]) < file["count"][start:stop][:, None]
            contains = kept & (shortest[np.where(kept, sentence, 0)] <= position)
            rows = np.flatnonzero(contains.any(1))
            # Coefficients descend, so the first example with the text has the highest one.
            highest = file["coefficient"][start:stop][rows, contains[rows].argmax(1)]
            hits.append((start + rows, contains[rows].sum(1), highest))
    row, examples, coefficient = (np.concatenate(columns) for columns in zip(*hits))
    return pd.DataFrame({"row": row, "examples_with_text": examples, "coefficient_with_text": coefficient})


def _row_blocks(dataset: h5py.Dataset) -> list[tuple[int, int]]:
    """Start and end of the rows that are stored together, so that each chunk is read once."""
    step = dataset.chunks[0] if dataset.chunks else max(1, len(dataset))
    return [(start, min(start + step, len(dataset))) for start in range(0, max(1, len(dataset)), step)]


def _shortest_prefix(files: RunFiles, text: str) -> np.ndarray:
    """Length in tokens of the shortest prefix that contains a text, of each train sentence [sentence]; else `NOWHERE`."""
    corpus = files.corpus("train")
    shortest = np.full(len(corpus), NOWHERE, np.int32)
    needle = re.compile(re.escape(text.encode()))
    with hdf5.open(files.folder / "corpus" / "train.h5", "corpus") as file:
        for first in range(0, len(corpus), BLOCK):
            last = min(first + BLOCK, len(corpus))
            starts = file["text_offset"][first : last + 1]
            data = file["text"][starts[0] : starts[-1]]
            starts, token_start = starts - starts[0], corpus.offsets[first : last + 1]
            matches = np.array(list(_first_matches(data.tobytes(), starts.tolist(), needle)), np.int64).reshape(-1, 2)
            number, end = matches.T
            # Character c of the block starts before byte b for c < characters[b]: UTF-8 marks the bytes that go on with one.
            characters = np.concatenate([[0], np.cumsum((data & 0xC0) != 0x80)])
            token_end = file["token_end"][token_start[0] : token_start[-1]]
            ends = token_end + np.repeat(characters[starts[:-1]], np.diff(token_start))
            last_token = np.searchsorted(ends, characters[end])
            shortest[first + number] = last_token + token_start[0] - token_start[number] + 1
    return shortest


def _first_matches(data: bytes, starts: list[int], needle: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
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
