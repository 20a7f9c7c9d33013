"""How writes reach the residual stream: scalings, norms, gates, maps and repeated blocks, on models whose answer is known."""

import copy
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import CONFIGS, GROUPED, SMALL, random_model, some_ids, tries
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, HrmTextConfig, Olmo2Config

from ffkv.base.errors import UserError
from ffkv.model.discover.prove import observe, prove_layers
from ffkv.model.discover.replay import find_scaling, proportion
from ffkv.model.keys_and_values import values
from ffkv.model.tap.hooks import relative_error
from ffkv.model.tap.tap import tap, token_weights

numbers = st.floats(0.1, 10) | st.floats(-10, -0.1)


@given(st.integers(0, 10**6), numbers)
@settings(max_examples=tries(40))
def test_each_scaling_is_recognised_as_the_simplest_that_it_is(seed, number):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(12, 8, generator=generator)
    vector, weight = torch.randn(8, generator=generator) + 3, torch.rand(12, 1, generator=generator) + 0.5
    assert find_scaling(z, number * z, 1e-4).scale == pytest.approx(number, rel=1e-4)
    assert not find_scaling(z, number * z, 1e-4).per_token_weight
    found = find_scaling(z, vector * z, 1e-4)
    torch.testing.assert_close(found.scale.flatten().float(), vector, rtol=1e-4, atol=1e-4)
    assert not found.per_token_weight
    assert find_scaling(z, weight * z, 1e-4) == (1.0, True)
    assert find_scaling(z, weight * vector * z, 1e-4).per_token_weight
    assert find_scaling(z, z.roll(1, 0), 1e-4) is None


@given(st.integers(0, 10**6))
@settings(max_examples=tries(25))
def test_weights_of_parts_are_recovered_from_their_sum(seed):
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(2, 5, 8, generator=generator)
    parts[1, 3] = 0  # an expert that was not asked
    weights = torch.rand(2, 5, generator=generator)
    weights[1, 3] = 0
    found = token_weights(parts, (weights[..., None] * parts).sum(0))
    torch.testing.assert_close(found.float(), weights, rtol=1e-4, atol=1e-5)


def test_a_proportion_of_tensors_that_are_not_proportional_is_none():
    assert proportion(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]), 1e-6) == 2
    assert proportion(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 5.0]), 1e-6) is None


def test_a_norm_after_the_layer_leaves_raw_coefficients_values_with_its_gain_and_a_factor_a_token():
    model = random_model(CONFIGS["gemma2"])
    layers = prove_layers(model, some_ids(1), some_ids(2)).layers
    states = observe(model, layers, some_ids(3))
    for layer in layers:
        block = model.get_submodule(layer.block)
        norm = block.post_feedforward_layernorm
        v, b = values(model, layer)
        # rtol: the norm's epsilon of 1e-6 stands in the gain that was asked for
        torch.testing.assert_close(v, block.mlp.down_proj.weight.T * (1 + norm.weight), rtol=1e-5, atol=1e-6)
        assert not b.any()
        written = states[layer.index]["m"] @ block.mlp.down_proj.weight.T
        root_mean_square = (written.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        torch.testing.assert_close(states[layer.index]["s"], 1 / root_mean_square, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(states[layer.index]["y"], norm(written), rtol=1e-4, atol=1e-5)
        assert layer.output_kind == "norm"


def test_blocks_that_run_several_times_are_a_layer_each_time():
    config = HrmTextConfig(**SMALL, **GROUPED, intermediate_size=24, num_layers_per_stack=2, H_cycles=2, L_cycles=2)
    model = random_model(config)
    layers = prove_layers(model, some_ids(1), some_ids(2)).layers
    runs = [(layer.block.split(".")[1], layer.repeat) for layer in layers]
    # Twice: two runs of the low stack, then one of the high one; two blocks each.
    low, high = ([(name, repeat) for repeat in range(4) for _ in "ab"] for name in ("L_module", "H_module"))
    assert runs == [*low[:4], *high[:2], *low[4:], *high[2:4]]
    states = observe(model, layers, some_ids(3), "m")
    assert not torch.allclose(states[0]["m"], states[2]["m"])  # the same block, its first and its second run
    taken = []
    with tap(model, [layers[0], layers[3]], "m") as run:
        run(some_ids(3), lambda layer, quantity, m: taken.append((layer.index, m.clone())))
    assert [index for index, _ in taken] == [0, 3]  # each in its own run, whatever else is tapped
    assert torch.equal(taken[0][1], states[0]["m"])


@pytest.mark.parametrize(("kind", "built"), [("llama", "gated"), ("mixtral", "4 experts, gated")])
@pytest.mark.parametrize(("activation", "told"), [("silu", True), ("sigmoid", False)])
def test_a_gate_whose_activation_is_always_positive_tells_no_sign(kind, built, activation, told):
    config = copy.deepcopy(CONFIGS[kind])
    config.hidden_act = activation
    for layer in prove_layers(random_model(config), some_ids(1), some_ids(2)).layers:
        assert (layer.kind, layer.gated) == (built, told)
        assert kind != "llama" or layer.second_matrices[0].gate.endswith("gate_proj") == told


class Renamed(torch.nn.Module):
    """A feed-forward layer whose matrices have names of their own."""

    def __init__(self, mlp):
        super().__init__()
        self.listen, self.speak, self.act = mlp.c_fc, mlp.c_proj, mlp.act

    def forward(self, x):
        return self.speak(self.act(self.listen(x)))


def test_a_setting_names_the_second_matrix_of_other_peoples_code():
    model = random_model(CONFIGS["gpt2"])
    for block in model.transformer.h:
        block.mlp = Renamed(block.mlp)
    with pytest.raises(UserError, match=r"no feed-forward layer.*mlp\.speak.*model\.second_matrix"):
        prove_layers(model, some_ids(1), some_ids(2))
    proven = prove_layers(model, some_ids(1), some_ids(2), r"mlp\.speak$")
    found = [layer.second_matrices[0].module for layer in proven.layers]
    assert found == [f"transformer.h.{n}.mlp.speak" for n in range(3)]


def test_a_matrix_that_is_no_second_matrix_is_refused_with_the_block_and_the_reason():
    model = random_model(CONFIGS["gpt2"])
    with pytest.raises(UserError, match=r"transformer\.h\.0 .*GPT2Block"):
        prove_layers(model, some_ids(1), some_ids(2), r"attn\.c_proj$")
    with pytest.raises(UserError, match=r"transformer\.h\.0 .*mlp\.c_fc|positions|not added"):
        prove_layers(model, some_ids(1), some_ids(2), r"mlp\.c_fc$")


class Forgetful(torch.nn.Module):
    """A block that lets each token see the next one."""

    def __init__(self, block):
        super().__init__()
        self.inner = block

    def forward(self, hidden_states, *args, **kwargs):
        ahead = torch.cat([hidden_states[:, 1:], hidden_states[:, -1:]], 1)
        return self.inner(hidden_states + 0.1 * ahead, *args, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_sees_later_tokens_is_refused_as_not_causal(dtype):
    model = random_model(CONFIGS["gpt2"]).to(dtype)
    model.transformer.h[1] = Forgetful(model.transformer.h[1])
    with pytest.raises(UserError, match=r"layer 1 .*not causal"):
        prove_layers(model, some_ids(1), some_ids(2))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen2-moe"])
def test_a_quiet_layer_is_read_down_to_rounding_and_then_refused_as_quiet(kind):
    """Float32 rounds by 6e-8: what is 1e-5 of the residual stream is seen, 1e-7 and 1e-12 are not."""
    reasons = {1.0: None, 1e-3: None, 1e-5: None, 1e-7: "rounding hides it", 1e-12: r"at most 0e\+00 of .*rounding"}
    for factor, reason in reasons.items():
        model = random_model(CONFIGS[kind])
        for name, parameter in model.named_parameters():
            if re.search(r"\.1\..*(down_proj|mlp\.c_proj)", name):
                parameter.data *= factor
        if reason is None:
            assert max(prove_layers(model, some_ids(1), some_ids(2)).errors.values()) < 1e-4
        else:
            with pytest.raises(UserError, match=rf"\.1 .*{reason}"):
                prove_layers(model, some_ids(1), some_ids(2))


def test_a_layer_that_is_not_active_on_the_texts_is_refused_as_that():
    model = random_model(CONFIGS["gpt2-relu"])
    model.transformer.h[1].mlp.c_fc.bias.data -= 1e3
    model.transformer.h[1].mlp.c_proj.bias.data.zero_()
    with pytest.raises(UserError, match=r"h\.1 .*at most 0e\+00 .* not active on the texts"):
        prove_layers(model, some_ids(1), some_ids(2))


def test_rounding_in_a_deep_model_does_not_look_like_later_tokens():
    """In bfloat16, a text of another length gives coefficients that are off by more than the proof allows after so many blocks.

    By how much depends on the processor: 0.0035 without instructions for bfloat16.
    """
    config = copy.copy(CONFIGS["llama"])
    config.num_hidden_layers = 40
    model, text = random_model(config).to(torch.bfloat16), some_ids(2).repeat(1, 10)
    decomposition = prove_layers(model, some_ids(1), text)
    layers = decomposition.layers
    whole, alone = (observe(model, layers, some, "m")[-1]["m"][:, :60] for some in (text, text[:, :60]))
    assert relative_error(alone, whole) > 0.002
    assert decomposition.errors["prefix"] < 1e-3


def test_what_a_layer_writes_is_found_beside_a_far_larger_residual():
    model = random_model(CONFIGS["gpt2"])
    model.transformer.wte.weight.data[:, 3] = 3000  # an outlier dimension, as trained models have them
    spec = prove_layers(model, some_ids(1), some_ids(2))
    assert [layer.second_matrices[0].scale for layer in spec.layers] == pytest.approx([1, 1, 1], rel=1e-3)


SIZES = {**SMALL, "num_hidden_layers": 4, "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2}
NORMED = {
    "gemma2": Gemma2Config(**SIZES, head_dim=32),
    "gemma3": Gemma3TextConfig(**SIZES, head_dim=32),
    "olmo2": Olmo2Config(**SIZES),
}


@pytest.mark.parametrize("kind", NORMED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", [0, 3])
def test_a_norm_never_passes_for_a_constant(kind, dtype, seed):
    """Untrained models: all tokens are about equally long, and OLMo 2's first ones are short beside the norm's epsilon."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(NORMED[kind]).eval().to(dtype)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layers = prove_layers(model, some_ids(1), some_ids(2)).layers
    assert [layer.output_kind for layer in layers] == ["norm"] * 4
    assert all(layer.second_matrices[0].scale == 1 and layer.output_scale == 1 for layer in layers)
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == before[name].dtype and torch.equal(tensor, before[name]), name
