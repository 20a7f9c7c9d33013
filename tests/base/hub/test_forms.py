"""The forms in which weights are published: quantised, as adapters, as GGUF, with another tokenizer; and damaged files."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from support import edit_json, random_checkpoint, random_model
from transformers import AutoModelForCausalLM, LlamaConfig

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.model.checkpoint.load import load_checkpoint
from ffkv.model.step import prove
from tests.base.hub.contents import parquet, sentences
from tests.ffkv_gguf.gguf_files import tiny_llama, write_gguf

pytestmark = pytest.mark.slow

# The values of the 16 codes of FP4 (one bit of sign, two of exponent, one of mantissa).
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def with_random_mxfp4(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Replaces the experts' matrices [expert, in, out] by random blocks and scales; returns also what these stand for.

    Stored: blocks [expert, out, in / 32, 16] with two codes a byte, the lower half first; scales [expert, out, in / 32]
    with exponents of 2, plus 127.
    """
    generator = torch.Generator().manual_seed(0)
    packed, meant = {}, {}
    for name, tensor in tensors.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(124, 128, shape, generator=generator, dtype=torch.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).long()
        values = FP4[codes].reshape(*shape, 32) * 2.0 ** (scales.double() - 127)[..., None]
        meant[name] = values.reshape(experts, outputs, inputs).transpose(1, 2).float()
    return packed, meant


def test_mxfp4_is_read_as_published_and_proven(tmp_path):
    folder = random_checkpoint(tmp_path / "gpt-oss", "gpt-oss")
    edit_json(folder / "config.json", hidden_size=32, intermediate_size=32)
    config = json.loads((folder / "config.json").read_text())
    model = random_model(AutoModelForCausalLM.from_pretrained(folder, ignore_mismatched_sizes=True).config)
    model.save_pretrained(folder)
    packed, meant = with_random_mxfp4(load_file(folder / "model.safetensors"))
    assert len(meant) == 2 * config["num_hidden_layers"]
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    modules = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    edit_json(folder / "config.json", quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": modules})
    proven = prove(Model(checkpoint=str(folder)))
    found = dict(proven.model.named_parameters())
    for name, expected in meant.items():
        assert torch.equal(found[name], expected), name
    assert proven.anatomy.dtype == "float32"
    assert max(proven.anatomy.errors.values()) < 1e-4


def test_fp8_is_read_as_published_and_proven(tmp_path):
    """Blocks of 16 x 16 with one scale each, which the weights are multiplied with."""
    folder = tmp_path / "fp8"
    shape = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    random_checkpoint(folder, "llama")  # for its tokenizer
    random_model(LlamaConfig(vocab_size=60, max_position_embeddings=32, **shape)).save_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    packed, meant = {}, {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        packed[name] = tensor
        if not name.endswith("proj.weight"):
            continue
        blocks = [size // 16 for size in tensor.shape]
        scales = torch.rand(blocks, generator=generator) * 0.1 + 0.01
        spread = scales.repeat_interleave(16, 0).repeat_interleave(16, 1)
        packed[name] = (tensor / spread).to(torch.float8_e4m3fn)
        packed[f"{name}_scale_inv"] = scales
        meant[name] = packed[name].float() * spread
    save_file(packed, folder / "model.safetensors", metadata={"format": "pt"})
    quantised = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    edit_json(folder / "config.json", quantization_config=quantised)
    proven = prove(Model(checkpoint=str(folder)))
    found = dict(proven.model.named_parameters())
    assert len(meant) == 14
    for name, expected in meant.items():
        torch.testing.assert_close(found[name], expected, rtol=2**-22, atol=0)  # one rounding of the product
    assert max(proven.anatomy.errors.values()) < 1e-4


@pytest.mark.parametrize("target", ["q_proj", "up_proj", "down_proj"])
def test_an_adapter_is_merged_and_proven(tmp_path, model_folders, target):
    base = model_folders()
    torch.manual_seed(0)
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(r=2, lora_alpha=6, target_modules=[target])
    )
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn_like(parameter)
    adapted.save_pretrained(tmp_path / "adapter")
    low_rank = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    plain = dict(load_checkpoint(Model(checkpoint=str(base))).named_parameters())
    settings = Model(checkpoint=str(base), adapter=str(tmp_path / "adapter"))
    proven = prove(settings)
    found = dict(proven.model.named_parameters())
    changed = [name for name in plain if not torch.equal(plain[name], found[name])]
    assert changed == [name for name in plain if target in name] and len(changed) == 2
    for name in changed:
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        update = low_rank[f"{stem}.lora_B.weight"] @ low_rank[f"{stem}.lora_A.weight"] * (6 / 2)
        # float32: the order of additions in the product of rank 2
        torch.testing.assert_close(found[name], plain[name] + update, rtol=1e-5, atol=1e-5)
    assert proven.anatomy.adapter == settings.adapter
    wider = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    random_model(LlamaConfig(vocab_size=60, **wider)).save_pretrained(tmp_path / "other")
    with pytest.raises(UserError, match=r"The adapter .*adapter cannot be merged into this LlamaForCausalLM: .*size"):
        load_checkpoint(settings.model_copy(update={"checkpoint": str(tmp_path / "other")}))


def test_what_cannot_be_read_is_refused_by_name_before_its_weights_are_fetched(hub, child, model_folders, tmp_path):
    """Quantised forms, adapters, GGUF, from the hub and from a folder; in `load_form` of `ffkv plan` too."""
    plain = {path.name: path.read_bytes() for path in model_folders().iterdir()}
    methods = {"gptq": {"bits": 4}, "awq": {"bits": 4}, "bitsandbytes": {"load_in_4bit": True}}
    for method, more in methods.items():
        config = json.loads(plain["config.json"]) | {"quantization_config": {"quant_method": method, **more}}
        hub.model(f"someone/{method}").push(plain | {"config.json": json.dumps(config).encode()})
    adapter = {"base_model_name_or_path": "someone/plain", "peft_type": "LORA"}
    hub.model("someone/adapter").push(
        {"adapter_config.json": json.dumps(adapter).encode(), "adapter_model.safetensors": bytes(100)}
    )
    hub.model("someone/packed").push({"README.md": b"# A", "tiny.Q4_K_M.gguf": b"GGUF" + bytes(100)})
    hub.model("someone/nothing").push({"README.md": b"# A"})
    names = [f"someone/{name}" for name in [*methods, "adapter", "packed", "nothing"]]
    code = f"""
from ffkv.model.checkpoint.load import load_checkpoint, load_form
print(json.dumps([[attempt(call, Model(checkpoint=name))["refusal"] for name in {names}] for call in (load_form, load_checkpoint)]))
"""
    for refusals in child(code):
        for method, refusal in zip(methods, refusals):
            assert f"someone/{method} is quantised ({method})" in refusal and "use the unquantised model" in refusal
        *_, of_adapter, of_packed, of_nothing = refusals
        assert "Set model.checkpoint to someone/plain and model.adapter to someone/adapter" in of_adapter
        assert "GGUF form ('tiny.Q4_K_M.gguf'). Set model.gguf" in of_packed
        assert "someone/nothing is not a checkpoint: its repository has no config.json. It has README.md." in of_nothing
    assert not hub.asked(r"gguf|adapter_model")
    assert not hub.asked("resolve.*safetensors"), "weights that cannot be read"


def test_a_damaged_file_in_the_cache_is_named_and_its_deletion_mends_it(hub, child, model_folders):
    hub.model("someone/tiny").push_folder(model_folders())
    hub.dataset("someone/words").push({"train.parquet": parquet(sentences(50))})
    code = """
from ffkv.corpus.sources import read_documents
from ffkv.model.checkpoint.load import load_checkpoint
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv.base.hub.commit import resolve_model
settings = Model(checkpoint="someone/tiny")
commit = resolve_model(settings)
readers = {
    "model.safetensors": lambda: load_checkpoint(settings).dtype and 0,
    "config.json": lambda: load_checkpoint(settings).dtype and 0,
    "tokenizer.json": lambda: len(load_tokenizer("someone/tiny", commit)),
    "train.parquet": lambda: len(list(read_documents(Corpus(dataset="someone/words"), "train"))),
}
told = []
for name, reader in readers.items():
    right = attempt(reader)["answer"]
    blob = next(Path(os.environ["HF_HOME"]).rglob(name)).resolve()
    content = blob.read_bytes()
    # A reader of parquet looks at the end, the others at the beginning.
    flipped = bytearray(content)
    flipped[-1 if name.endswith("parquet") else 0] ^= 0xFF
    for damaged in (content[: len(content) // 2], bytes(flipped)):
        blob.write_bytes(damaged)
        refusal = attempt(reader)["refusal"]
        named = [Path(word) for word in refusal.split() if word.startswith(os.environ["HF_HOME"])]
        for path in named:
            path.unlink()
        told.append([name, refusal, named == [Path(blob)], attempt(reader)["answer"] == right, blob.read_bytes() == content])
print(json.dumps(told))
"""
    told = child(code)
    assert len(told) == 8
    for name, refusal, named, mended, same in told:
        assert named and mended and same, (name, refusal)
        assert refusal.endswith("Delete this file, and the next start fetches it again."), refusal


def test_one_file_in_the_gguf_form_is_fetched_at_its_commit(hub, child, tmp_path):
    """`model.gguf`: no other file of the repository, a later push changes nothing, and later steps ask nothing."""
    repository, pushed = hub.model("someone/packed"), []
    for seed in (0, 1):
        for kind in ("F32", "Q8_0"):
            write_gguf(tmp_path / f"tiny.{kind}.gguf", *tiny_llama(seed), kind)
        files = {f"tiny.{kind}.gguf": (tmp_path / f"tiny.{kind}.gguf").read_bytes() for kind in ("F32", "Q8_0")}
        pushed.append(repository.push({"README.md": b"# A"} | files))
    code = f"""
from dataclasses import replace
from ffkv.base.hub.commit import resolve_model
from ffkv.base.hub.fetch import choose_files_of, measure_missing
from ffkv.model.checkpoint.load import load
from ffkv.model.checkpoint.load import load_checkpoint, load_form
from ffkv.model.checkpoint.tokenizer import load_tokenizer
from ffkv_gguf.unpack import unpack
from ffkv.model.step import prove
settings = Model(checkpoint="someone/packed", gguf="tiny.Q8_0.gguf", revision="{pushed[0]}")
commit = resolve_model(settings)
missing = [measure_missing(commit, choose_files_of(settings.gguf))]
form, tokenizer = load_form(settings, commit), load_tokenizer("someone/packed", commit, gguf=settings.gguf)
missing.append(measure_missing(commit, choose_files_of(settings.gguf)))
Path("model").mkdir()
proven = prove(settings, commit)
anatomy, of_file = proven.write("model"), proven.anatomy
over("gone")
offline()
again = load("model", "cpu").anatomy == anatomy
unpack(settings, "copy", commit)
again &= prove(settings, commit, "copy").anatomy == replace(of_file, unpacked="copy")
refused = attempt(load_checkpoint, settings.model_copy(update=dict(gguf="tiny.Q4_0.gguf")), commit)["refusal"]
print(json.dumps([missing, len(tokenizer), anatomy.commit, anatomy.gguf, again, refused]))
"""
    hub.when("/over/gone", hub.stop)
    missing, size, commit, name, again, refused = child(code)
    assert missing == [{"tiny.Q8_0.gguf": (tmp_path / "tiny.Q8_0.gguf").stat().st_size}, {}]
    assert (size, commit, name, again) == (len(tiny_llama()[1]), pushed[0], "tiny.Q8_0.gguf", True)
    assert (
        "someone/packed has no file tiny.Q4_0.gguf. Its files in the GGUF form: 'tiny.F32.gguf', 'tiny.Q8_0" in refused
    )
    assert {request.path.rpartition("/")[2] for request in hub.asked(r"resolve.*gguf")} == {"tiny.Q8_0.gguf"}
