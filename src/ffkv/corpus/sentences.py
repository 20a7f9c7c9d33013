"""Documents to sentences. spaCy's rule-based sentencizer: no model to fetch, and it takes pre-tokenised text as it is."""

import functools
import re

BLANKS = re.compile(r"\s+")
LONG_RUN = re.compile(r"\S{200,}")


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
    else:
        parts = _sentences_of_words(text) if pretokenized else _sentences(BLANKS.sub(" ", text))
    return [part.strip() if pretokenized else BLANKS.sub(" ", part).strip() for part in parts]


def _sentences(text: str) -> list[str]:
    """spaCy takes minutes over a long run of signs without a blank, so it sees one plain word of that length instead."""
    language = _language()
    plain = LONG_RUN.sub(lambda run: "x" * (len(run[0]) - 1) + run[0][-1], text)
    with language.memory_zone():
        document = language.get_pipe("sentencizer")(language.tokenizer(plain))
        return [text[sentence.start_char : sentence.end_char] for sentence in document.sents]


def _sentences_of_words(text: str) -> list[str]:
    from spacy.tokens import Doc

    words = list(re.finditer(r"\S+", text))
    if not words:
        return [text]
    language = _language()
    with language.memory_zone():
        document = language.get_pipe("sentencizer")(Doc(language.vocab, words=[word.group() for word in words]))
        bounds = [(sentence.start, sentence.end - 1) for sentence in document.sents]
    return [text[words[first].start() : words[last].end()] for first, last in bounds]


@functools.cache
def _language():
    import spacy

    language = spacy.blank("en")
    language.add_pipe("sentencizer")
    return language
