"""Finds the words of a text. "Last word", "stop word" and "fewer than five words" are about words, not about tokens."""

import functools
import re

# A word with the hyphens, apostrophes and dots in it ("state-of-the-art", "don't", "3.14", "os.path"), or one sign.
RAW_WORD = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")
PRETOKENIZED_WORD = re.compile(r"\S+")


def word_spans(text: str, pretokenized: bool) -> list[tuple[int, int]]:
    """Start and end (exclusive) of each word of a text, in characters. Punctuation marks are words, as in WikiText."""
    return [match.span() for match in (PRETOKENIZED_WORD if pretokenized else RAW_WORD).finditer(text)]


def words(text: str, pretokenized: bool) -> list[str]:
    """The words of a text. If a prefix ends inside a word, its last word is the part of it that the model has seen."""
    return [text[start:end] for start, end in word_spans(text, pretokenized)]


def word_at(text: str, end: int, pretokenized: bool) -> str:
    """The whole word of the token that ends before character `end`; "" if the token is white space only."""
    for start, stop in word_spans(text, pretokenized):
        if start < end <= stop:
            return text[start:stop]
    return ""


@functools.cache
def stop_words() -> frozenset[str]:
    """The 318 English stop words of scikit-learn, in lower case (list of the Glasgow Information Retrieval Group)."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return ENGLISH_STOP_WORDS
