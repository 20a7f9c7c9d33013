"""The tokenizer that is read is the one that its files describe, and gives a text one encoding."""

import json
from pathlib import Path

import pytest
from support import random_checkpoint
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from ffkv.base.process.remarks import collected
from ffkv.base.settings import Model
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.step import prove

LINES = [f"the old river walks under stone {i} and the green bird sings over the road" for i in range(40)]
TEXT = "The old RIVER walks under the green bird, and under é stone"


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


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
        (byte_level, {"dropout": 0.3}, "dropout (0.3), which is off"),
        (byte_level, {"dropout": 1.0}, "dropout (1.0), which is off"),
        (unigram, {"alpha": 0.1, "nbest_size": 20}, "nbest_size (20), which is off"),
        (byte_level, {"dropout": 0.0}, ""),
        (byte_level, {}, ""),
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
    tokenizer = byte_level()
    expected = tokenizer.encode(TEXT).ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=100)
    with collected() as remarks:
        found = load_tokenizer(saved(tmp_path / "a", tokenizer))
    assert found(TEXT, add_special_tokens=False)["input_ids"] == found.backend_tokenizer.encode(TEXT).ids == expected
    assert [name for name in ("truncation", "padding") if any(name in remark for remark in remarks)] == [
        "truncation",
        "padding",
    ]


@pytest.mark.parametrize("kind", ["PreTrainedTokenizerFast", "GPT2TokenizerFast", "Qwen2Tokenizer", "GPTNeoXTokenizer"])
@pytest.mark.parametrize(
    "normalizer",
    [normalizers.Lowercase(), normalizers.Replace("the", "a"), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])],
)  # fmt: skip
def test_a_normalizer_of_the_file_is_kept_where_transformers_drops_it(tmp_path, kind, normalizer):
    tokenizer = byte_level()
    tokenizer.normalizer = normalizer
    expected = tokenizer.encode(TEXT).ids
    assert expected != byte_level().encode(TEXT).ids
    with collected() as remarks:
        found = load_tokenizer(saved(tmp_path / "a", tokenizer, kind))
    assert found(TEXT, add_special_tokens=False)["input_ids"] == expected
    assert (remarks == []) == (kind == "PreTrainedTokenizerFast")
    assert all("encoded as tokenizer.json says" in remark and "normalizer" in remark for remark in remarks)
    found.save_pretrained(tmp_path / "again")
    assert load_tokenizer(tmp_path / "again")(TEXT, add_special_tokens=False)["input_ids"] == expected


def test_the_anatomy_has_the_remarks_of_the_tokenizer(tmp_path):
    folder = random_checkpoint(tmp_path / "a", "llama")
    definition = json.loads((folder / "tokenizer.json").read_text())
    definition["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (remark,) = prove(Model(checkpoint=str(folder))).anatomy.remarks
    assert "truncation" in remark
