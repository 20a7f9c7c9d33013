"""Dictionaries that tests write and read without a package: one file of tensors per layer."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import known_words
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from ffkv.base.settings import Dictionary as Settings
from ffkv.base.settings import Model
from ffkv.model.checkpoint.load import LoadedModel, load
from ffkv.model.step import ProvenModel, prove
from ffkv_dictionaries import choose
from ffkv_dictionaries.forms import Dictionary, Form

SIZES = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 48}
CONFIGS = {
    "post-norm": OPTConfig(
        **SMALL, word_embed_proj_dim=16, ffn_dim=24, do_layer_norm_before=False, activation_function="relu", **SIZES
    ),
    "square": OPTConfig(**SMALL, word_embed_proj_dim=16, ffn_dim=16, activation_function="gelu", **SIZES),
    "parallel": GPTNeoXConfig(**SMALL, intermediate_size=24, use_parallel_residual=True, **SIZES),
    "olmo2": Olmo2Config(**SMALL, intermediate_size=24, **SIZES),
    "gpt2": GPT2Config(n_positions=48, n_embd=16, n_layer=2, n_head=2, activation_function="relu", **SIZES),
    "opt": OPTConfig(
        max_position_embeddings=48,
        hidden_size=16,
        word_embed_proj_dim=16,
        ffn_dim=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        activation_function="relu",
        **SIZES,
    ),
    "gemma2": Gemma2Config(
        max_position_embeddings=48,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        **SIZES,
    ),
}
CLASSES = {"gpt2": GPT2LMHeadModel, "opt": OPTForCausalLM, "gemma2": Gemma2ForCausalLM}
CLASSES |= {
    "post-norm": OPTForCausalLM,
    "square": OPTForCausalLM,
    "parallel": GPTNeoXForCausalLM,
    "olmo2": Olmo2ForCausalLM,
}


def _read(file: Path) -> Dictionary:
    given = load_file(file)
    largest = given.pop("largest", torch.tensor(0))
    return Dictionary(**given, largest=int(largest), told="it reads ln2")


FORM = Form("layer_<i>.st", lambda path: True, lambda path: {int(f.stem[6:]): f for f in path.glob("*.st")}, _read)


@pytest.fixture
def form(monkeypatch) -> None:
    monkeypatch.setattr(choose, "form_of", lambda path: FORM)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Returns a tiny model with random weights, saved; gains of norms are far from 1."""
    made: dict[str, tuple[Path, torch.nn.Module]] = {}

    def get(kind: str) -> tuple[Path, torch.nn.Module]:
        if kind not in made:
            torch.manual_seed(3)
            model, folder = CLASSES[kind](CONFIGS[kind]), tmp_path_factory.mktemp(kind)
            for parameter in model.parameters():
                parameter.data = torch.randn_like(parameter) * 0.5 + (parameter.ndim == 1)
            model.save_pretrained(folder)
            known_words().save_pretrained(folder)
            made[kind] = folder, model
        return made[kind]

    return get


@pytest.fixture
def written(tmp_path):
    """Writes the dictionaries of some layers into a folder."""

    def write(dictionaries: dict[int, Dictionary]) -> Settings:
        folder = tmp_path / "dictionary"
        folder.mkdir(exist_ok=True)
        for number, dictionary in dictionaries.items():
            tensors = {name: tensor.detach().clone().contiguous() for name, tensor in dictionary.tensors().items()}
            if dictionary.largest:
                tensors["largest"] = torch.tensor(dictionary.largest)
            save_file(tensors, folder / f"layer_{number}.st")
        return Settings(path=str(folder))

    return write


@pytest.fixture
def proven(models, written, form):
    """Proves a model with dictionaries of some layers, with settings of the dictionary."""

    def get(kind: str, dictionaries: dict[int, Dictionary], **settings) -> ProvenModel:
        given = written(dictionaries).model_copy(update=settings)
        return prove(Model(checkpoint=str(models(kind)[0])), dictionary=given)

    return get


@pytest.fixture
def loaded(proven, tmp_path):
    """The same, written and loaded again."""

    def get(kind: str, dictionaries: dict[int, Dictionary], **settings) -> LoadedModel:
        (tmp_path / "model").mkdir()
        proven(kind, dictionaries, **settings).write(tmp_path / "model", tmp_path / "values.h5")
        return load(tmp_path / "model", "cpu")

    return get


def of_layer(model: torch.nn.Module, number: int) -> Dictionary:
    """A layer of two plain matrices with ReLU, as a dictionary."""
    if isinstance(model, GPT2LMHeadModel):
        first, second = model.transformer.h[number].mlp.c_fc, model.transformer.h[number].mlp.c_proj
        keys, values = first.weight.T, second.weight
    else:
        first, second = model.model.decoder.layers[number].fc1, model.model.decoder.layers[number].fc2
        keys, values = first.weight, second.weight.T
    return Dictionary(keys, first.bias, values, second.bias, threshold=torch.zeros(len(keys)))


def fitted(x: torch.Tensor, y: torch.Tensor, units: int = 40, **changes) -> Dictionary:
    """A dictionary of random keys whose values are fitted by least squares, so that it explains y from x well, and from nothing else."""
    generator = torch.Generator().manual_seed(5)
    keys = torch.randn(units, x.shape[1], generator=generator) / x.std()
    made = (x @ keys.T).relu()
    both = torch.cat([made, torch.ones(len(x), 1)], 1).double()
    solved = torch.linalg.lstsq(both, y.double(), driver="gelsd").solution.float()
    zeros = torch.zeros(units)
    return replace(Dictionary(keys, zeros, solved[:-1], solved[-1], threshold=zeros), **changes)
