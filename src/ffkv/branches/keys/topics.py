"""The topics of a corpus, and how much the content words of a prefix speak for each of them."""

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

from ffkv.base.settings.languages import ENGLISH
from ffkv.base.streams import Purpose, random_stream
from ffkv.corpus.corpus_file import Corpus
from ffkv.corpus.words import stop_words, words

PASSAGE_SENTENCES = 10  # sentences of one document per passage
PASSAGES = 20_000  # maximum number of passages that are read, so that a large corpus takes no longer than a medium one
KNOWN_WORDS = 20_000  # maximum number of content words in the vocabulary
DIMENSIONS = 100  # dimensions of the latent space in which passages are compared
TOPICS = 64  # maximum number of topics
PASSAGES_PER_TOPIC = 10  # minimum, on average
NEIGHBOURS = 20  # passages before and behind one, which may be about the same
SMOOTHING = 300  # words of the corpus that are added to the words of each topic
WEIGHT = 0.7  # of the evidence of each word: words of one prefix depend on each other
SHARE = 0.3  # share of a key's prefixes that is expected to be about its topic
SHOWN_WORDS = 5  # words in a topic's name


@dataclass(frozen=True)
class Topics:
    """The topics of a corpus."""

    columns: dict[str, int]  # number of each known content word
    evidence: np.ndarray  # log of the frequency of a word in a topic over its frequency in the corpus [word, topic]
    shares: np.ndarray  # share of the passages of each topic [topic]
    names: list[str]  # the `SHOWN_WORDS` most typical words of each topic, separated by commas [topic]
    language: str = ENGLISH  # code of the language of the corpus

    def score(
        self, prefixes: Sequence[Sequence[str]], explained: Sequence[Sequence[str]] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Computes how much each prefix speaks for a key about each topic.

        With r = P(topic | words) / P(topic) of a naive Bayes classifier, the score is log(1 - s + s r): the
        log-likelihood ratio of a key of which a share s of the prefixes is about the topic, against a random key. s is
        `SHARE`. So a prefix about something else counts little against a topic.

        Explained words count for no topic, and a prefix that has them is compared with what they let expect: P(topic)
        becomes P(topic | explained words). Else prefixes that end with "troops" would be about war, because of what
        stands around this word anywhere.

        Args:
            prefixes: content words of each prefix that count [prefix][word].
            explained: content words of each prefix that are explained otherwise [prefix][word]; None: none are.
        Returns:
            The scores, 0 for a prefix without known words [prefix, topic]; and the number of different known words
            [prefix].
        """
        numbers = [self._known(prefix) for prefix in prefixes]
        given = [self._known(prefix) for prefix in explained] if explained is not None else [[] for _ in numbers]
        scores = np.zeros((len(numbers), len(self.shares)), np.float32)
        for row, (known, told) in enumerate(zip(numbers, given, strict=True)):
            if known:
                shares = self.shares * self._likelihood(told) if told else self.shares
                ratio = self._likelihood(known)
                scores[row] = np.log(1 - SHARE + SHARE * ratio * shares.sum() / (shares @ ratio))
        return scores, np.array([len(known) for known in numbers], int)

    def _known(self, words_of_prefix: Sequence[str]) -> list[int]:
        return sorted({self.columns[word] for word in words_of_prefix if word in self.columns})

    def _likelihood(self, known: list[int]) -> np.ndarray:
        """Computes how likely words are in each topic, up to a factor [topic]."""
        speaks = WEIGHT * self.evidence[known].sum(axis=0)
        return np.exp(speaks - speaks.max())


def content_words(prefix: Sequence[str], language: str = ENGLISH) -> list[str]:
    """Returns the content words of a prefix, in lower case: words of three letters or more that are not stop words."""
    lower, listed = (word.lower() for word in prefix), stop_words(language)
    return [word for word in lower if len(word) > 2 and word[0].isalpha() and word not in listed]


def fit_topics(corpus: Corpus, seed: int) -> Topics:
    """Finds the topics of a corpus: groups of passages with similar words. The result does not depend on the number of
    threads.

    Passages are compared in a latent semantic space (Deerwester et al. 1990), together with their neighbours.
    """
    texts = [
        content_words(words(text, corpus.pretokenized), corpus.language)
        for text in passages(corpus, random_stream(seed, Purpose.PASSAGES))
    ]
    vectorizer = TfidfVectorizer(analyzer=list, min_df=2, max_df=0.5, max_features=KNOWN_WORDS, sublinear_tf=True)
    try:
        weights = vectorizer.fit_transform(texts)
    except ValueError:  # no word occurs in two passages or more but in at most half of them
        weights = None
    if weights is None or weights.shape[1] < 2:  # one such word makes no difference between passages
        return Topics({}, np.zeros((0, 1)), np.ones(1), [""], corpus.language)
    with threadpool_limits(1):
        decomposition = TruncatedSVD(min(DIMENSIONS, *weights.shape), random_state=seed)
        vectors = add_neighbours(normalize(decomposition.fit_transform(weights)))
        count = max(1, min(TOPICS, len(texts) // PASSAGES_PER_TOPIC, len(np.unique(vectors, axis=0))))
        groups = KMeans(count, n_init=1, random_state=seed).fit(vectors).labels_
    known = vectorizer.get_feature_names_out()
    return _describe(weights.astype(bool), groups, count, known, corpus.language)


def add_neighbours(vectors: np.ndarray) -> np.ndarray:
    """Adds to each passage what stands around it, as far as neighbours are more similar than random passages.

    In a text whose lines count as documents, neighbours are about the same. In a shuffled collection they are not, and
    their weight is about 0.

    Args:
        vectors: vectors of length 1 or 0, in the order of the corpus [passage, dimension].
    Returns:
        Vectors of length 1 or 0 [passage, dimension].
    """
    together, mean = vectors.copy(), vectors.mean(axis=0)
    chance = float(mean @ mean)
    for distance in range(1, min(NEIGHBOURS, len(vectors) - 1) + 1):
        before, behind = vectors[:-distance], vectors[distance:]
        similarity = float(np.einsum("pd,pd->p", before, behind).mean())
        weight = max(0.0, (similarity - chance) / max(1 - chance, 1e-9))
        together[distance:] += weight * before
        together[:-distance] += weight * behind
    return normalize(together)


def _describe(occurs: csr_matrix, groups: np.ndarray, count: int, known: np.ndarray, language: str) -> Topics:
    """Returns the words of each group of passages. `occurs`: whether each passage has each word [passage, word]."""
    members = csr_matrix((np.ones(len(groups)), (groups, np.arange(len(groups)))), shape=(count, len(groups)))
    counts = np.asarray((members @ occurs.astype(float)).todense())
    total = counts.sum(axis=0) + 1
    frequency = total / total.sum()
    of_topic = (counts + SMOOTHING * frequency) / (counts.sum(axis=1, keepdims=True) + SMOOTHING)
    evidence = np.log(of_topic / frequency)
    typical = np.argsort(-of_topic * evidence, axis=1, kind="stable")[:, :SHOWN_WORDS]
    return Topics(
        columns={word: number for number, word in enumerate(known.tolist())},
        evidence=np.ascontiguousarray(evidence.T),
        shares=np.bincount(groups, minlength=count) / len(groups),
        names=[", ".join(known[row]) for row in typical],
        language=language,
    )


def passages(corpus: Corpus, generator: np.random.Generator) -> list[str]:
    """Returns the texts of passages of a corpus; a random `PASSAGES` of them if there are more.

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
