"""The dictionary as a tokenizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ffkv.base.errors import UserError
from ffkv.corpus.step import find_beginning
from ffkv.model.checkpoint.tokenizer import load_tokenizer, tokenizer_hash
from ffkv.model.checkpoint.vocabulary import token_texts
from ffkv_fairseq import reader
from ffkv_fairseq.reader import read_dictionary

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "the", ",", "@-@", "Último", "&amp;", "madeupword0000"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dictionary")
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in WORDS[4:]), encoding="utf-8")
    return reader.load_tokenizer(folder)


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_words_stand_between_blanks_and_unknown_ones_are_unk(tokenizer):
    assert ids(tokenizer, "the @-@  Último , &amp; THE zebra") == [4, 6, 7, 5, 8, 3, 3]


def test_special_words_count_between_blanks_and_split_nothing(tokenizer):
    assert ids(tokenizer, "the <unk> </s> <pad> <s> the") == [4, 3, 2, 1, 0, 4]
    assert ids(tokenizer, "the<unk>the </s>, x<pad>") == [3, 3, 3]
    assert ids(tokenizer, "<unk><unk>") == [3]


def test_the_end_of_a_sentence_stands_in_front_of_the_next(tokenizer):
    assert tokenizer("the ,")["input_ids"] == [2, 4, 5]
    assert find_beginning(tokenizer, "auto").ids == find_beginning(tokenizer, "always").ids == [2]
    assert find_beginning(tokenizer, "never").ids == []
    assert tokenizer.pad_token_id == 1 and tokenizer.unk_token_id == 3


def test_offsets_tell_the_characters_of_each_word(tokenizer):
    text = "Último <unk>  zebra the"
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert [text[start:end] for start, end in offsets] == text.split()


@given(st.lists(st.sampled_from([*WORDS, "zebra", "the<unk>", "<", ">"]), max_size=12))
def test_a_text_of_known_words_comes_back(tokenizer, words):
    found = ids(tokenizer, " ".join(words))
    assert found == [WORDS.index(word) if word in WORDS else 3 for word in words]
    assert tokenizer.convert_ids_to_tokens(found) == [word if word in WORDS else "<unk>" for word in words]


def test_it_is_the_same_when_saved_and_loaded(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert tokenizer_hash(again) == tokenizer_hash(tokenizer)
    assert ids(again, "the<unk>the <unk> </s>") == [3, 3, 2]
    assert find_beginning(again, "auto").ids == [2]
    assert token_texts(again, 12) == [*WORDS, "<id 10>", "<id 11>"]


def dictionary(folder, content: str | bytes):
    (folder / "dict.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize("content", ["the 12\nÚltimo 3\n", "the 12\nÚltimo 3", "the 12\r\nÚltimo 3\r\n"])
def test_a_dictionary_is_fairseqs_own_words_and_its_lines(tmp_path, content):
    assert read_dictionary(dictionary(tmp_path, content)) == ["<s>", "<pad>", "</s>", "<unk>", "the", "Último"]


def test_the_authors_dictionary(oracle):
    words = read_dictionary(oracle / "model")
    assert len(words) == 13_784
    assert words[4:7] == ["the", ",", "."] and words[-1] == "madeupword0004"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("the 12\nand\n", "line 2: 'and' is not a word, a blank and a count"),
        ("the twelve\n", "line 1"),
        ("the 12\n 5\n", "line 2"),
        ("the 12\n\nand 3\n", "line 2"),
        ("the -1\n", "line 1"),
        ("the 1 #fairseq:overwrite\n", "line 1"),
        ("the 12\nand 3\nthe 2\n", r"line 3: the word 'the' occurs twice \(first in line 1\)"),
        ("<unk> 12\n", "line 1: the word '<unk>' occurs twice"),
        (b"caf\xe9 3\n", "cannot be read: .*utf-8"),
    ],
)
def test_a_line_that_is_no_word_and_count_is_named(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        read_dictionary(dictionary(tmp_path, content))


def test_a_missing_dictionary_is_named(tmp_path):
    with pytest.raises(UserError, match=r"There is no .*dict\.txt"):
        read_dictionary(tmp_path)
