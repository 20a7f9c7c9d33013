"""Tokenizers of files in the GGUF form: the ids of the tokenizer that a file was made from, or a refusal by name."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from support import byte_level
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from ffkv.base.errors import UserError
from ffkv.base.process.libraries import collected
from ffkv.base.settings import Model, section
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.step import prove
from ffkv_gguf.gguf_file import OF_GPT2
from tests.ffkv_gguf.gguf_files import CONTROL, NORMAL, tiny_gemma, tiny_llama, write_gguf

LINES = ["def area(x):\n    return x * 2024 + 17.5  # (width)\n\n12", "He said: \"it's 1,897 miles\".\n\nShe didn't.\n", "数学 2024年 Привет!\n"] * 20  # fmt: skip
TEXTS = [*LINES[:3], "  12 and\n\n\n1897", "HE'S 20242025"]
BYTE = 6  # a kind of token


def split_by(*splits: str) -> Tokenizer:
    """A byte-level tokenizer that splits texts by regular expressions alone."""
    return byte_level(LINES, 400, *splits, words=False)


def sentencepiece(prepend: str) -> Tokenizer:
    """A tokenizer that reads blanks as "▁", with one in front of a text or not, and bytes that it does not know."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=prepend)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False))
    stored = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in stored["merges"]]
    tokenizer = Tokenizer(models.BPE(stored["vocab"], merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=prepend, split=False)
    return tokenizer


def written(folder: Path, tokenizer: Tokenizer, kind: str = "gpt2", **entries: Any) -> Path:
    """A file of a Llama without weights, which the tokenizer does not need. `entries`: of the tokenizer."""
    stored = json.loads(tokenizer.to_str())["model"]
    vocabulary = sorted(stored["vocab"], key=stored["vocab"].get)
    writer = gguf.GGUFWriter(folder / "a.gguf", "llama")
    writer.add_context_length(64)
    writer.add_block_count(1)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(vocabulary)
    kinds = [
        CONTROL if token in ("<s>", "</s>", "<unk>") else BYTE if token.startswith("<0x") else NORMAL
        for token in vocabulary
    ]
    writer.add_token_types(kinds)
    if kind == "llama":
        rank = {"".join(merge): -float(number) for number, merge in enumerate(stored["merges"])}
        writer.add_token_scores([rank.get(token, -1e4) for token in vocabulary])
    else:
        writer.add_token_merges([" ".join(merge) for merge in stored["merges"]])
    writer.add_bos_token_id(stored["vocab"]["<s>"])
    for name, value in {"ggml.add_bos_token": False, **entries}.items():
        add = {bool: writer.add_bool, str: writer.add_string, list: writer.add_array}[type(value)]
        if value != "":
            add(f"tokenizer.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return folder


def assert_ids(folder: Path, tokenizer: Tokenizer, remarks: int = 0) -> Any:
    with collected() as told:
        found = load_tokenizer(folder, gguf="a.gguf")
    for text in TEXTS:
        assert (
            found(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text, add_special_tokens=False).ids
        )
    assert len(told) == remarks
    return found


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@pytest.mark.parametrize(
    ("name", "splits", "remarks"),
    [
        ("gpt-2", (OF_GPT2,), 0),
        ("default", (OF_GPT2,), 1),
        ("", (OF_GPT2,), 1),
        ("olmo", (OF_GPT2,), 0),
        ("qwen2", (QWEN2,), 0),
        ("stablelm2", (QWEN2,), 0),
        ("llama-bpe", (LLAMA3,), 0),
        ("chatglm-bpe", (LLAMA3,), 0),
        ("smollm", (r"\p{N}", OF_GPT2), 0),
        ("starcoder", (r"\p{N}", OF_GPT2), 0),
        ("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", OF_GPT2, "[0-9][0-9][0-9]"), 0),
        ("bloom", (r" ?[^(\s|.,!?…。，、।۔،)]+",), 0),
    ],
)
def test_a_text_is_split_as_the_file_names_it(tmp_path, name, splits, remarks):
    tokenizer = split_by(*splits)
    assert_ids(written(tmp_path, tokenizer, **{"ggml.pre": name}), tokenizer, remarks)


def test_smollm_splits_otherwise_than_gpt_2():
    """So it matters that its name is known: blanks and ends of lines in front of a number are pieces of their own."""
    first, second = split_by(r"\p{N}", OF_GPT2), split_by(OF_GPT2)
    pieces = [tokenizer.pre_tokenizer.pre_tokenize_str("a\n\n12") for tokenizer in (first, second)]
    assert [[piece for piece, _ in found] for found in pieces] == [["a", "ĊĊ", "1", "2"], ["a", "Ċ", "Ċ", "12"]]


@pytest.mark.parametrize("name", ["deepseek-llm", "seed-coder", "kimi-k2", "superbpe", "a-name-of-tomorrow"])
def test_a_way_to_split_that_nobody_knows_is_refused_by_its_name(tmp_path, name):
    with pytest.raises(UserError, match=rf"a\.gguf splits texts .*tokenizer\.ggml\.pre is {name}"):
        load_tokenizer(written(tmp_path, split_by(OF_GPT2), **{"ggml.pre": name}), gguf="a.gguf")


@pytest.mark.parametrize(("name", "whole"), [("llama-bpe", True), ("qwen2", False)])
def test_a_piece_that_is_a_token_needs_no_merges_where_llama_cpp_says_so(tmp_path, name, whole):
    tokenizer = split_by(LLAMA3 if whole else QWEN2)
    state = json.loads(tokenizer.to_str())
    state["model"]["vocab"]["quixotic"] = len(state["model"]["vocab"])
    found = load_tokenizer(
        written(tmp_path, Tokenizer.from_str(json.dumps(state)), **{"ggml.pre": name}), gguf="a.gguf"
    )
    assert (len(found("quixotic", add_special_tokens=False)["input_ids"]) == 1) == whole


@pytest.mark.parametrize(
    ("name", "given", "begins"),
    [("llama-bpe", {}, True), ("llama-bpe", {"ggml.add_bos_token": False}, False), ("qwen2", {"ggml.add_bos_token": True}, True), ("qwen2", {}, False)],
)  # fmt: skip
def test_a_text_begins_as_the_file_says_or_as_llama_cpp_does_without_a_word(tmp_path, name, given, begins):
    given = given or {"ggml.add_bos_token": ""}
    found = load_tokenizer(written(tmp_path, split_by(QWEN2), **{"ggml.pre": name, **given}), gguf="a.gguf")
    assert (found("a")["input_ids"][0] == found.bos_token_id == 0) == begins


@pytest.mark.parametrize(("prefix", "prepend"), [(True, "first"), (False, "never"), ("", "first")])
def test_a_blank_is_in_front_of_a_text_if_the_file_says_so(tmp_path, prefix, prepend):
    tokenizer = sentencepiece(prepend)
    entries = {"ggml.pre": "default", "ggml.add_space_prefix": prefix}
    found = assert_ids(written(tmp_path, tokenizer, "llama", **entries), tokenizer)
    assert found.decode(found("a cat", add_special_tokens=False)["input_ids"]) == "a cat"


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ({"ggml.normalizer.lowercase": True}, r"nobody here reads: tokenizer\.ggml\.normalizer\.lowercase"),
        ({"ggml.precompiled_charsmap": [1, 2, 3]}, r"nobody here reads: tokenizer\.ggml\.precompiled_charsmap"),
        ({"ggml.entry_of_tomorrow": True}, r"nobody here reads: tokenizer\.ggml\.entry_of_tomorrow"),
    ],
)
def test_an_entry_of_a_tokenizer_that_nobody_reads_is_refused(tmp_path, entries, told):
    with pytest.raises(UserError, match=told):
        load_tokenizer(written(tmp_path, split_by(OF_GPT2), **{"ggml.pre": "gpt-2"}, **entries), gguf="a.gguf")
    idle = {**dict.fromkeys(entries, False), "chat_template": "x", "ggml.remove_extra_whitespaces": True}
    load_tokenizer(written(tmp_path, split_by(OF_GPT2), **{"ggml.pre": "gpt-2"}, **idle), gguf="a.gguf")


def test_a_token_twice_is_named_without_false_advice(tmp_path):
    written(tmp_path, split_by(OF_GPT2), **{"ggml.pre": "gpt-2"})
    content = (tmp_path / "a.gguf").read_bytes()
    one, other = ((1).to_bytes(8, "little") + letter for letter in (b"Q", b"Z"))
    (tmp_path / "a.gguf").write_bytes(content.replace(one, other, 1))
    with pytest.raises(
        UserError, match=r"a\.gguf has the token 'Z' twice in its vocabulary\. Use the model"
    ) as refused:
        load_tokenizer(tmp_path, gguf="a.gguf")
    assert "Put the tokenizer's files" not in str(refused.value)


def test_a_role_of_a_token_that_the_file_does_not_have_is_taken_away(tmp_path):
    """transformers gives each Gemma `<mask>` and others: once, the proof ended in a traceback."""
    _, tokenizer = tiny_llama()
    write_gguf(tmp_path / "a.gguf", tiny_gemma(tokenizer), tokenizer, architecture="gemma3")
    found = prove(section(Model, checkpoint=str(tmp_path), gguf="a.gguf")).tokenizer
    assert None not in found.all_special_ids and len(found) == len(tokenizer)
