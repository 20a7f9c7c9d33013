"""Tasks without labels of a person: tokens of the corpus that a rule labels.

After Herbst, Wermter and Lee (2026), "The Expert Strikes Back", who probe 58 such concepts. It differs: documents are in one half as a
whole, where they split by token; and a token that is labelled is compared with others of its own sentence.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.resources import files

import numpy as np

from ffkv.activations.trigger_file import NONE, Triggers
from ffkv.base.errors import UserError
from ffkv.branches.concepts.draw import Task, draw
from ffkv.corpus.corpus_file import Corpus

SENTENCES = 20_000  # maximum number of sentences that are looked through, so that a large corpus takes no longer
PER_SENTENCE = 2  # tokens of each label
RULES: dict[str, dict[str, str]] = tomllib.loads(files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))
SPEECH = "speech"  # the rules that are parts of speech; the others are regular expressions
Rule = Callable[
    [str], Iterable[tuple[int, int]]
]  # what it labels of a text: first character, and the one behind the last


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


def shares_of_examples(corpus: Corpus, triggers: Triggers, rule: Rule) -> np.ndarray:
    """Computes the share of each memory's trigger examples whose last token a rule labels [memory]; NaN without trigger examples."""
    there = (triggers.sentence != NONE) & (triggers.position > 0)
    used, at = np.unique(triggers.sentence[there], return_inverse=True)
    labels = [label_tokens(corpus, sentence, rule) for sentence in used.tolist()]
    first = np.cumsum([0, *map(len, labels)])[:-1]
    found = np.zeros(there.shape)
    if labels:
        found[there] = np.concatenate(labels)[first[at] + triggers.position[there] - 1]
    with np.errstate(invalid="ignore"):
        return found.sum(1) / there.sum(1)


def tasks_of_rules(
    corpus: Corpus, rules: dict[str, Rule], texts: int, longest: int, generator: np.random.Generator
) -> Iterator[tuple[str, Task | str]]:
    """Yields the name of each rule, and its task; or why it has none, if too few tokens have the label.

    `corpus`: the train split. `texts`, `longest`: the settings.
    """
    sentences = generator.permutation(len(corpus))[:SENTENCES].tolist()
    for name, rule in rules.items():
        found: list[tuple[int, int, bool]] = []  # sentence, tokens up to the labelled one, label
        for sentence in sentences:
            if len(found) >= 4 * texts:  # documents are drawn among as many again
                break
            labels = label_tokens(corpus, sentence, rule)[:longest]
            both = [np.flatnonzero(labels), np.flatnonzero(~labels)]
            count = min(PER_SENTENCE, *map(len, both))
            for label, own in zip((True, False), both):
                found += [(sentence, int(at) + 1, label) for at in generator.permutation(own)[:count]]
        numbers, position, positive = (np.array([each[place] for each in found], int) for place in range(3))
        document = np.asarray(corpus.document[numbers] if len(numbers) else numbers)
        try:
            drawn, train = draw(positive > 0, document, None, texts, generator)
        except UserError as error:
            yield name, str(error)
            continue
        used, row = np.unique(numbers[drawn], return_inverse=True)
        at = position[drawn]
        rows = [corpus.prefix_ids(each, at[row == place].max()) for place, each in enumerate(used.tolist())]
        last = at + len(corpus.bos)
        span = np.stack([last - 1, last], 1)
        yield name, Task(name, name, rows, row, span, positive[drawn] > 0, document[drawn], train, at)
