"""Whether norms and attention are held: by the gradients of queries and keys, by hand-made norms, and said by name if not."""

import contextlib
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from ffkv.branches.behaviours.states import read_states
from ffkv.branches.behaviours.stored import Encoded
from ffkv.model.checkpoint.load import load
from ffkv.model.effects.gradient import Frozen, why_not_held
from ffkv.model.head.head_file import load_head
from ffkv.model.tap.hooks import after, forward
from tools.architectures.tiny import tiny_model

IDS = torch.tensor([[1, 7, 5, 9, 4, 11, 7]])
PROMPTS = [Encoded(np.array([0, 3, 5, 7, 2]), np.array([0, 3, 5, 9, 11, 4]), 6, 8, "")]
# All have other queries and keys than the models of `support.LAYER_KINDS`: three dimensions, slopes by `pow`, sinks, gates.
HELD = ["xglm", "mvp", "trocr", "bloom", "mpt", "granite_swa", "gemma4_text", "axk2", "falcon", "roberta-prelayernorm"]
# What passes something on between tokens in these is no softmax, at least in some blocks.
NOT_HELD = {
    "qwen3_next": "linear_attn",
    "qwen3_5_text": "linear_attn",
    "kimi_linear": "self_attn",
    "olmo_hybrid": "linear_attn",
    "bailing_hybrid": "self_attn",
    "minimax": "self_attn",
    "jamba": "mamba",
    "lfm2": "conv",
}


def known(model_type: str):
    """A tiny model as `why_not_held` takes it, without a proof: the second matrices by their names."""
    model = tiny_model(model_type)
    end = re.compile(r"(.*?\.\d+)\..*(down_proj|fc2|feed_forward\.w2|dense_4h_to_h|mlp\.experts|output\.dense)$")
    found = [match for name, _ in model.named_modules() if (match := end.match(name)) and "attention" not in name]
    layers = [SimpleNamespace(block=each[1], second_matrices=[SimpleNamespace(module=each[0])]) for each in found]
    assert layers
    return SimpleNamespace(model=model, anatomy=SimpleNamespace(layers=layers))


@pytest.fixture(autouse=True)
def gradients():
    """What ran before in this process may have switched them off, as every command does."""
    with torch.enable_grad():
        yield


def gradient_of_keys(model, held: bool) -> float:
    """The length of all gradients of queries and keys."""
    model.requires_grad_(False)
    modules = [each for name, each in model.named_modules() if re.search(r"(^|\.)[qk]_proj$", name)]
    seen = []

    def note(module, args, kwargs, output):
        output.retain_grad()
        seen.append(output)

    start = (model.get_input_embeddings(), lambda *call: call[-1].detach().requires_grad_())
    with after(start, *[(each, note) for each in modules]), Frozen() if held else contextlib.nullcontext():
        forward(model, IDS, gradients=True).logits[0, -1].square().sum().backward()
    return sum(float(each.grad.norm()) for each in seen if each.grad is not None)


@pytest.mark.parametrize("model_type", ["llama", "xglm", "mvp", "trocr", "granite_swa"])
def test_queries_and_keys_of_a_held_pass_have_no_gradient(model_type):
    model = tiny_model(model_type)
    assert gradient_of_keys(model, held=False) > 1e-3
    assert gradient_of_keys(model, held=True) == 0


@pytest.mark.parametrize("model_type", HELD)
def test_attention_by_a_softmax_is_held_whatever_its_form(model_type):
    assert why_not_held(known(model_type), IDS) == ""


@pytest.mark.parametrize("model_type", NOT_HELD)
def test_attention_without_a_softmax_is_named(model_type):
    why = why_not_held(known(model_type), IDS)
    name = rf"model\.layers\.\d\.{NOT_HELD[model_type]} \(\w+\)"
    assert re.fullmatch(rf"{name} passes something on between tokens, but not with the weights of a softmax", why)


class ByLength(nn.Module):
    """A norm that divides by something that no function of torch names."""

    def forward(self, x):
        return x / x.abs().sum(-1, keepdim=True)


class ByNorm(nn.Module):
    """A norm that divides by a length."""

    def forward(self, x):
        return x / (x.norm(2, dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + 1e-6)


class ByDeviation(nn.Module):
    """A norm that divides by a standard deviation."""

    def forward(self, x):
        return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(("norm", "held"), [(ByNorm(), True), (ByDeviation(), True), (ByLength(), False)])
@pytest.mark.parametrize("place", ["input_layernorm", "post_attention_layernorm"])
def test_norms_of_a_models_own_code_are_held_or_named(norm, held, place):
    """Before attention, and before the feed-forward layer."""
    loaded = known("llama")
    setattr(loaded.model.model.layers[1], place, norm)
    why = why_not_held(loaded, IDS)
    assert why == ("" if held else f"model.layers.1.{place} (ByLength) is a norm whose division is not held")


def test_a_block_that_mixes_tokens_itself_is_named():
    loaded = known("llama")
    block = loaded.model.model.layers[1]
    plain = block.forward
    block.forward = lambda h, *args, **kwargs: plain(h + (h * h).cumsum(1), *args, **kwargs)
    assert why_not_held(loaded, IDS).startswith("model.layers.1 (LlamaDecoderLayer) passes something on")


def test_a_model_that_does_not_run_held_is_told_with_its_own_error():
    loaded = known("llama")

    def refuse(*_):
        if torch.overrides._get_current_function_mode():
            raise TypeError("no modes here")

    loaded.model.register_forward_pre_hook(refuse)
    assert why_not_held(loaded, IDS) == "the model does not run with them held (TypeError: no modes here)"


X = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)) + 0.5
ROOTS = [
    lambda x: torch.pow(x, 0.5),
    lambda x: torch.pow(input=x, exponent=-0.5),
    lambda x: x ** torch.tensor(-0.5),
    lambda x: torch.pow(exponent=torch.tensor([0.5]), input=x),
    lambda x: functional.softmax(input=x, dim=-1),
    lambda x: torch.softmax(dim=-1, input=x),
    lambda x: functional.softmax(x[0].tril() + torch.full((4, 4), -torch.inf).triu(1), -1),
]
OTHERS = [
    lambda x: torch.pow(x, 2),
    lambda x: torch.pow(x, torch.arange(4)),
    lambda x: torch.pow(x, torch.tensor([[0.5, 1, 2, 3]])),
    lambda x: x ** torch.tensor(2),
    lambda x: functional.softmax(x[0], -1),  # of a router: as many experts as tokens
    lambda x: functional.layer_norm(input=x, normalized_shape=(4,)),
    lambda x: functional.rms_norm(input=x, normalized_shape=(4,)),
]


@pytest.mark.parametrize("number", range(len(ROOTS + OTHERS)))
def test_functions_are_held_by_what_they_compute_however_they_are_called(number):
    function, x = (ROOTS + OTHERS)[number], X.clone().requires_grad_()
    with Frozen():
        made = function(x)
    assert torch.allclose(made, function(X), atol=1e-6)
    assert made.requires_grad == (number >= len(ROOTS))


@pytest.mark.parametrize(("kind", "holds"), [("bloom", True), ("mpt", True), ("xglm", True), ("qwen3_next", False)])
def test_a_screen_is_read_of_every_model_and_a_frozen_one_where_it_is_known(proven, capsys, kind, holds):
    loaded, head = load(proven(kind), "cpu"), load_head(proven(kind), "cpu")
    mean = np.zeros(loaded.anatomy.layer_offset[-1], np.float32)
    found = read_states(loaded, head, PROMPTS, mean, "patch", 64, {})
    assert np.isfinite(found.screen).all()
    assert np.isfinite(found.frozen_screen).all() == holds
    assert np.isnan(found.frozen_screen).all() != holds
    assert ("There is no frozen screen" in capsys.readouterr().err) != holds
