"""Words, as opposed to tokens: "last word", "stop word" and "fewer than five words" are about words, not word pieces."""

import functools
import re

# A word with its inner hyphens, apostrophes and dots ("state-of-the-art", "don't", "3.14", "os.path"), or one sign.
RAW_WORD = re.compile(r"\w+(?:[-'’.]\w+)*|[^\w\s]")
PRETOKENIZED_WORD = re.compile(r"\S+")


def word_spans(text: str, pretokenized: bool) -> list[tuple[int, int]]:
    """Start and end (exclusive) of every word in a text, punctuation marks included, as WikiText counts them."""
    return [match.span() for match in (PRETOKENIZED_WORD if pretokenized else RAW_WORD).finditer(text)]


def words(text: str, pretokenized: bool) -> list[str]:
    """The words of a text. Of a prefix that ends inside a word, the last one is as much of it as the model has seen."""
    return [text[start:end] for start, end in word_spans(text, pretokenized)]


def word_at(text: str, end: int, pretokenized: bool) -> str:
    """The whole word that a token ending before character `end` belongs to; "" where it is white space only."""
    for start, stop in word_spans(text, pretokenized):
        if start < end <= stop:
            return text[start:stop]
    return ""


@functools.cache
def stop_words() -> frozenset[str]:
    """English stop words, lower case: scikit-learn's list (Glasgow's Information Retrieval Group), 318 words."""
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return ENGLISH_STOP_WORDS
