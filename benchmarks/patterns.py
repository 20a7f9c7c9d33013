"""`python -m benchmarks.patterns`: how often the test of `ffkv keys` finds a topic that was planted, and one that is not there.

A planted key has 25 prefixes, some of which are about one article. The others are random. Real keys are not needed, and no
model. A prefix such as "In the" is about nothing, wherever it is from: so a prefix that is about an article has some content
words. Lines without this condition are measured too.
"""

import functools
import itertools
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import pandas as pd

from ffkv.base.settings import Corpus as CorpusSettings
from ffkv.base.settings import Keys
from ffkv.branches.keys.key_sample import random_examples
from ffkv.branches.keys.patterns import Detector, detect_patterns, prepare_detector
from ffkv.branches.keys.similarity import place_prefixes, topic_p_values
from ffkv.branches.keys.topics import content_words
from ffkv.corpus.competing import CompetingPrefixes
from ffkv.corpus.corpus_file import Corpus, read_corpus, write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.embedded.tokenizer import BOS_ID, train_tokenizer
from ffkv.corpus.encode import encode
from ffkv.corpus.python_docs import documents as python_documents
from ffkv.corpus.words import words

PREFIXES = 25
PLANTED = (3, 5, 8, 12, 25)
LEVELS = (0.01, 0.05, 0.1, 0.5)
CONTENT_WORDS = (3, 0)  # minimum of different ones in each prefix that is planted
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


def study(
    name: str, competing: CompetingPrefixes, detector: Detector, layers: int, planted: int, per_layer: int, seed: int
) -> Iterator[dict]:
    """Tests layers that hold planted keys among random ones, as `ffkv keys` tests a layer.

    Args:
        name: name of the corpus.
        competing: its prefixes.
        detector: see `prepare_detector`.
        layers: number of layers per line of the table.
        planted: number of planted keys per layer.
        per_layer: number of keys per layer. Those that are not planted ("other keys") are random, apart from their last word if
            that is the same. As many keys of random prefixes stand beside them, as in a run.
        seed: seed of the random numbers.
    """
    material = make_material(competing, seed=seed)
    for number, (content, same_word) in enumerate(itertools.product(CONTENT_WORDS, (False, True))):
        planter = Planter(material, content)
        for count in PLANTED:
            found, alike, false, random, members = 0, 0, 0, 0, []
            for layer in range(layers):
                generator = np.random.default_rng([seed, 2, same_word, count, layer])
                keys: list[Sequence] = [planter.plant(count, same_word, generator) for _ in range(planted)]
                keys += [planter.control(same_word, generator) for _ in range(per_layer - planted)]
                controls = random_examples(competing, per_layer, PREFIXES, seed + 1000 * count + 100 * number, layer)
                keys += [example.prefixes for example in controls]
                patterns = detect_patterns(keys, detector)
                topics = [[each for each in of_key if each.family == "semantic"] for of_key in patterns]
                found += sum(map(bool, topics[:planted]))
                alike += sum(map(bool, topics[planted:per_layer]))
                false += sum(map(bool, topics[per_layer:]))
                random += len(controls)
                members += [len({*pattern.members}) for each in topics[:planted] for pattern in each]
            total = layers * planted
            yield {
                "corpus": name, "content words": content, "last word": "same" if same_word else "any", "of one article": count, "keys": total,
                "power": found / total, "other keys": layers * (per_layer - planted), "topics of other keys": alike,
                "random keys": random, "false findings": false,
                "prefixes per topic": float(np.mean(members)) if members else float("nan"),
            }  # fmt: skip


def study_second_topics(
    competing: CompetingPrefixes, detector: Detector, layers: int, planted: int, per_layer: int, seed: int
) -> Iterator[dict]:
    """How many keys have a topic, and how many a second one: of two articles, and of one. Arguments: see `study`."""
    planter = Planter(make_material(competing, seed=seed), CONTENT_WORDS[0])
    for number, (articles, count) in enumerate(((2, 8), (1, 12))):
        topics = []
        for layer in range(layers):
            generator = np.random.default_rng([seed, 3, number, layer])
            plant = planter.plant_two if articles == 2 else functools.partial(planter.plant, same_word=False)
            keys: list[Sequence] = [plant(count, generator=generator) for _ in range(planted)]
            keys += [planter.control(False, generator) for _ in range(per_layer - planted)]
            controls = random_examples(competing, per_layer, PREFIXES, seed + 10_000 + 100 * number, layer)
            keys += [example.prefixes for example in controls]
            topics += [
                sum(pattern.family == "semantic" for pattern in of_key)
                for of_key in detect_patterns(keys, detector)[:planted]
            ]
        shares = {
            name: float(np.mean(np.array(topics) >= least)) for least, name in ((1, "a topic"), (2, "a second one"))
        }
        yield {"articles": articles, "prefixes of each": count, "keys": len(topics), **shares}


def random_p_values(competing: CompetingPrefixes, detector: Detector, keys: int, seed: int) -> Iterator[dict]:
    """How often the p-values of random keys are small: of all prefixes, of few, of short ones and of long ones."""
    for name, drawn, choose in (
        ("25 prefixes", 25, lambda key: key),
        ("5 of the 25", 25, lambda key: key[:5]),
        ("the 20 shortest of 60", 60, lambda key: sorted(key, key=len)[:20]),
        ("the 20 longest of 60", 60, lambda key: sorted(key, key=len)[-20:]),
    ):
        random = [choose(example.prefixes) for example in random_examples(competing, keys, drawn, seed, layer=0)]
        placed = place_prefixes(random, [()] * keys, detector.pool)
        p = topic_p_values(placed, detector.pool, detector.minimum_prefixes, seed)
        yield {"random keys": name} | {f"p <= {level}": float(np.mean(p <= level)) for level in LEVELS}


def show(row: dict) -> None:
    """Prints a row."""
    cells = (f"{key}: {value:.3g}" if isinstance(value, float) else f"{key}: {value}" for key, value in row.items())
    click.echo(", ".join(cells))


@click.command()
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A text file such as WikiText.  [default: the embedded corpus]",
)
@click.option("--layers", type=click.IntRange(1), default=5, show_default=True, help="Layers per line of the table.")
@click.option("--planted", type=click.IntRange(1), default=20, show_default=True, help="Planted keys per layer.")
@click.option("--per-layer", type=click.IntRange(1), default=100, show_default=True, help="Keys per layer.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random numbers.")
@click.option("--output", type=click.Path(path_type=Path), help="CSV file to write.")
def main(text: Path | None, layers: int, planted: int, per_layer: int, seed: int, output: Path | None) -> None:
    """Measures the power of the test for topics, and its false findings on random keys."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = make_corpus(text, Path(folder))
        competing = CompetingPrefixes(corpus, once=True)
        detector = prepare_detector(competing, Keys(), seed)
        rows = []
        for row in study(text.name if text else "embedded", competing, detector, layers, planted, per_layer, seed):
            rows.append(row)
            show(row)
        for row in study_second_topics(competing, detector, layers, planted, per_layer, seed):
            show(row)
        for row in random_p_values(competing, detector, 1000, seed):
            show(row)
    if output:
        pd.DataFrame(rows).to_csv(output, index=False)


if __name__ == "__main__":
    main()
