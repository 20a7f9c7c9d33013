"""What prefixes are about: their content words in a latent semantic space of the corpus (Deerwester et al. 1990)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.words import stop_words, words

PASSAGE_SENTENCES = 10  # sentences of a document that are one passage
PASSAGES = 20_000  # passages that are read, so that a large corpus costs no more than a middling one
WORDS = 20_000  # content words that are known
DIMENSIONS = 100  # of the latent space
SHOWN_WORDS = 5  # in a topic's name


@dataclass(frozen=True)
class Space:
    """A latent semantic space.

    vectorizer: content words to TF-IDF. directions: the space's axes [dimension, word]; a corpus of too few content
    words has none. centre: mean of random prefixes [dimension], the origin, because what all prefixes are about makes
    none more similar.
    """

    vectorizer: TfidfVectorizer
    directions: np.ndarray
    centre: np.ndarray

    def of(self, prefixes: Sequence[Sequence[str]]) -> tuple[np.ndarray, csr_matrix]:
        """Where prefixes stand.

        Args:
            prefixes: content words by prefix.
        Returns:
            Vectors of unit length, zero for a prefix without any known word [prefix, dimension], and the weights of the
            words that they come from [prefix, word].
        """
        known = len(self.directions) and prefixes
        weights = (
            self.vectorizer.transform(prefixes) if known else csr_matrix((len(prefixes), self.directions.shape[1]))
        )
        return self.vectors(weights), weights

    def vectors(self, weights: csr_matrix) -> np.ndarray:
        """Vectors of unit length [prefix, dimension] from weights of words [prefix, word]; zero where there are none."""
        if not weights.nnz:
            return np.zeros((weights.shape[0], len(self.directions)), np.float32)
        vectors = normalize(weights @ self.directions.T)
        vectors[vectors.any(axis=1)] -= self.centre
        return normalize(vectors).astype(np.float32)

    def name(self, direction: np.ndarray) -> str:
        """The most typical words of a direction [dimension]."""
        with threadpool_limits(1):
            typical = np.argsort(-(direction @ self.directions), kind="stable")[:SHOWN_WORDS]
        return ", ".join(self.vectorizer.get_feature_names_out()[typical])


def content_words(prefix: Sequence[str]) -> list[str]:
    """The words that say what a prefix is about, in lower case: three letters or more, no stop words."""
    lower = (word.lower() for word in prefix)
    return [word for word in lower if len(word) > 2 and word[0].isalpha() and word not in stop_words()]


def fit_space(corpus: Corpus, prefixes: Sequence[Sequence[str]], seed: int) -> Space:
    """Finds the latent space of a corpus. The same arguments give the same one, whatever the number of threads.

    Args:
        prefixes: words of random prefixes.
    """
    texts = [content_words(words(text, corpus.pretokenized)) for text in passages(corpus, np.random.default_rng(seed))]
    vectorizer = TfidfVectorizer(analyzer=list, min_df=2, max_df=0.5, max_features=WORDS, sublinear_tf=True)
    try:
        weights = vectorizer.fit_transform(texts)
    except ValueError:  # no word that stands in two passages but not in most of them
        return Space(vectorizer, np.empty((0, 0)), np.empty(0))
    with threadpool_limits(1):
        found = TruncatedSVD(min(DIMENSIONS, *weights.shape), random_state=seed).fit(weights).components_
    vectors, _ = Space(vectorizer, found, np.zeros(len(found))).of([content_words(prefix) for prefix in prefixes])
    return Space(vectorizer, found, vectors.sum(axis=0) / max(vectors.any(axis=1).sum(), 1))


def passages(corpus: Corpus, generator: np.random.Generator) -> list[str]:
    """Pieces of up to `PASSAGE_SENTENCES` sentences of one document, at most `PASSAGES` of them, chosen at random."""
    pieces = list(_pieces(corpus))
    if len(pieces) > PASSAGES:
        pieces = [pieces[index] for index in np.sort(generator.choice(len(pieces), PASSAGES, replace=False))]
    return [" ".join(corpus.texts[sentence] for sentence in piece) for piece in pieces]


def _pieces(corpus: Corpus) -> Iterator[range]:
    for _, sentences in groupby(range(len(corpus)), key=np.asarray(corpus.document).tolist().__getitem__):
        found = list(sentences)
        for start in range(found[0], found[-1] + 1, PASSAGE_SENTENCES):
            yield range(start, min(start + PASSAGE_SENTENCES, found[-1] + 1))
