"""Tasks without labels of a person: tokens of the corpus that a rule labels.

After Herbst, Wermter and Lee (2026), "The Expert Strikes Back", who probe 58 such concepts. It differs: documents are in one half as a
whole, where they split by token; and a token that is labelled is compared with others of its own sentence.
"""

import re
import tomllib
from collections.abc import Iterator
from importlib.resources import files

import numpy as np

from ffkv.base.errors import UserError
from ffkv.branches.concepts.draw import Task, draw
from ffkv.corpus.corpus_file import Corpus

SENTENCES = 20_000  # maximum number of sentences that are looked through, so that a large corpus takes no longer
PER_SENTENCE = 2  # tokens of each label
RULES: dict[str, dict[str, str]] = tomllib.loads(files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))


def label_tokens(text: str, ends: np.ndarray, rule: str) -> np.ndarray:
    """Tells which tokens of a text a rule labels [token].

    `ends`: how many characters of the text the model has read whole with each token [token].
    """
    inside = np.zeros(len(text) + 1, int)
    for match in re.finditer(rule, text):
        inside[match.start() : match.end()] = [not each.isspace() for each in match[0]]
    sums = np.concatenate([[0], np.cumsum(inside)])
    return sums[ends] > sums[np.concatenate([[0], ends[:-1]])]


def tasks_of_rules(
    corpus: Corpus, rules: str, texts: int, longest: int, generator: np.random.Generator
) -> Iterator[tuple[str, Task | str]]:
    """Yields the name of each rule, and its task; or why it has none, if too few tokens have the label.

    `corpus`: the train split. `texts`, `longest`: the settings.
    """
    sentences = generator.permutation(len(corpus))[:SENTENCES].tolist()
    for name, rule in RULES[rules].items():
        found: list[tuple[int, int, bool]] = []  # sentence, tokens up to the labelled one, label
        for sentence in sentences:
            if len(found) >= 4 * texts:  # documents are drawn among as many again
                break
            text = corpus.texts[sentence]
            if not re.search(rule, text):
                continue
            ends = corpus.token_end[corpus.offsets[sentence] : corpus.offsets[sentence + 1]]
            labels = label_tokens(text, ends, rule)[:longest]
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
