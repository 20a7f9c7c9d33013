"""The tokenizer that is read is the one that its files describe, gives a text one encoding, and its tokens have their own texts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import byte_level, edit_json, random_checkpoint
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from ffkv.base.process.libraries import collected
from ffkv.base.settings import Model
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.checkpoint.vocabulary import token_texts
from ffkv.model.step import prove

LINES = [f"the old river walks under stone {i} and the green bird sings over the road" for i in range(40)]
TEXT = "The old RIVER walks under the green bird, and under é stone"


def learnt() -> Tokenizer:
    return byte_level(LINES, 340)


def unigram() -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=["<s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def saved(folder: Path, tokenizer: Tokenizer, kind: str = "PreTrainedTokenizerFast", **of_model) -> Path:
    folder.mkdir(exist_ok=True)
    definition = json.loads(tokenizer.to_str())
    definition["model"] |= of_model
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    about = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "<s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


@pytest.mark.parametrize(
    ("make", "options", "told"),
    [
        (learnt, {"dropout": 0.3}, "dropout (0.3), which is off"),
        (learnt, {"dropout": 1.0}, "dropout (1.0), which is off"),
        (unigram, {"alpha": 0.1, "nbest_size": 20}, "nbest_size (20), which is off"),
        (learnt, {"dropout": 0.0}, ""),
        (learnt, {}, ""),
    ],
)
def test_a_text_has_one_encoding_whatever_training_needs(tmp_path, make, options, told):
    tokenizer = make()
    expected = tokenizer.encode(TEXT).ids
    folder = saved(tmp_path / "a", tokenizer, **options)
    with collected() as remarks:
        found = load_tokenizer(folder)
    for _ in range(20):
        assert found(TEXT, add_special_tokens=False)["input_ids"] == expected
    assert any(told in remark for remark in remarks) if told else remarks == []
    found.save_pretrained(tmp_path / "again")
    with collected() as remarks:
        assert load_tokenizer(tmp_path / "again")(TEXT, add_special_tokens=False)["input_ids"] == expected
    assert remarks == []


def test_texts_are_neither_cut_nor_filled(tmp_path):
    tokenizer = learnt()
    expected = tokenizer.encode(TEXT).ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=100)
    with collected() as remarks:
        found = load_tokenizer(saved(tmp_path / "a", tokenizer))
    assert found(TEXT, add_special_tokens=False)["input_ids"] == found.backend_tokenizer.encode(TEXT).ids == expected
    for name in ("truncation", "padding"):
        assert any(name in remark for remark in remarks), name


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "GPT2TokenizerFast", "Qwen2Tokenizer", "GPTNeoXTokenizer"])
@pytest.mark.parametrize(
    "normalizer",
    [normalizers.Lowercase(), normalizers.Replace("the", "a"), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])],
)  # fmt: skip
def test_a_normalizer_of_the_file_is_kept_where_transformers_drops_it(tmp_path, kind, normalizer):
    tokenizer = learnt()
    tokenizer.normalizer = normalizer
    expected = tokenizer.encode(TEXT).ids
    assert expected != learnt().encode(TEXT).ids
    with collected() as remarks:
        found = load_tokenizer(saved(tmp_path / "a", tokenizer, kind))
    assert found(TEXT, add_special_tokens=False)["input_ids"] == expected
    assert (remarks == []) == (kind == "PreTrainedTokenizerFast")
    assert all("encoded as tokenizer.json says" in remark and "normalizer" in remark for remark in remarks)
    found.save_pretrained(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again")(TEXT, add_special_tokens=False)["input_ids"] == expected


def test_accents_that_a_file_keeps_are_not_stripped(tmp_path):
    """A BERT normalizer that is not told strips accents where it lowers letters; a class of transformers tells it nothing."""
    own = Tokenizer(models.WordPiece({"[UNK]": 0, "é": 1, "e": 2}, unk_token="[UNK]"))
    own.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    found = load_tokenizer(saved(tmp_path / "a", own, "BertTokenizer"))
    assert found("É", add_special_tokens=False)["input_ids"] == own.encode("É").ids == [1]


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer", "GPTNeoXTokenizer"])
@pytest.mark.parametrize(
    "split", [r"\p{N}{1,3}", r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", r"\d", r"[“”‘’—]", r"[aeiou]"]
)  # fmt: skip
def test_a_text_is_split_as_the_file_says_whatever_its_class_would_do(tmp_path, kind, split):
    """No list of texts shows all ways to split a text: the definitions are compared."""
    own = byte_level([f"{number} “a—b” in {number}" for number in range(1000)], 900, split)
    with collected() as remarks:
        found = load_tokenizer(saved(tmp_path / "a", own, kind))
    for text in ("In 2024 and 1999", "12345678 people", "“it’s”—quoted", "a\n\n\nb", "x  =  1", TEXT):
        assert found(text, add_special_tokens=False)["input_ids"] == own.encode(text).ids
    assert (remarks == []) == (kind == "PreTrainedTokenizerFast") and all("pre_tokenizer" in each for each in remarks)


def test_the_anatomy_has_the_remarks_of_the_tokenizer(tmp_path):
    folder = random_checkpoint(tmp_path / "a", "llama")
    cutting = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    edit_json(folder / "tokenizer.json", truncation=cutting)
    (remark,) = prove(Model(checkpoint=str(folder))).anatomy.remarks
    assert "truncation" in remark


def fast(model, decoder, names, **special) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model({name: number for number, name in enumerate(names)}))
    tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def bpe(vocabulary):
    return models.BPE(vocabulary, [], byte_fallback="<0x0A>" in vocabulary)


# As Llama's: blanks are \u2581, the first one of a text is dropped.
METASPACE = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
# Model, decoder, and behind <unk> and <s> the names of tokens and their texts.
CASES = {
    "SentencePiece": (
        bpe,
        decoders.Sequence(METASPACE),
        ["<0x0A>", "a", "\u2581he", "he", "\u2581", "\u2581\u2581", "\u2581the\u2581cat"],
        ["<0x0A>", "a", " he", "he", " ", "  ", " the cat"],
    ),
    "Metaspace": (bpe, decoders.Metaspace(), ["a", "\u2581he", "he"], ["a", " he", "he"]),
    "byte-level": (
        bpe,
        decoders.ByteLevel(),
        ["a", "\u0120he", "he", "\u0120", "\u010a", "\u00c3", "\u00c3\u00a9"],
        ["a", " he", "he", " ", "\n", "<0xC3>", "\u00e9"],
    ),
    "WordPiece": (
        models.WordPiece,
        decoders.WordPiece(cleanup=False),
        ["a", "he", "##he", "."],
        [" a", " he", "he", " ."],
    ),
    "end of word": (
        lambda vocabulary: models.BPE(vocabulary, [], end_of_word_suffix="</w>"),
        decoders.BPEDecoder(suffix="</w>"),
        ["a", "he</w>", "he"],
        ["a", "he ", "he"],
    ),
    "words": (
        lambda vocabulary: models.WordLevel(vocabulary, unk_token="<unk>"),
        None,
        ["a", "he", "@-@"],
        ["a", "he", "@-@"],
    ),
}


@pytest.mark.parametrize("family", CASES)
def test_tokens_have_their_own_blanks(family):
    model, decoder, names, expected = CASES[family]
    tokenizer = fast(model, decoder, ["<unk>", "<s>", *names], unk_token="<unk>", bos_token="<s>")
    assert token_texts(tokenizer, len(names) + 3) == ["<unk>", "<s>", *expected, f"<id {len(names) + 2}>"]


def test_added_blanks_are_blanks():
    """Pythia has runs of blanks as added tokens that are not special."""
    tokenizer = fast(bpe, decoders.ByteLevel(), ["a", "\u0120he"])
    tokenizer.add_tokens([AddedToken("   ", normalized=False)])
    assert token_texts(tokenizer, 3) == ["a", " he", "   "]


@pytest.mark.slow
def test_the_corpus_is_encoded_without_modeling_code(checkpoints):
    code = (
        "import sys; import ffkv.corpus.step; from ffkv.model.checkpoint.tokenizer import load_tokenizer; "
        f"load_tokenizer({str(checkpoints('gpt2'))!r})('a text'); "
        "sys.exit('transformers.modeling_utils' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
