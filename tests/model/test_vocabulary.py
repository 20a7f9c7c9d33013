"""The text of every token, with its own blanks, for the families of tokenizers."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ffkv.model.checkpoint.vocabulary import token_texts


def fast(model, decoder, names, **special) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model({name: number for number, name in enumerate(names)}))
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def bpe(vocabulary):
    return models.BPE(vocabulary, [], byte_fallback="<0x0A>" in vocabulary)


def bpe_of_words(vocabulary):
    return models.BPE(vocabulary, [], end_of_word_suffix="</w>")


def metaspace():
    """As Llama's: blanks are \u2581, the first one of a text is dropped."""
    return decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )


CASES = {
    "SentencePiece": (
        bpe,
        metaspace(),
        ["<unk>", "<s>", "<0x0A>", "a", "\u2581he", "he", "\u2581", "\u2581\u2581", "\u2581the\u2581cat"],
        ["<unk>", "<s>", "<0x0A>", "a", " he", "he", " ", "  ", " the cat"],
    ),
    "Metaspace": (
        bpe,
        decoders.Metaspace(),
        ["<unk>", "<s>", "a", "\u2581he", "he"],
        ["<unk>", "<s>", "a", " he", "he"],
    ),
    "byte-level": (
        bpe,
        decoders.ByteLevel(),
        ["<unk>", "<s>", "a", "\u0120he", "he", "\u0120", "\u010a", "\u00c3", "\u00c3\u00a9"],
        ["<unk>", "<s>", "a", " he", "he", " ", "\n", "<0xC3>", "\u00e9"],
    ),
    "WordPiece": (
        models.WordPiece,
        decoders.WordPiece(cleanup=False),
        ["<unk>", "<s>", "a", "he", "##he", "."],
        ["<unk>", "<s>", " a", " he", "he", " ."],
    ),
    "end of word": (
        bpe_of_words,
        decoders.BPEDecoder(suffix="</w>"),
        ["<unk>", "<s>", "a", "he</w>", "he"],
        ["<unk>", "<s>", "a", "he ", "he"],
    ),
    "words": (
        lambda vocabulary: models.WordLevel(vocabulary, unk_token="<unk>"),
        None,
        ["<unk>", "<s>", "a", "he", "@-@"],
        ["<unk>", "<s>", "a", "he", "@-@"],
    ),
}


@pytest.mark.parametrize("family", CASES)
def test_tokens_have_their_own_blanks(family):
    model, decoder, names, expected = CASES[family]
    tokenizer = fast(model, decoder, names, unk_token="<unk>", bos_token="<s>")
    assert token_texts(tokenizer, len(names) + 1) == [*expected, f"<id {len(names)}>"]


def test_added_blanks_are_blanks():
    """Pythia has runs of blanks as added tokens that are not special."""
    tokenizer = fast(bpe, decoders.ByteLevel(), ["a", "\u0120he"])
    tokenizer.add_tokens([AddedToken("   ", normalized=False)])
    assert token_texts(tokenizer, 3) == ["a", " he", "   "]
