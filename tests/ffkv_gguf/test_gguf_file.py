"""Files in the GGUF form: the weights that they stand for, their tokenizer, and what is refused by name."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import prove_into

from ffkv.base.errors import UserError
from ffkv.base.process.libraries import collected
from ffkv.base.settings import Model, section
from ffkv.model.checkpoint.load import load, load_checkpoint, load_form
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.model.step import describe, prove
from ffkv_gguf.gguf_file import QuickReader, read_once
from tests.ffkv_gguf import gguf_files as made
from tests.ffkv_gguf.gguf_files import tiny_llama, write_gguf

IDS = torch.arange(1, 41)[None]
TEXT = "The cat sat on naïve mats 12.\n  <|endoftext|>"


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with a Llama in several types, in the GGUF form; in `plain`, with safetensors."""
    folder = tmp_path_factory.mktemp("gguf")
    model, tokenizer = tiny_llama()
    model.save_pretrained(folder / "plain")
    tokenizer.save_pretrained(folder / "plain")
    for kind in ("F32", "F16", "Q8_0", "Q4_0"):
        write_gguf(folder / f"tiny.{kind}.gguf", model, tokenizer, kind)
    write_gguf(folder / "other.gguf", model, tokenizer, architecture="rwkv6")
    write_gguf(folder / "words.gguf", model, tokenizer, tokenizer_kind="rwkv")
    whole = (folder / "tiny.F32.gguf").read_bytes()
    (folder / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    (folder / "page.gguf").write_bytes(b"<!DOCTYPE html>")
    (folder / "part-00001-of-00002.gguf").write_bytes(whole)
    return folder


def settings(files, name: str, **more) -> Model:
    return section(Model, checkpoint=str(files), gguf=name, **more)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_0"])
def test_the_weights_are_those_that_the_file_stands_for(files, kind):
    plain = load_checkpoint(Model(checkpoint=str(files / "plain")))
    found = load_checkpoint(settings(files, f"tiny.{kind}.gguf"))
    wanted = made.unpacked(plain, kind)
    state = wanted.state_dict()
    assert found.state_dict().keys() == state.keys()
    for name, tensor in found.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0, msg=name)
    logits = found(IDS).logits
    torch.testing.assert_close(logits, wanted(IDS).logits, rtol=0, atol=0)
    error = (logits - plain(IDS).logits).abs().max()
    assert (error == 0) == (kind == "F32") and error < 0.3
    form = load_form(settings(files, f"tiny.{kind}.gguf"))
    assert {name: tensor.shape for name, tensor in form.state_dict().items()} == {n: t.shape for n, t in state.items()}
    assert load_checkpoint(settings(files, f"tiny.{kind}.gguf", dtype="bfloat16")).dtype == torch.bfloat16
    auto = settings(files, f"tiny.{kind}.gguf", dtype="auto")
    assert load_form(auto).dtype == load_checkpoint(auto).dtype


def test_files_of_weights_beside_it_are_none_of_the_models(tmp_path):
    """A repository often has the weights in several forms."""
    write_gguf(tmp_path / "a.gguf", *tiny_llama())
    save_file({"model.x.weight": torch.ones(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with collected() as remarks:
        load_checkpoint(settings(tmp_path, "a.gguf"))
    assert not any("files of weights" in remark for remark in remarks)


PACKED = sorted({kind.name for kind in gguf.quants._type_traits} | {*made.UNREAD})


@pytest.mark.parametrize("kind", PACKED)
def test_every_type_of_weights_is_unpacked_or_refused_by_its_name(tmp_path, kind):
    """A tensor of random bytes becomes what the library of the form says that they stand for."""
    name, memories = "blk.0.ffn_down.weight", 256
    packed = made.random_blocks(kind, made.WIDTH, memories)
    write_gguf(tmp_path / "a.gguf", *tiny_llama(memories=memories), packed={name: (kind, packed)})
    if kind in made.UNREAD:
        with pytest.raises(UserError, match=kind):
            load_checkpoint(settings(tmp_path, "a.gguf"))
        return
    found = load_checkpoint(settings(tmp_path, "a.gguf")).model.layers[0].mlp.down_proj.weight
    wanted = gguf.dequantize(packed, gguf.GGMLQuantizationType[kind])
    assert wanted.shape == (made.WIDTH, memories) and len(np.unique(wanted)) > 2
    assert (found.detach().numpy() == wanted).all()


def test_the_tokenizer_is_that_of_the_file_and_has_no_token_of_its_own(files, tmp_path):
    plain = load_tokenizer(files / "plain")
    found = load_tokenizer(files, gguf="tiny.Q8_0.gguf")
    assert len(found) == len(plain)
    assert found(TEXT, add_special_tokens=False).input_ids == plain(TEXT, add_special_tokens=False).input_ids
    assert found.decode(found(TEXT).input_ids) == TEXT
    assert found.bos_token_id == 0
    found.save_pretrained(tmp_path)
    again = load_tokenizer(tmp_path)
    assert len(again) == len(plain) and again(TEXT).input_ids == found(TEXT).input_ids


def test_a_model_is_proven_and_loaded_again_and_another_file_of_the_same_name_is_noticed(tmp_path):
    """Its triggers follow from weights and tokenizer, which are those of the checkpoint with safetensors."""
    model, tokenizer = tiny_llama()
    write_gguf(tmp_path / "a.gguf", model, tokenizer)
    folder = prove_into(tmp_path / "stage", tmp_path, gguf="a.gguf")
    anatomy = load(folder, "cpu").anatomy
    assert anatomy.gguf == anatomy.identity["gguf"] == "a.gguf" and "file a.gguf" in describe(anatomy)
    write_gguf(tmp_path / "a.gguf", tiny_llama(1)[0], tokenizer)
    with pytest.raises(UserError, match="have changed since"):
        load(folder, "cpu")


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("other.gguf", "architecture rwkv6 is not supported"),
        ("words.gguf", "rwkv"),
        ("cut.gguf", "cannot be loaded|not known"),
        ("page.gguf", "cannot be loaded|not known"),
        ("part-00001-of-00002.gguf", "one of several parts of a model.*llama-gguf-split"),
        ("none.gguf", r"has no file none\.gguf\. Its files in the GGUF form: 'cut\.gguf', 'other\.gguf', "),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(files, name, refusal):
    with pytest.raises(UserError, match=refusal) as refused:
        prove(settings(files, name))
    assert str(files) in str(refused.value)


@pytest.mark.parametrize("name", ["model.safetensors", "folder/tiny.gguf", "../tiny.gguf", "/tiny.gguf", "gguf"])
def test_names_that_are_refused(name):
    with pytest.raises(UserError, match=r"gguf is .*must be the name of a file"):
        section(Model, gguf=name)


def test_a_folder_of_such_files_alone_names_the_setting(files):
    with pytest.raises(UserError, match=r"GGUF form \('cut\.gguf', .*Set model\.gguf"):
        prove(Model(checkpoint=str(files)))
    assert json.loads((files / "plain" / "config.json").read_text())["model_type"] == "llama"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"tensors": {"blk.1.ffn_up.bias": np.ones(made.MEMORIES, np.float32)}},
            r"holds blk\.1\.ffn_up\.bias, for which",
        ),
        ({"tensors": {"blk.1.attn_q_norm.weight": np.ones(16, np.float32)}}, r"holds blk\.1\.attn_q_norm\.weight"),
        ({"tensors": {"rope_freqs.weight": np.full(8, 4, np.float32)}}, r"holds rope_freqs\.weight.*check rope_theta"),
        ({"entries": {"rope.scaling.factor": 4.0}}, r"llama\.rope\.scaling\.factor is 4, and transformers makes"),
        ({"entries": {"final_logit_softcapping": 30.0}}, r"llama\.final_logit_softcapping is 30.*no such entry"),
        ({"entries": {"own.entry": 2.0}}, r"entries that transformers does not read.*: llama\.own\.entry \(2\)"),
    ],
)
def test_what_transformers_leaves_out_of_a_file_is_refused_if_it_is_computed_with(tmp_path, more, told):
    write_gguf(tmp_path / "a.gguf", *tiny_llama(), **more)
    with pytest.raises(UserError, match=rf"The file a\.gguf .*{told}"):
        load_checkpoint(settings(tmp_path, "a.gguf"))


def test_an_architecture_of_the_newer_reader_of_transformers_is_proven(tmp_path):
    """The library names what it left out of such files; its older table of names does not know them."""
    _, tokenizer = tiny_llama()
    model = made.tiny_qwen(tokenizer)
    made.write_qwen(tmp_path / "a.gguf", model, tokenizer)
    proven = prove(settings(tmp_path, "a.gguf"))
    # As with Gemma's norms; A_log is stored as -exp(A_log), too.
    torch.testing.assert_close(proven.model(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)
    assert proven.anatomy.remarks == [] and len(proven.anatomy.layers) == 4


def test_types_of_layers_may_turn_positions_by_different_angles(tmp_path):
    """A file of Gemma 3 has one entry, which is that of its layers with full attention."""
    _, tokenizer = tiny_llama()
    model = made.tiny_gemma(tokenizer)
    angles = {kind: each["rope_theta"] for kind, each in model.config.rope_parameters.items()}
    assert angles == {"full_attention": 1e6, "sliding_attention": 1e4}
    write_gguf(tmp_path / "a.gguf", model, tokenizer, architecture="gemma3")
    found = load_checkpoint(settings(tmp_path, "a.gguf"))
    # A weight of a norm is stored plus one: rounded to float32, as transformers takes the one off again.
    torch.testing.assert_close(found(IDS).logits, model(IDS).logits, rtol=0, atol=1e-5)
    write_gguf(tmp_path / "b.gguf", model, tokenizer, architecture="gemma3", entries={"rope.scaling.factor": 8.0})
    with pytest.raises(UserError, match=r"gemma3\.rope\.scaling\.factor is 8, .*factor 1:"):
        load_checkpoint(settings(tmp_path, "b.gguf"))


def test_what_is_harmless_in_a_file_is_named(tmp_path):
    tensors = {"blk.1.ffn_up.bias": np.zeros(made.MEMORIES, np.float32), "rope_freqs.weight": np.ones(8, np.float32)}
    entries = {"own.entry": 0.0, "rope.scaling.factor": 1.0}
    write_gguf(tmp_path / "a.gguf", *tiny_llama(), tensors=tensors, entries=entries)
    remarks = prove(settings(tmp_path, "a.gguf")).anatomy.remarks
    for name in ("ffn_up.bias", "rope_freqs.weight"):
        assert any(name in remark for remark in remarks), name
    assert len(remarks) == 2


def test_the_quick_reader_reads_what_the_library_reads(files):
    path = files / "tiny.Q8_0.gguf"
    slow, quick = gguf.GGUFReader(path), QuickReader(path)
    assert [*slow.fields] == [*quick.fields]
    for name, field in slow.fields.items():
        assert field.contents() == quick.fields[name].contents() and field.types == quick.fields[name].types, name
    for first, second in zip(slow.tensors, quick.tensors, strict=True):
        assert first.name == second.name and (first.data == second.data).all()


def test_a_file_is_opened_once_for_config_weights_and_tokenizer(files, monkeypatch):
    opened = []
    original = QuickReader.__init__
    monkeypatch.setattr(QuickReader, "__init__", lambda *given: opened.append(given[1]) or original(*given))
    before = gguf.GGUFReader
    prove(settings(files, "tiny.Q8_0.gguf"))
    assert len(opened) == 1 and gguf.GGUFReader is before
    with read_once():
        pass
    assert gguf.GGUFReader is before


def test_what_transformers_cannot_say_is_said(files, tmp_path):
    """A file whose numbers begin with the largest byte is of "version 50331648"; one with the name "mistral" is "unknown"."""
    content = (files / "tiny.F32.gguf").read_bytes()
    (tmp_path / "large.gguf").write_bytes(content[:4] + content[4:8][::-1] + content[8:])
    with pytest.raises(UserError, match=r"begin with the largest byte .*gguf-convert-endian"):
        prove(settings(tmp_path, "large.gguf"))
    model, tokenizer = tiny_llama()
    write_gguf(tmp_path / "name.gguf", model, tokenizer, name="mistral")
    with pytest.raises(UserError, match=r"with the name mistral \(general\.name\).*gguf-new-metadata"):
        prove(settings(tmp_path, "name.gguf"))
    write_gguf(tmp_path / "name.gguf", model, tokenizer, name="mistral 7B")
    load_checkpoint(settings(tmp_path, "name.gguf"))


def test_a_list_that_is_longer_than_the_file_is_refused(tmp_path):
    """A length that would take all memory."""
    write_gguf(tmp_path / "a.gguf", *tiny_llama())
    for name in (b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type"):
        content = bytearray((tmp_path / "a.gguf").read_bytes())
        place = content.index(name) + len(name) + 8  # behind the types of the entry and of its items
        content[place : place + 8] = (2**60).to_bytes(8, "little")
        (tmp_path / "b.gguf").write_bytes(content)
        with pytest.raises(ValueError, match="ends inside a list"):
            QuickReader(tmp_path / "b.gguf")
        with pytest.raises(UserError, match="is not known"):
            prove(settings(tmp_path, "b.gguf"))
