"""Rules that label tokens of a corpus by its text: patterns such as digits and capitals, of code and LaTeX, and parts of speech.

After Herbst, Wermter and Lee (2026), "The Expert Strikes Back", who probe 58 such concepts.
"""

import re
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files

import numpy as np

from ffkv.base.errors import UserError
from ffkv.corpus.corpus_file import Corpus

RULES: dict[str, dict[str, str]] = tomllib.loads(files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))
SPEECH = "speech"  # the rules that are parts of speech; the others are regular expressions
# What a rule labels of a text: first character, and the one behind the last.
Rule = Callable[[str], Iterable[tuple[int, int]]]


def find_rules(kind: str, pipeline: str) -> dict[str, Rule]:
    """Returns the rules of a kind, by their names. Raises UserError if parts of speech are asked for, and spaCy has no such pipeline."""

    def expression(rule: str) -> Rule:
        return lambda text: (match.span() for match in re.finditer(rule, text))

    if kind != SPEECH:
        return {name: expression(rule) for name, rule in RULES[kind].items()}
    import spacy

    try:
        tagger = spacy.load(pipeline)
    except OSError as error:
        told = "Install the package, or name another one in `pipeline`. A folder that spaCy wrote may be named, too."
        raise UserError(f"spaCy has no pipeline {pipeline!r}, which tells parts of speech. {told}") from error

    @cache
    def words(text: str) -> list[tuple[str, int, int]]:
        return [(word.pos_, word.idx, word.idx + len(word)) for word in tagger(text)]

    def part(tag: str) -> Rule:
        return lambda text: ((start, stop) for found, start, stop in words(text) if found == tag)

    return {name: part(tag) for name, tag in RULES[kind].items()}


def label_tokens(corpus: Corpus, sentence: int, rule: Rule) -> np.ndarray:
    """Tells which tokens of a sentence a rule labels: those with a character of it that is no blank [token]."""
    text, ends = corpus.texts[sentence], corpus.token_end[corpus.offsets[sentence] : corpus.offsets[sentence + 1]]
    inside = np.zeros(len(text) + 1, int)
    for start, stop in rule(text):
        inside[start:stop] = [not each.isspace() for each in text[start:stop]]
    sums = np.concatenate([[0], np.cumsum(inside)])
    labels: np.ndarray = sums[ends] > sums[np.concatenate([[0], ends[:-1]])]
    return labels
