"""The topics of prefixes: their content words in a latent semantic space of the corpus (Deerwester et al. 1990)."""

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
from ffkv.streams import Purpose, random_stream

PASSAGE_SENTENCES = 10  # sentences of one document per passage
PASSAGES = 20_000  # maximum number of passages that are read, so that a large corpus takes no longer than a medium one
KNOWN_WORDS = 20_000  # maximum number of content words in the vocabulary
DIMENSIONS = 100  # dimensions of the latent space
SHOWN_WORDS = 5  # words in a topic's name


@dataclass(frozen=True)
class Space:
    """A latent semantic space.

    Attributes:
        vectorizer: computes TF-IDF weights from content words.
        directions: axes of the space; none if the corpus has too few content words [dimension, word].
        centre: mean vector of random prefixes [dimension]. It is the origin, because a topic of all prefixes makes no
            prefix more similar to another one.
    """

    vectorizer: TfidfVectorizer
    directions: np.ndarray
    centre: np.ndarray

    def locate(self, prefixes: Sequence[Sequence[str]]) -> tuple[np.ndarray, csr_matrix]:
        """Computes the vectors of prefixes, from the content words of each [prefix][word].

        Returns:
            Vectors of length 1, or zero for a prefix without known words [prefix, dimension]; and the weights of the
            words that they are computed from [prefix, word].
        """
        if len(self.directions) and prefixes:
            weights = self.vectorizer.transform(prefixes)
        else:
            weights = csr_matrix((len(prefixes), self.directions.shape[1]))
        return self.vectors(weights), weights

    def vectors(self, weights: csr_matrix) -> np.ndarray:
        """Vectors of length 1, or zero for a prefix without weights [prefix, dimension]. TF-IDF weights [prefix, word]."""
        if not weights.nnz:
            return np.zeros((weights.shape[0], len(self.directions)), np.float32)
        vectors = normalize(weights @ self.directions.T)
        vectors[vectors.any(axis=1)] -= self.centre
        return normalize(vectors).astype(np.float32)

    def name(self, direction: np.ndarray) -> str:
        """The `SHOWN_WORDS` most typical words of a direction [dimension], separated by commas."""
        with threadpool_limits(1):
            typical = np.argsort(-(direction @ self.directions), kind="stable")[:SHOWN_WORDS]
        return ", ".join(self.vectorizer.get_feature_names_out()[typical])


def content_words(prefix: Sequence[str]) -> list[str]:
    """The content words of a prefix, in lower case: words of three letters or more that are not stop words."""
    lower = (word.lower() for word in prefix)
    return [word for word in lower if len(word) > 2 and word[0].isalpha() and word not in stop_words()]


def fit_space(corpus: Corpus, prefixes: Sequence[Sequence[str]], seed: int) -> Space:
    """Computes the latent space of a corpus. The result does not depend on the number of threads.

    Args:
        corpus: its passages are the documents of the latent space.
        prefixes: words of random prefixes; their mean becomes the origin [prefix][word].
    """
    texts = [
        content_words(words(text, corpus.pretokenized))
        for text in passages(corpus, random_stream(seed, Purpose.PASSAGES))
    ]
    vectorizer = TfidfVectorizer(analyzer=list, min_df=2, max_df=0.5, max_features=KNOWN_WORDS, sublinear_tf=True)
    try:
        weights = vectorizer.fit_transform(texts)
    except ValueError:  # no word occurs in two passages or more but in at most half of them
        weights = csr_matrix((len(texts), 0))
    if weights.shape[1] < 2:  # one such word spans no space
        return Space(vectorizer, np.empty((0, 0)), np.empty(0))
    with threadpool_limits(1):
        directions = TruncatedSVD(min(DIMENSIONS, *weights.shape), random_state=seed).fit(weights).components_
    uncentred = Space(vectorizer, directions, np.zeros(len(directions)))
    vectors, _ = uncentred.locate([content_words(prefix) for prefix in prefixes])
    return Space(vectorizer, directions, vectors.sum(axis=0) / max(vectors.any(axis=1).sum(), 1))


def passages(corpus: Corpus, generator: np.random.Generator) -> list[str]:
    """The texts of passages of a corpus; a random `PASSAGES` of them if there are more.

    A passage is a run of up to `PASSAGE_SENTENCES` sentences of one document.
    """
    sentences = list(_passage_sentences(corpus))
    if len(sentences) > PASSAGES:
        sentences = [sentences[index] for index in np.sort(generator.choice(len(sentences), PASSAGES, replace=False))]
    return [" ".join(corpus.texts[sentence] for sentence in passage) for passage in sentences]


def _passage_sentences(corpus: Corpus) -> Iterator[range]:
    for _, sentences in groupby(range(len(corpus)), key=np.asarray(corpus.document).tolist().__getitem__):
        numbers = list(sentences)
        first, end = numbers[0], numbers[-1] + 1
        for start in range(first, end, PASSAGE_SENTENCES):
            yield range(start, min(start + PASSAGE_SENTENCES, end))
