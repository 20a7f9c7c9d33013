"""The topics of a corpus, and how much the prefixes of a key speak for each of them, beside those of random keys.

Random keys are drawn from a pool of random prefixes. A drawn key has as many prefixes of each length class as the real key that
it is compared with.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from ffkv.base.settings.common import ENGLISH
from ffkv.base.streams import Purpose, random_stream
from ffkv.branches.keys.features import LENGTH_CLASSES, length_class
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
NULL_DRAWS = 4000  # random keys that a key is compared with; enough for a single key among 200 to pass at 5 %
DRAWS_PER_BLOCK = 250  # few enough for the sums of their scores to fit into memory beside a model
CHANCE = 0.05  # share of random prefixes that speak enough for a key's topic to count as members
ROUNDING = 1e-3  # sums of scores that differ by less are equal
Prefixes = Sequence[Sequence[str]]  # words of each prefix


@dataclass(frozen=True)
class Topics:
    """The topics of a corpus."""

    columns: dict[str, int]  # number of each known content word
    evidence: np.ndarray  # log of the frequency of a word in a topic over its frequency in the corpus [word, topic]
    shares: np.ndarray  # share of the passages of each topic [topic]
    names: list[str]  # the `SHOWN_WORDS` most typical words of each topic, separated by commas [topic]
    language: str = ENGLISH  # code of the language of the corpus

    def score(self, prefixes: Prefixes, explained: Prefixes | None = None) -> tuple[np.ndarray, np.ndarray]:
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
    listed = stop_words(language)
    lower = (word.lower() for word in prefix)
    return [word for word in lower if len(word) > 2 and word[0].isalpha() and word not in listed]


def fit_topics(corpus: Corpus, seed: int) -> Topics:
    """Finds the topics of a corpus: groups of passages with similar words. The result does not depend on the number of threads.

    Passages are compared in a latent semantic space (Deerwester et al. 1990), together with their neighbours.
    """
    texts = [
        content_words(words(passage, corpus.pretokenized), corpus.language)
        for passage in passages(corpus, random_stream(seed, Purpose.PASSAGES))
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

    `vectors` are of length 1 or 0, in the order of the corpus, as are those that are returned [passage, dimension].
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
    document = np.asarray(corpus.document).tolist()  # of each sentence
    found: list[list[int]] = []  # the sentences of each passage
    for _, of_document in groupby(range(len(corpus)), key=document.__getitem__):
        sentences = [*of_document]
        found += [sentences[at : at + PASSAGE_SENTENCES] for at in range(0, len(sentences), PASSAGE_SENTENCES)]
    if len(found) > PASSAGES:
        found = [found[index] for index in np.sort(generator.choice(len(found), PASSAGES, replace=False))]
    return [" ".join(corpus.texts[sentence] for sentence in passage) for passage in found]


@dataclass(frozen=True)
class Pool:
    """The scores of random prefixes, ordered by length class."""

    topics: Topics  # the topics of the corpus
    scores: np.ndarray  # the prefixes' scores, see `Topics.score` [prefix, topic]
    starts: np.ndarray  # the first prefix of each length class, and the number of all prefixes [class + 1]

    def of_class(self, number: int) -> np.ndarray:
        """Returns the scores of one length class [prefix, topic]."""
        return self.scores[self.starts[number] : self.starts[number + 1]]


def fill_pool(topics: Topics, prefixes: Prefixes) -> Pool:
    """Scores random prefixes [prefix][word].

    They keep all their words: random keys hardly ever have a shallow pattern.
    """
    scores, known = topics.score([content_words(prefix, topics.language) for prefix in prefixes])
    classes = _length_classes(known)
    order = np.argsort(classes, kind="stable")
    order = order[classes[order] >= 0]
    return Pool(topics, scores[order], np.searchsorted(classes[order], np.arange(LENGTH_CLASSES + 1)))


@dataclass(frozen=True)
class PlacedKey:
    """The prefixes of a key that have known words, apart from those of its shallow patterns."""

    numbers: np.ndarray  # number of each prefix in the key's list [prefix]
    scores: np.ndarray  # how much each prefix speaks for each topic [prefix, topic]
    classes: np.ndarray  # length class of each prefix [prefix]

    @property
    def topic(self) -> int:
        """The topic that the prefixes together speak most for."""
        return int(self.scores.sum(axis=0, dtype=float).argmax())


def place_prefixes(keys: Sequence[Prefixes], explained: Sequence[Collection[str]], pool: Pool) -> list[PlacedKey]:
    """Scores the prefixes of keys.

    A prefix is left out if it has no known word left, or if the pool has no prefix of its length class.

    `keys`: words of the prefixes of each key [key][prefix][word]. `explained`: words of each key that count for no topic, in
    lower case [key], see `Topics.score`. `pool`: what random prefixes say.
    """
    topics = pool.topics
    counted: list[list[str]] = []  # words of each prefix that count for topics, those of one key after the other
    told: list[list[str]] = []  # the other ones
    for key, explained_words in zip(keys, explained, strict=True):
        for prefix in key:
            content = content_words(prefix, topics.language)
            counted.append([word for word in content if word not in explained_words])
            told.append([word for word in content if word in explained_words])
    scores, known = topics.score(counted, told)
    classes = _length_classes(known)
    usable = (classes >= 0) & (np.diff(pool.starts) > 0)[classes]
    placed, end = [], 0
    for key in keys:
        start, end = end, end + len(key)
        numbers = np.flatnonzero(usable[start:end])
        placed.append(PlacedKey(numbers, scores[start + numbers], classes[start + numbers]))
    return placed


def _length_classes(known: np.ndarray) -> np.ndarray:
    """Returns the class of each prefix [prefix] by its known words: 1, 2, 3-4, 5-8 and so on; -1 without any."""
    return np.where(known > 0, length_class(np.maximum(known - 1, 0)), -1)


def topic_p_values(keys: Sequence[PlacedKey], pool: Pool, minimum: int, seed: int) -> np.ndarray:
    """Probability that random prefixes speak as much for any one topic as those of each key [key].

    Each key is compared with `NULL_DRAWS` random keys, which have as many prefixes of each length class. The p-value is
    (1 + number of draws that speak at least as much for some topic) / (1 + number of draws). A key with fewer than
    `minimum` prefixes has 1.
    """
    counts = np.array([np.bincount(key.classes, minlength=LENGTH_CLASSES) for key in keys], int)
    counts = counts.reshape(len(keys), LENGTH_CLASSES)
    tested = np.flatnonzero(counts.sum(axis=1) >= minimum).tolist()
    highest = {key: float(keys[key].scores.sum(axis=0).max()) for key in tested}
    reached = np.full(len(keys), NULL_DRAWS)
    reached[tested] = 0
    for block in draw_blocks(pool, counts.max(axis=0, initial=0), seed):
        for key in tested:
            reached[key] += np.count_nonzero(strongest(block, counts[key]) >= highest[key] - ROUNDING)
    return (1 + reached) / (1 + NULL_DRAWS)


def draw_blocks(pool: Pool, places: np.ndarray, seed: int) -> Iterator[list[np.ndarray]]:
    """Makes `NULL_DRAWS` draws, in blocks.

    The same seed draws the same prefixes into the same places, whatever the number of places. `places`: their number per
    length class; 0 for a class without a prefix in the pool [class]. Yields the sum of the scores in the first place, the
    first two places, and so on [class][place, draw, topic].
    """
    draws = [_draw_prefixes(pool, number, count, seed) for number, count in enumerate(places.tolist())]
    for start in range(0, NULL_DRAWS, DRAWS_PER_BLOCK):
        by_class = [prefixes[:, start : start + DRAWS_PER_BLOCK] for prefixes in draws]
        yield [np.cumsum(pool.scores[prefixes], axis=0) for prefixes in by_class]


def _draw_prefixes(pool: Pool, number: int, places: int, seed: int) -> np.ndarray:
    """Draws prefixes of the pool into the places of one length class [place, draw]."""
    generator = random_stream(seed, Purpose.SIMILARITY, number)
    low, high = pool.starts[number : number + 2]
    return generator.integers(low, high, (places, NULL_DRAWS))


def strongest(sums: list[np.ndarray], counts: np.ndarray) -> np.ndarray:
    """Returns the highest sum of scores over all topics, of each draw [draw].

    `sums`: a block of `draw_blocks`. `counts`: number of prefixes per length class that are used, one or more in all [class].
    """
    used = [of_class[count - 1] for of_class, count in zip(sums, counts.tolist(), strict=True) if count]
    return np.sum(used, axis=0).max(axis=1)


def find_members(key: PlacedKey, pool: Pool) -> np.ndarray:
    """Finds the prefixes of a key that belong to its topic, as numbers among those of `key` [member].

    A prefix is a member if it speaks more for the topic than a share 1 - `CHANCE` of the pool's prefixes of its length class.
    """
    of_topic = key.scores[:, key.topic]
    threshold = np.empty(len(of_topic))
    for number in np.unique(key.classes).tolist():
        threshold[key.classes == number] = np.quantile(pool.of_class(number)[:, key.topic], 1 - CHANCE)
    return np.flatnonzero(of_topic > threshold)
