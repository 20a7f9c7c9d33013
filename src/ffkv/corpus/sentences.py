"""Splits documents into sentences, with spaCy's rule-based sentencizer, which needs no downloaded model."""

import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ffkv.base.errors import UserError, one_line
from ffkv.base.settings.common import ANY, ENGLISH

if TYPE_CHECKING:
    from spacy.language import Language

BLANKS = re.compile(r"\s+")
PARAGRAPH = "\u2029"  # Unicode's sign between two paragraphs: a sentence ends in front of it
# spaCy takes minutes for long runs without blanks and long runs of signs, which are not words that a person wrote.
LONG_RUN = re.compile(r"\S{200,}|[^\w\s]{40,}")
KEPT_CHARACTERS = 20  # a long run is replaced by a word of this length for spaCy
PIECE_CHARACTERS = 200_000  # spaCy gets a text in pieces of this length, which limits the memory

Span = tuple[int, int]  # start and end (exclusive) of a sentence, in characters


def split_sentences(
    text: str, splitter: str, pretokenized: bool, white_space: str = "collapse", language: str = ENGLISH
) -> list[str]:
    """Splits a document into sentences. Some of them may be empty, or white space alone.

    Args:
        splitter: "sentence" for the sentences of the sentencizer, none of which goes over a `PARAGRAPH`, "line" for lines, "document" for the whole text.
        pretokenized: True if blanks already separate the words; then white space within a sentence is kept anyway.
        white_space: "collapse": each run of white space becomes one blank, because wrapped text contains line breaks,
            and none is at the ends. "keep": no character is changed, and the sentences, put together, are the text.
            Their bounds are those of "collapse". A line ends with its line break; see `_restore_white_space`.
        language: a code that spaCy knows, whose rules say which dots end no sentence.
    Raises:
        UserError: spaCy lacks a package for the words of the language.
    """
    keep = white_space == "keep"
    if splitter == "document":
        sentences = [text]
    elif splitter == "line":
        sentences = list(StringIO(text, newline=""))  # as in a txt file: other signs, such as U+2028, end no line
    else:
        split = functools.partial(_pretokenized_spans if pretokenized else _spans, language)
        paragraphs = (part if pretokenized else BLANKS.sub(" ", part) for part in text.split(PARAGRAPH))
        sentences = [sentence for part in paragraphs for sentence in _split_in_pieces(part, split)]
    if keep:
        return _restore_white_space(text, sentences) if splitter == "sentence" else sentences
    return [sentence.strip() if pretokenized else BLANKS.sub(" ", sentence).strip() for sentence in sentences]


def _restore_white_space(text: str, sentences: list[str]) -> list[str]:
    """Returns the sentences of a text with all of its white space, from the sentences without some of it.

    White space between two sentences belongs to the second one, as tokenizers have it (" The"). Line breaks, and what
    is in front of them, belong to the first one, so that a line keeps its indentation.
    """
    cuts, end = [0], 0
    for sentence in sentences:
        words = sentence.split()
        for number, word in enumerate(words):
            blanks = BLANKS.match(text, end)
            start = blanks.end() if blanks else end
            if not number and end:
                indentation = re.split("[\r\n]", f"{text[end:start]}.")[-1]
                cuts.append(start - len(indentation) + 1)
            end = start + len(word)
    cuts.append(len(text))
    return [text[first:last] for first, last in pairwise(cuts)]


def _split_in_pieces(text: str, split: Callable[[str], list[Span]]) -> Iterator[str]:
    """Splits a text in pieces. The last sentence of a piece, which may go on, is the beginning of the next one."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        end = max(text.rfind(blank, start, start + PIECE_CHARACTERS) for blank in " \n") + 1
        end = end if end > start else start + PIECE_CHARACTERS
        spans = split(text[start:end])
        if len(spans) > 1:
            end = start + spans.pop()[0]
        yield from (text[start + first : start + last] for first, last in spans)
        start = end
    yield from (text[start + first : start + last] for first, last in split(text[start:]))


def _spans(code: str, text: str) -> list[Span]:
    if not text or text == " ":  # a shortcut, because empty lines are frequent
        return [(0, len(text))] if text else []
    language = _language(code)
    pieces: list[str] = []  # of a short text, without most of each long run
    # Places of the short text behind long runs, and by how many characters what follows is moved [run]; first the beginning.
    places, shifts, copied, length = list[int](), [0], 0, 0
    for run in LONG_RUN.finditer(text):
        pieces += [text[copied : run.start()], "x" * KEPT_CHARACTERS]
        copied = run.end() - KEPT_CHARACTERS
        length += len(pieces[-2]) + KEPT_CHARACTERS
        places.append(length)
        shifts.append(copied - length)
    with language.memory_zone():
        document = language.get_pipe("sentencizer")(language.tokenizer("".join([*pieces, text[copied:]])))
        bounds = [(sentence.start_char, sentence.end_char) for sentence in document.sents]
    return [
        (start + shifts[bisect_right(places, start)], end + shifts[bisect_right(places, end)]) for start, end in bounds
    ]


def _pretokenized_spans(code: str, text: str) -> list[Span]:
    from spacy.tokens import Doc

    words = list(re.finditer(r"\S+", text))
    if not words:
        return [(0, len(text))]
    language = _language(code)
    with language.memory_zone():
        document = language.get_pipe("sentencizer")(Doc(language.vocab, words=[word.group() for word in words]))
        bounds = [(sentence.start, sentence.end - 1) for sentence in document.sents]
    return [(words[first].start(), words[last].end()) for first, last in bounds]


@functools.cache
def _language(code: str) -> "Language":
    """Returns a language of spaCy without a model, with the rules for sentences."""
    import spacy
    from spacy.attrs import IS_PUNCT

    try:
        language = spacy.blank(code)
    except ImportError as error:  # some languages find words by a package of their own
        raise UserError(
            f"corpus.language is {code!r}, and spaCy lacks a package for it: {one_line(error)} Install it, or set corpus.language to "
            f"{ANY!r}."
        ) from error
    language.add_pipe("sentencizer")
    vocabulary: Any = language.vocab
    # All that the sentencizer asks of a word. To find out the rest of each word takes as long as to split the text.
    vocabulary.lex_attr_getters = {IS_PUNCT: vocabulary.lex_attr_getters[IS_PUNCT]}
    return language
