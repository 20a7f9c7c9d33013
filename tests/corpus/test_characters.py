"""A token that is a part of a character shows its bytes, wherever its text or that of a prefix is shown."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support import tries
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from ffkv.base.characters import last_characters, read_bytes, unfinished, write_bytes
from ffkv.base.settings import Corpus
from ffkv.corpus.corpus_file import read_corpus, write_corpus
from ffkv.corpus.document import Document
from ffkv.corpus.encode import encode, tokenize
from ffkv.model.checkpoint.vocabulary import token_texts
from ffkv.run.results.text import prefix
from ffkv.run.results.text_search import shortest_prefix

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Merges across characters, too: a blank and a first byte, a last byte and a character.
LEARNT = ["the cat sat", "我们 我们。早上好。早上", " 春 是 早 é ñ"] * 3


def byte_level(**options) -> Tokenizer:
    """As GPT-2's, Llama 3's and Qwen's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder, tokenizer.post_processor = decoders.ByteLevel(), processors.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        LEARNT, trainers.BpeTrainer(vocab_size=290, initial_alphabet=letters, show_progress=False)
    )
    return tokenizer


def composed() -> Tokenizer:
    """As Qwen's: letters and their marks become one character first."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As Llama 2's and Mistral's."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", *BYTES]
    tokenizer.train_from_iterator(
        ["▁the▁cat", "们"], trainers.BpeTrainer(vocab_size=290, special_tokens=special, show_progress=False)
    )
    return tokenizer


def unigram() -> Tokenizer:
    """As T5's with byte fallback: all bytes of neighbouring characters have the same offsets."""
    pieces = [("<unk>", 0.0), *((piece, -1.0) for piece in ["▁", *"thecatsm"]), *((byte, -10.0) for byte in BYTES)]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")])
    return tokenizer


FAMILIES = {
    make.__name__: PreTrainedTokenizerFast(tokenizer_object=make()) for make in (byte_level, byte_fallback, unigram)
}
MANY = "我们在河边 春天。早 早上好 mañana 👨‍👩‍👧 🤗 สวัสดี नमस्ते"
WORDS = ["the cat", "e\u0301", " ", "\ufffd", *MANY.split()]


def bytes_of(name: str, family: str) -> bytes:
    """The bytes that a token stands for, from its name in the vocabulary."""
    if family == "byte_level":
        letters = {
            "Ġ": 0x20,
            **{chr(code): code for code in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 256)]},
        }
        hidden = [byte for byte in range(256) if byte not in letters.values() or byte == 0x20]
        letters |= {chr(256 + number): byte for number, byte in enumerate(sorted(hidden))}
        return bytes(letters[letter] for letter in name)
    return bytes([int(name[3:5], 16)]) if name in BYTES else name.replace("▁", " ").encode()


def corpus_of(family: str, text: str, folder, longest: int = 1000):
    tokenizer = FAMILIES[family]
    made = encode([Document("one", text)], tokenizer, longest, Corpus(splitter="document", white_space="keep"))
    write_corpus(folder / "train.h5", made, [], False, {}, vocabulary=token_texts(tokenizer, len(tokenizer)))
    return read_corpus(folder / "train.h5")


@pytest.mark.parametrize("family", FAMILIES)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map("".join), st.integers(6, 40))
@hypothesis_settings(max_examples=tries(40))
def test_a_prefix_shows_the_bytes_that_the_model_has_read_and_no_other(tmp_path_factory, family, text, longest):
    corpus = corpus_of(family, text, tmp_path_factory.mktemp("pieces"), longest)
    names = FAMILIES[family].convert_ids_to_tokens
    for sentence in range(len(corpus)):
        ids = corpus.ids(sentence).tolist()
        own = [bytes_of(name, family) for name in names(ids)]
        dummy = family == "byte_fallback" and sentence == 0  # the blank in front of the text is not of the text
        read = [b"".join(own[:position])[dummy:] for position in range(len(ids) + 1)]
        places = np.full(len(read), sentence), np.arange(len(read))
        texts, last_tokens = corpus.prefix_texts(*places)
        assert texts == [write_bytes(data) for data in read]
        assert texts == [corpus.prefix_text(sentence, position) for position in range(len(read))]
        assert last_tokens[1 + dummy :] == list(map(write_bytes, own[dummy:])) == corpus.token_texts(sentence)[dummy:]
        whole = b"".join(own)[dummy:]
        assert [corpus.rest(sentence, position) for position in range(len(read))] == [
            write_bytes(whole[len(data) :]) for data in read
        ]
        assert corpus.texts[sentence].encode() == whole  # no window is cut inside a character


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", ["是春 我们早", "aé是", "👨‍👩‍👧早 我"])
def test_search_finds_what_prefixes_show(tmp_path, family, text):
    """Of any end of any prefix, the shortest prefix that shows it."""
    corpus = corpus_of(family, text, tmp_path)
    files = SimpleNamespace(folder=tmp_path, corpus=lambda split: corpus)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "train.h5").rename(tmp_path / "corpus/train.h5")
    data = [read_bytes(corpus.prefix_text(0, position)) for position in range(len(corpus.ids(0)) + 1)]
    for position in range(1, len(data)):
        for size in (1, 2, 3, 5):
            shown = write_bytes(data[position][-size:])
            if not shown or not write_bytes(data[position]).endswith(shown):  # it begins inside a character
                continue
            expected = next(number for number, read in enumerate(data) if read_bytes(shown) in read)
            assert shortest_prefix(files, shown).tolist() == [expected], (shown, data[position])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_character_counts_as_read_with_its_last_token(tmp_path, family):
    corpus = corpus_of(family, "是我", tmp_path)
    ends = [corpus.character(0, position) for position in range(len(corpus.ids(0)) + 1)]
    last = len(ends) - 1
    assert set(ends[:last]) == {0, 1} and ends[last] == 2 and ends == sorted(ends)
    assert ends.index(1) >= 2


def test_a_mark_that_is_joined_with_its_letter_is_read_with_it(tmp_path):
    FAMILIES["composed"] = PreTrainedTokenizerFast(tokenizer_object=composed())
    corpus = corpus_of("composed", "xe\u0301t", tmp_path)
    assert "xe\u0301" in [corpus.prefix_text(0, position) for position in range(len(corpus.ids(0)))]
    assert "x" + "e" not in [corpus.prefix_text(0, position) for position in range(len(corpus.ids(0)))]
    del FAMILIES["composed"]


def test_a_byte_of_the_vocabulary_is_no_letter():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level())
    tokenizer.add_tokens(["ñ"])  # a token that a person added is its own text
    texts = dict(zip(tokenizer.convert_ids_to_tokens(range(len(tokenizer))), token_texts(tokenizer, len(tokenizer))))
    assert (texts["é"], texts["æ"], texts["ãĢĤ"], texts["ñ"]) == ("<0xE9>", "<0xE6>", "。", "ñ")


@given(st.binary(max_size=12))
def test_bytes_are_written_and_read_back(data):
    assert read_bytes(write_bytes(data)) == data


@pytest.mark.parametrize("text", ["é", "我", "🤗", "a"])
def test_a_character_is_unfinished_until_its_last_byte(text):
    data = text.encode()
    assert [unfinished(b"x" + data[:count]) for count in range(len(data) + 1)] == [
        *(data[:count] for count in range(len(data))),
        b"",
    ]


@pytest.mark.parametrize(
    "text, last, marked",
    [
        ("a cat", " cat", " cat"),
        ("a <0xE6>", " <0xE6>", " <0xE6>"),
        ("a<0xE6><0x88>", "<0x88>", "<0x88>"),
        ("a我", "<0x91>", "我"),
        ("我们", "<0x91>们", "我们"),
        ("我<0xE4>", "<0x91><0xE4>", "我<0xE4>"),
    ],
)
def test_the_last_token_is_marked_in_the_text(text, last, marked):
    assert last_characters(text, last) == len(marked)
    assert prefix(text, last, 50).unescape().endswith(f"<mark><bdi>{marked}</bdi></mark>")


def test_a_text_of_which_nothing_is_read_has_no_tokens():
    dropping = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
    ((ids, ends, whole, text),) = tokenize(["ééé"], dropping, [])
    assert (len(ids), len(ends), len(whole), text) == (0, 0, 0, "ééé")
