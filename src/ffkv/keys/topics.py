"""Topics of a corpus: clusters of its passages in a latent semantic space (Deerwester et al. 1990)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from ffkv.corpus.data import Corpus
from ffkv.corpus.words import stop_words, words
from ffkv.keys.features import Evidence

PASSAGE_SENTENCES = 10  # sentences of a document that are one passage
PASSAGES = 20_000  # passages that are read, so that a large corpus costs no more than a middling one
WORDS = 20_000  # content words that are known
DIMENSIONS = 100  # of the latent space
SHOWN_WORDS = 5  # in a topic's label


@dataclass(frozen=True)
class Topics:
    """A latent semantic space and its topics.

    vectorizer: content words to TF-IDF. directions: the space's axes [dimension, word].
    centres: topics [topic, dimension]. labels: each topic's most typical words.
    """

    vectorizer: TfidfVectorizer
    directions: np.ndarray
    centres: np.ndarray
    labels: list[str]

    def of(self, prefixes: Sequence[Sequence[str]]) -> list[Evidence]:
        """The topic of each prefix: the nearest centre by cosine.

        Args:
            prefixes: content words by prefix. One without any known word has no topic.
        """
        if not (self.labels and prefixes):
            return [Evidence([], 0) for _ in prefixes]
        with threadpool_limits(1):
            vectors = self.vectorizer.transform(prefixes)
            nearest = (_project(vectors, self.directions) @ normalize(self.centres).T).argmax(axis=1)
        known = np.diff(vectors.indptr)
        return [Evidence([("topic", str(topic))] if count else [], int(count)) for topic, count in zip(nearest, known)]


def content_words(prefix: Sequence[str]) -> list[str]:
    """The words that say what a prefix is about, in lower case: three letters or more, no stop words."""
    lower = (word.lower() for word in prefix)
    return [word for word in lower if len(word) > 2 and word[0].isalpha() and word not in stop_words()]


def fit_topics(corpus: Corpus, topics: int, seed: int) -> Topics:
    """Finds the topics of a corpus. The same corpus and seed give the same topics, whatever the number of threads.

    Args:
        topics: how many; fewer where the corpus has fewer passages. A corpus of too few content words has none.
    """
    texts = [content_words(words(text, corpus.pretokenized)) for text in passages(corpus, np.random.default_rng(seed))]
    vectorizer = TfidfVectorizer(analyzer=list, min_df=2, max_df=0.5, max_features=WORDS, sublinear_tf=True)
    try:
        vectors = vectorizer.fit_transform(texts)
    except ValueError:  # no word that stands in two passages but not in most of them
        return Topics(vectorizer, np.empty((0, 0)), np.empty((0, 0)), [])
    with threadpool_limits(1):
        space = TruncatedSVD(min(DIMENSIONS, *vectors.shape), random_state=seed).fit(vectors)
        projected = _project(vectors, space.components_)
        clusters = KMeans(min(topics, len(np.unique(projected, axis=0))), n_init=3, random_state=seed).fit(projected)
        centres = clusters.cluster_centers_
    typical = np.argsort(-(centres @ space.components_), axis=1, kind="stable")[:, :SHOWN_WORDS]
    vocabulary = vectorizer.get_feature_names_out()
    return Topics(vectorizer, space.components_, centres, [", ".join(vocabulary[row]) for row in typical])


def passages(corpus: Corpus, generator: np.random.Generator) -> list[str]:
    """Pieces of up to `PASSAGE_SENTENCES` sentences of one document, at most `PASSAGES` of them, chosen at random."""
    pieces = list(_pieces(corpus))
    if len(pieces) > PASSAGES:
        pieces = [pieces[index] for index in np.sort(generator.choice(len(pieces), PASSAGES, replace=False))]
    return [" ".join(corpus.texts[sentence] for sentence in piece) for piece in pieces]


def _pieces(corpus: Corpus) -> Iterator[range]:
    for _, sentences in groupby(range(len(corpus)), key=corpus.document.tolist().__getitem__):
        found = list(sentences)
        for start in range(found[0], found[-1] + 1, PASSAGE_SENTENCES):
            yield range(start, min(start + PASSAGE_SENTENCES, found[-1] + 1))


def _project(vectors: csr_matrix, directions: np.ndarray) -> np.ndarray:
    return normalize(vectors @ directions.T)
