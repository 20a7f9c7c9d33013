"""Documents to sentences. spaCy's rule-based sentencizer: no model to fetch, and it takes pre-tokenised text as it is."""

import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator

BLANKS = re.compile(r"\s+")
# spaCy takes minutes over what no person writes as words: a long run of anything, or of signs.
LONG_RUN = re.compile(r"\S{200,}|[^\w\s]{40,}")
END = 20  # characters at the end of such a run that it sees; one plain word stands for the rest
PIECE = 200_000  # characters that it sees at a time: bounds the memory

Span = tuple[int, int]  # start and end (exclusive) of a sentence


def split_sentences(text: str, splitter: str, pretokenized: bool) -> list[str]:
    """The sentences of a document, empty ones included.

    Args:
        text: the document.
        splitter: "sentence", "line" or "document".
        pretokenized: words are what stands between blanks; the text is kept to the letter. Otherwise runs of white
            space (the line breaks of wrapped text) become one blank.
    """
    if splitter == "document":
        parts = [text]
    elif splitter == "line":
        parts = text.splitlines()
    elif pretokenized:
        parts = list(_in_pieces(text, _sentences_of_words))
    else:
        parts = list(_in_pieces(BLANKS.sub(" ", text), _sentences))
    return [part.strip() if pretokenized else BLANKS.sub(" ", part).strip() for part in parts]


def _in_pieces(text: str, split: Callable[[str], list[Span]]) -> Iterator[str]:
    """The sentences of a text of any length, a piece of it at a time, cut at a blank where there is one.

    The last sentence of a piece may go on behind it, and begins the next piece, unless it is the whole piece.
    """
    start = 0
    while len(text) - start > PIECE:
        end = max(text.rfind(blank, start, start + PIECE) for blank in " \n") + 1
        end = end if end > start else start + PIECE
        spans = split(text[start:end])
        if len(spans) > 1:
            end = start + spans.pop()[0]
        yield from (text[start + first : start + last] for first, last in spans)
        start = end
    yield from (text[start + first : start + last] for first, last in split(text[start:]))


def _sentences(text: str) -> list[Span]:
    if not text or text == " ":  # empty lines are many
        return [(0, len(text))] if text else []
    language = _language()
    plain, places, shifts = _shortened(text)
    with language.memory_zone():
        document = language.get_pipe("sentencizer")(language.tokenizer(plain))
        bounds = [(sentence.start_char, sentence.end_char) for sentence in document.sents]
    return [tuple(place + shifts[bisect_right(places, place)] for place in span) for span in bounds]


def _shortened(text: str) -> tuple[str, list[int], list[int]]:
    """A text with its long runs made short; the places behind which characters are missing, and how many up to there."""
    parts, places, shifts, copied, length = [], [], [0], 0, 0
    for run in LONG_RUN.finditer(text):
        parts += [text[copied : run.start()], "x" * END]
        copied = run.end() - END
        length += len(parts[-2]) + END
        places.append(length)
        shifts.append(copied - length)
    return "".join([*parts, text[copied:]]), places, shifts


def _sentences_of_words(text: str) -> list[Span]:
    from spacy.tokens import Doc

    words = list(re.finditer(r"\S+", text))
    if not words:
        return [(0, len(text))]
    language = _language()
    with language.memory_zone():
        document = language.get_pipe("sentencizer")(Doc(language.vocab, words=[word.group() for word in words]))
        bounds = [(sentence.start, sentence.end - 1) for sentence in document.sents]
    return [(words[first].start(), words[last].end()) for first, last in bounds]


@functools.cache
def _language():
    import spacy

    language = spacy.blank("en")
    language.add_pipe("sentencizer")
    return language
