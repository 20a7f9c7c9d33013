"""Encodes sentences as token ids."""

import functools
import hashlib
import mmap
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ffkv.base.process.workers import in_order
from ffkv.base.settings import Corpus
from ffkv.corpus.document import Document
from ffkv.corpus.sentences import split_sentences

if TYPE_CHECKING:  # readers of a corpus do without transformers, which takes a second to import
    from tqdm import tqdm
    from transformers import PreTrainedTokenizerBase

Sentence = tuple[np.ndarray, np.ndarray, np.ndarray, str]  # see `tokenize`
Named = TypeVar("Named", bound=tuple[Any, ...])  # what a text is from; then the text, or its ids

# The tokenizer gets at most this many sentences and characters per call. A longer sentence is cut, at a blank if possible.
SENTENCES_PER_CALL = 4096
MAX_CHARACTERS = 1_000_000
# A process gets about so many documents or characters at a time.
DOCUMENTS_PER_CHUNK = 1024
CHARACTERS_PER_CHUNK = 250_000
LONGEST_TITLE = 300  # characters; a wiki allows 255 bytes. A field `title` may hold a text of any length
BLOCK = 2**18  # values of `Rows`; an array that grew with every row would be copied as a whole again and again
# What is counted while documents are read (`left_out_documents`) and encoded, in the order of the output.
COUNTS = (
    *("documents", "left_out_documents", "empty_documents", "undecodable_documents"),
    *("sentences", "left_out_sentences", "empty_sentences", "one_token_sentences"),
    *("long_sentences", "duplicate_sentences"),
)


class Rows(Sequence[np.ndarray]):
    """Arrays of int32. A list of them would take twice the memory where rows are as short as sentences."""

    def __init__(self, rows: Iterable[np.ndarray] = ()) -> None:
        """`rows`: the first ones."""
        self._blocks: list[np.ndarray] = []
        self._latest = array("i")
        self._ends = array("q", [0])
        for row in rows:
            self.append(row)

    def append(self, row: np.ndarray) -> None:
        """Adds a row. Raises TypeError for another type."""
        if row.dtype != np.int32:
            raise TypeError(f"a row of {row.dtype}, not of int32")
        self._latest.frombytes(row.tobytes())
        self._ends.append(self._ends[-1] + len(row))
        if len(self._latest) >= BLOCK:
            self._close_block()

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self._ends) - 1

    def __getitem__(self, number: Any) -> Any:
        """Returns a row, or a list of some of them."""
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        number = range(len(self))[number]
        return self.joined()[self._ends[number] : self._ends[number + 1]]

    def joined(self) -> np.ndarray:
        """Returns all rows as one int32 array. They are moved once, block by block, which takes little more memory."""
        self._close_block()
        if len(self._blocks) != 1:
            together, end = np.empty(self._ends[-1], np.int32), self._ends[-1]
            while self._blocks:
                block = self._blocks.pop()
                together[end - len(block) : end] = block
                end -= len(block)
            self._blocks = [together]
        return self._blocks[0]

    def _close_block(self) -> None:
        if self._latest:
            # Memory of its own, which the system has back as soon as the block is moved.
            block = np.frombuffer(mmap.mmap(-1, 4 * len(self._latest)), np.int32)
            block[:] = self._latest
            self._blocks.append(block)
            self._latest = array("i")


@dataclass
class Encoded:
    """The sentences of a split."""

    # token ids of each sentence, without BOS [sentence][token]
    ids: Rows = field(default_factory=Rows)
    # how many characters of the sentence's text the model has read whole with each token [sentence][token]
    ends: Rows = field(default_factory=Rows)
    text: list[str] = field(default_factory=list)  # text of each sentence [sentence]
    document: list[int] = field(default_factory=list)  # document of each sentence [sentence]
    # number of identical sentences that each one stands for [sentence]
    multiplicity: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # name of each document [document]
    titles: list[str] = field(default_factory=list)  # what its source calls each document [document]
    # number of documents and sentences that were read or left out, by `COUNTS`
    counts: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(COUNTS, 0)))


def encode(
    documents: Iterable[Document],
    tokenizer: "PreTrainedTokenizerBase",
    max_tokens: int,
    settings: Corpus,
    beginning: Sequence[int] = (),
    processes: int = 1,
    bar: "tqdm | None" = None,
) -> Encoded:
    """Splits documents into sentences, and encodes the sentences.

    Args:
        tokenizer: a fast tokenizer of transformers, which knows the characters of each token.
        max_tokens: maximum number of tokens per sentence, without the beginning.
        settings: `splitter`, `language`, `pretokenized`, `white_space`, `sentences_per_document`, `long_sentences` and
            `deduplicate` count.
        beginning: ids that precede every sentence. A sentence that contains them itself, as a chat does, loses them.
        processes: number of processes that split and encode. It changes nothing but the time.
        bar: shows how many documents and sentences are done.
    Raises:
        UserError: one of the processes was killed.
    """
    encoded = Encoded()
    seen: dict[bytes, int] | None = {} if settings.deduplicate else None
    work = functools.partial(_encode_chunk, tokenizer, max_tokens, settings, list(beginning))
    chunks = grouped(documents, CHARACTERS_PER_CHUNK, DOCUMENTS_PER_CHUNK)
    for chunk in in_order(work, chunks, processes, "encode documents"):
        first = len(encoded.names)
        encoded.names += chunk.names
        encoded.titles += chunk.titles
        encoded.counts.update(chunk.counts)
        for number, (document, text) in enumerate(zip(chunk.document, chunk.text, strict=True)):
            _add(encoded, seen, first + document, chunk.ids[number], chunk.ends[number], text)
        if bar is not None:
            bar.set_postfix_str(f"{encoded.counts['sentences']:,} sentences", refresh=False)
            bar.update(chunk.counts["documents"])
    return encoded


def grouped(texts: Iterable[Named], size: int, most: int | None = None) -> Iterator[list[Named]]:
    """Groups texts, in their order: so many characters or tokens of them, and so many of them. A longer text is alone."""
    group: list[Named] = []
    length = 0
    for text in texts:
        if group and (len(group) == most or length + len(text[1]) > size):
            yield group
            group, length = [], 0
        group.append(text)
        length += len(text[1])
    if group:
        yield group


def _encode_chunk(
    tokenizer: "PreTrainedTokenizerBase",
    max_tokens: int,
    settings: Corpus,
    beginning: list[int],
    documents: list[Document],
) -> Encoded:
    """Splits and encodes some documents. It depends on nothing else, so any process can do it."""
    chunk = Encoded()
    for batch in grouped(_split_documents(documents, chunk, settings), MAX_CHARACTERS, SENTENCES_PER_CALL):
        sentences = tokenize([text for _, text in batch], tokenizer, beginning)
        for (document, _), sentence in zip(batch, sentences, strict=True):
            for window in _windows(sentence, max_tokens, settings.long_sentences, chunk.counts):
                _add(chunk, None, document, *window)
    return chunk


def tokenize(texts: list[str], tokenizer: "PreTrainedTokenizerBase", beginning: list[int]) -> Iterator[Sentence]:
    """Encodes sentences. One that contains the ids of `beginning`, which precede every sentence, itself loses them.

    The texts have no lone surrogates, see `replace_surrogates`. Yields per sentence its ids without the beginning [token];
    how many characters of its text the model has read whole with each token [token]; whether no other one is begun then
    [token]; and this text.
    """
    tokens = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    for text, own, offsets in zip(texts, tokens["input_ids"], tokens["offset_mapping"], strict=True):
        ends, whole = _whole_characters(text, np.array(offsets, np.int32).reshape(-1, 2))
        ids, count = np.asarray(own, np.int32), len(beginning)
        if count and own[:count] == beginning:  # the model reads it in front of the sentence anyway
            cut = ends[count - 1]
            yield ids[count:], ends[count:] - cut, whole[count:], text[cut:]
        else:
            yield ids, ends, whole, text


def behind(beginning: Sequence[int], ids: np.ndarray) -> np.ndarray:
    """Returns token ids behind those that precede every sentence, int64 [token]."""
    return np.concatenate([np.asarray(beginning, np.int64), ids.astype(np.int64)])


def _whole_characters(text: str, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Counts the characters that the model has read whole with each token, and says whether it has begun no other one.

    `offsets`: start and end (exclusive) of the characters that each token is a part of [token, 2].
    """
    starts, ends = offsets.T
    following = np.append(starts[1:], np.int32(len(text)))
    whole, read = ends <= following, np.minimum(ends, following)
    if len(offsets) and not text.isascii():
        # A mark that the tokenizer has joined with the letter in front of it belongs to the same token as the letter.
        for token in np.flatnonzero(ends < following).tolist():
            read[token] += len(re.findall(r"^\S*", text[ends[token] : following[token]])[0])
        # A tokenizer with byte fallback gives all bytes of neighbouring characters the same start and end.
        firsts = np.flatnonzero(np.append(True, (offsets[1:] != offsets[:-1]).any(1)))
        lasts = np.append(firsts[1:], len(offsets))
        several = (ends - starts > 1)[firsts] & (lasts - firsts > 1)
        for first, last in zip(firsts[several].tolist(), lasts[several].tolist()):
            finished = np.cumsum([len(character.encode()) for character in text[starts[first] : ends[first]]])
            count = np.arange(1, last - first + 1)  # bytes that are read with each of these tokens
            if len(count) == finished[-1]:
                read[first:last] = starts[first] + np.searchsorted(finished, count, "right")
                whole[first:last] = np.isin(count, finished)
    return np.maximum.accumulate(read), whole


def _split_documents(documents: Iterable[Document], chunk: Encoded, settings: Corpus) -> Iterator[tuple[int, str]]:
    """Yields document number and text of each sentence, and adds names, titles and counts of the documents to `chunk`."""
    counts = chunk.counts
    for document in documents:
        text = replace_surrogates(document.text)
        counts["documents"] += 1
        counts["undecodable_documents"] += "\ufffd" in text
        number = len(chunk.names)
        if text.strip():
            chunk.names.append(replace_surrogates(document.name))
            title = " ".join(replace_surrogates(document.title).split())
            chunk.titles.append(title if len(title) <= LONGEST_TITLE else f"{title[:LONGEST_TITLE]}…")
        else:  # costs no memory: a small compressed file can have any number of them
            counts["empty_documents"] += 1
        read = 0
        for sentence in split_sentences(
            text, settings.splitter, settings.pretokenized, settings.white_space, settings.language
        ):
            if not sentence or sentence.isspace():
                counts["empty_sentences"] += 1
                continue
            if settings.sentences_per_document and read == settings.sentences_per_document:
                counts["left_out_sentences"] += 1
                continue
            read += 1
            counts["sentences"] += 1
            if len(sentence) > MAX_CHARACTERS and settings.long_sentences == "drop":
                counts["long_sentences"] += 1
                continue
            yield from ((number, piece) for piece in _cut_characters(sentence, settings.white_space == "keep"))


def _cut_characters(sentence: str, keep: bool) -> Iterator[str]:
    """Yields pieces of at most `MAX_CHARACTERS`, cut at a blank if possible; at a line break first, if kept."""
    while len(sentence) > MAX_CHARACTERS:
        end = sentence.rfind("\n", 0, MAX_CHARACTERS) + 1 if keep else 0
        end = end or sentence.rfind(" ", 1, MAX_CHARACTERS)
        end = end if end > 0 else MAX_CHARACTERS
        yield sentence[:end]
        sentence = sentence[end:] if keep else sentence[end:].lstrip(" ")
    yield sentence


def replace_surrogates(text: str) -> str:
    """Replaces lone surrogates by U+FFFD, because UTF-8 cannot encode them."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _windows(
    sentence: Sentence, max_tokens: int, long_sentences: str, counts: Counter[str]
) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    """Yields ids, ends and text of a sentence, or of its windows if it is too long; nothing of a single token.

    A window ends with a whole character, unless `max_tokens` are too few for one.
    """
    ids, ends, whole, text = sentence
    too_long = len(ids) > max_tokens
    counts["long_sentences"] += too_long
    if too_long and long_sentences == "drop":
        return
    stop = 0
    while stop < max(len(ids), 1):
        start, stop = stop, stop + max_tokens
        last = stop >= len(ids)  # it has what follows the last token, too
        ends_of_characters = start + np.flatnonzero(whole[start:stop]) + 1
        if not last and len(ends_of_characters) and ends_of_characters[-1] > start + 1:
            stop = int(ends_of_characters[-1])
        window = slice(start, stop)
        if len(ids[window]) < 2:
            counts["one_token_sentences"] += 1
            continue
        begin = ends[start - 1] if start else 0
        yield ids[window], ends[window] - begin, text[begin:] if last else text[begin : ends[window][-1]]


def _add(
    encoded: Encoded, seen: dict[bytes, int] | None, document: int, ids: np.ndarray, ends: np.ndarray, text: str
) -> None:
    """Adds a sentence, or counts it if `seen` (hash of the ids to sentence; None to keep duplicates) contains it."""
    if seen is not None:
        digest = hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
        first = seen.setdefault(digest, len(encoded.ids))
        if first < len(encoded.ids):
            encoded.multiplicity[first] += 1
            encoded.counts["duplicate_sentences"] += 1
            return
    encoded.ids.append(ids)
    encoded.ends.append(ends)
    encoded.text.append(text)
    encoded.document.append(document)
    encoded.multiplicity.append(1)
