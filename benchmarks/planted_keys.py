"""Keys of which it is known what their prefixes are about: for `benchmarks.patterns`."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ffkv.base.settings import Corpus as CorpusSettings
from ffkv.branches.keys.topics import content_words
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus, read_corpus, write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode
from ffkv.corpus.words import words
from ffkv.model.small import BOS_ID, train_tokenizer
from ffkv_embedded.python_docs import documents as python_documents

PREFIXES = 25
HEADING = re.compile(r"= [^=].*[^=] =")  # of an article of WikiText
LINES = 60  # per article, of a text without headings
VOCABULARY, CONTEXT = 4096, 256

Key = list[list[str]]  # words of each prefix


class Material(NamedTuple):
    """The prefixes that keys are made of.

    Attributes:
        words: words of each prefix [prefix][word].
        sentence: sentence of each prefix [prefix].
        article: article of each prefix [prefix].
        last: last word of each prefix, in lower case [prefix].
        content: number of different content words of each prefix [prefix].
    """

    words: list[list[str]]
    sentence: np.ndarray
    article: np.ndarray
    last: np.ndarray
    content: np.ndarray


def articles(path: Path | None) -> Iterator[Document]:
    """Documents whose name is their article: the lines of a text file, or those of the embedded corpus."""
    if path is None:
        yield from python_documents()
        return
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    headings, article = any(map(HEADING.fullmatch, lines)), 0
    for number, line in enumerate(lines):
        article += bool(HEADING.fullmatch(line)) if headings else number % LINES == 0
        yield Document(str(article), line)


def make_corpus(path: Path | None, folder: Path) -> Corpus:
    """The corpus as a run would read it: a sentence per spaCy's rules, words separated by blanks if it is WikiText."""
    documents = list(articles(path))
    tokenizer = train_tokenizer((document.text for document in documents), VOCABULARY, CONTEXT)
    pretokenized = path is not None and any(HEADING.fullmatch(document.text) for document in documents)
    encoded = encode(documents, tokenizer, CONTEXT - 1, CorpusSettings(pretokenized=pretokenized))
    write_corpus(folder / "corpus.h5", encoded, [BOS_ID], pretokenized, {})
    return read_corpus(folder / "corpus.h5")


def make_material(competing: CompetingPrefixes, per_sentence: int = 4, seed: int = 0) -> Material:
    """A few random prefixes of every sentence."""
    corpus, generator = competing.corpus, np.random.default_rng([seed, 1])
    names = {name: number for number, name in enumerate(dict.fromkeys(corpus.document_names))}
    of_document = np.array([names[name] for name in corpus.document_names])
    sentence, position = [], []
    for number, length in enumerate(corpus.lengths.tolist()):
        if length > 1:
            chosen = generator.choice(np.arange(1, length), min(per_sentence, length - 1), replace=False)
            sentence += [number] * len(chosen)
            position += chosen.tolist()
    found = [words(corpus.prefix_text(*place), corpus.pretokenized) for place in zip(sentence, position)]
    sentence = np.array(sentence)
    article = of_document[np.asarray(corpus.document[:])[sentence]]
    last = np.array([each[-1].lower() if each else "" for each in found])
    content = np.array([len({*content_words(each)}) for each in found])
    return Material(found, sentence, article, last, content)


class Planter:
    """Makes keys of the prefixes of a corpus."""

    def __init__(self, material: Material, content: int):
        """Counts the sentences of each article, and of each article and last word.

        Args:
            material: the prefixes.
            content: minimum number of content words of a prefix that is planted.
        """
        self.material = material
        frame = pd.DataFrame({"article": material.article, "last": material.last, "sentence": material.sentence})
        frame["prefix"] = np.arange(len(frame))
        self._by_word = {key: rows.to_numpy() for key, rows in frame.groupby("last")["prefix"]}
        self._of_word = frame.groupby("last")["sentence"].nunique()
        frame = frame[material.content >= content]
        self._by_article = {key: rows.to_numpy() for key, rows in frame.groupby("article")["prefix"]}
        self._by_both = {key: rows.to_numpy() for key, rows in frame.groupby(["article", "last"])["prefix"]}
        self._sentences = frame.groupby(["article", "last"])["sentence"].nunique()
        self._of_article = frame.groupby("article")["sentence"].nunique()

    def _different(self, numbers: np.ndarray, taken: set[int], count: int, avoid: int = -1) -> list[int]:
        """The first `count` of some prefixes that are of different sentences, none of `taken` or of the article `avoid`."""
        chosen: list[int] = []
        for number in numbers.tolist():
            if len(chosen) == count:
                break
            if self.material.sentence[number] not in taken and self.material.article[number] != avoid:
                taken.add(self.material.sentence[number])
                chosen.append(number)
        return chosen

    def plant(self, count: int, same_word: bool, generator: np.random.Generator) -> Key | None:
        """Makes a key: `count` prefixes are of one article, the others of any other.

        Args:
            count: number of prefixes of the article.
            same_word: whether all prefixes of the key end with one word.
            generator: random stream. Large articles, and words that are frequent in one, are drawn more often.
        Returns:
            The words of the prefixes; None if no article has so many fitting sentences.
        """
        sentences = self._sentences if same_word else self._of_article
        fitting = sentences[sentences >= count]
        if same_word:
            others = self._of_word[fitting.index.get_level_values("last")].to_numpy() - fitting.to_numpy()
            fitting = fitting[others >= PREFIXES - count]
        if not len(fitting):
            return None
        drawn = fitting.index[generator.choice(len(fitting), p=fitting / fitting.sum())]
        article, word = drawn if same_word else (drawn, None)
        own = self._by_both[drawn] if same_word else self._by_article[article]
        around = self._by_word[word] if same_word else np.arange(len(self.material.words))
        taken: set[int] = set()
        chosen = self._different(generator.permutation(own), taken, count)
        chosen += self._different(generator.permutation(around), taken, PREFIXES - count, avoid=article)
        return [self.material.words[number] for number in generator.permutation(chosen).tolist()]

    def plant_two(self, count: int, generator: np.random.Generator) -> Key:
        """Makes a key: `count` prefixes are of one article, as many of another one, the others of any."""
        fitting = self._of_article[self._of_article >= count]
        articles = generator.choice(fitting.index, 2, replace=False, p=fitting / fitting.sum())
        taken: set[int] = set()
        chosen = [
            number
            for article in articles
            for number in self._different(generator.permutation(self._by_article[article]), taken, count)
        ]
        everything = generator.permutation(len(self.material.words))
        chosen += self._different(everything, taken, PREFIXES - len(chosen))
        return [self.material.words[number] for number in generator.permutation(chosen).tolist()]

    def control(self, same_word: bool, generator: np.random.Generator) -> Key:
        """Makes a key of random prefixes of different sentences, which all end with one word if `same_word`."""
        fitting = self._of_word[self._of_word >= PREFIXES]
        around = np.arange(len(self.material.words))
        if same_word:
            around = self._by_word[fitting.index[generator.choice(len(fitting), p=fitting / fitting.sum())]]
        chosen = self._different(generator.permutation(around), set(), PREFIXES)
        return [self.material.words[number] for number in chosen]
