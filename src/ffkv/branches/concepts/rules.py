"""Tasks without labels of a person: tokens of the corpus that a rule labels (`ffkv.corpus.rules`).

It differs from Herbst, Wermter and Lee (2026): documents are in one half as a whole, where they split by token; and a token that is
labelled is compared with others of its own sentence.
"""

from collections.abc import Iterator

import numpy as np

from ffkv.activations.trigger_file import NONE, Triggers
from ffkv.base.errors import UserError
from ffkv.branches.concepts.draw import Task, draw
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.rules import Rule, label_tokens

SENTENCES = 20_000  # maximum number of sentences that are looked through, so that a large corpus takes no longer
PER_SENTENCE = 2  # tokens of each label


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
        numbers, position, positive = np.array(found, int).reshape(-1, 3).T
        document = np.asarray(corpus.document[numbers] if len(numbers) else numbers)
        try:
            drawn, train = draw(positive > 0, document, None, texts, generator)
        except UserError as error:
            yield name, str(error)
            continue
        at = position[drawn]
        rows = [corpus.prefix_ids(*each) for each in zip(numbers[drawn].tolist(), at.tolist(), strict=True)]
        yield name, Task(name, name, rows, np.ones_like(at), positive[drawn] > 0, document[drawn], train, at)
