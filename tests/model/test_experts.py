"""Banks of experts: their memories, coefficients, values and gates, against direct computations."""

import pytest
import torch
from support import SMALL, known_words, prove_into, random_model, some_ids
from transformers import AutoModelForCausalLM, LongcatFlashConfig, MistralConfig, MixtralConfig

from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.discover.prove import observe, prove_layers
from ffkv.model.experts import layout_of
from ffkv.model.keys_and_values import values
from ffkv.model.tap.tap import tap
from tools.architectures.tiny import tiny_model


def seen(loaded, quantities: str, tokens: torch.Tensor) -> dict:
    states = {}

    def take(layer, quantity, tensor):
        states[layer.index, quantity] = tensor.clone()

    with tap(loaded.model, loaded.anatomy.layers, quantities) as run:
        run(tokens, take)
    return states


def test_memories_of_a_bank_are_its_experts_side_by_side_and_carry_the_routers_weight(proven):
    loaded = load(proven("mixtral"), "cpu")
    states = seen(loaded, "xm", some_ids(1))
    for layer in loaded.anatomy.layers:
        moe = loaded.model.get_submodule(layer.block).mlp
        x, m = states[layer.index, "x"].reshape(-1, 16), states[layer.index, "m"].reshape(-1, 4, 24)
        _, weights, chosen = moe.gate(x)
        for token in range(len(x)):
            for expert in range(4):
                gate, up = (moe.experts.gate_up_proj[expert] @ x[token]).chunk(2)
                routed = weights[token][chosen[token] == expert].sum()  # 0 where the token is not sent there
                expected = torch.nn.functional.silu(gate) * up * routed
                torch.testing.assert_close(m[token, expert], expected, rtol=1e-4, atol=1e-6)
        v, _ = values(loaded.model, layer)
        torch.testing.assert_close(v.reshape(4, 24, 16)[2], moe.experts.down_proj[2].T)


def one_expert_and_its_dense_twin(folder):
    """A Mixtral with a single expert, and a Mistral with the same weights."""
    shape = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 24, "sliding_window": None, "rms_norm_eps": 1e-5}
    shape["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4}
    torch.manual_seed(0)
    bank = AutoModelForCausalLM.from_config(MixtralConfig(**shape, num_local_experts=1, num_experts_per_tok=1))
    for parameter in bank.parameters():
        parameter.data = 0.3 * torch.randn_like(parameter)
    dense = AutoModelForCausalLM.from_config(MistralConfig(**shape))
    weights = {name: tensor for name, tensor in bank.state_dict().items() if ".mlp." not in name}
    for layer in range(2):
        experts = bank.model.layers[layer].mlp.experts
        gate, up = experts.gate_up_proj[0].chunk(2)
        name = f"model.layers.{layer}.mlp"
        weights |= {f"{name}.gate_proj.weight": gate, f"{name}.up_proj.weight": up}
        weights[f"{name}.down_proj.weight"] = experts.down_proj[0]
    dense.load_state_dict(weights)
    folders = []
    for name, model in (("bank", bank), ("dense", dense)):
        model.save_pretrained(folder / name)
        known_words().save_pretrained(folder / name)
        folders.append(prove_into(folder / f"{name}-stage", folder / name))
    return folders


def test_a_model_of_one_expert_gives_exactly_what_its_dense_twin_gives(tmp_path):
    bank, dense = (load(folder, "cpu") for folder in one_expert_and_its_dense_twin(tmp_path))
    states, expected = (seen(loaded, "xgmyo", some_ids(2)) for loaded in (bank, dense))
    assert states.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(states[key].to(tensor.dtype), tensor, rtol=1e-5, atol=1e-6)
    for layer, twin in zip(bank.anatomy.layers, dense.anatomy.layers, strict=True):
        assert layer.memories == twin.memories
        torch.testing.assert_close(values(bank.model, layer)[0], values(dense.model, twin)[0])


@pytest.mark.parametrize("kind", ["mixtral", "dbrx", "jetmoe", "llama4_text", "longcat_flash", "olmoe"])
def test_what_the_units_of_an_expert_read_makes_their_coefficients(kind):
    """m = act(gate · x) (key · x), of banks of each layout, none of which has biases or limits."""
    layouts = [layout for module in tiny_model(kind, 0).modules() if (layout := layout_of(module)) is not None]
    assert layouts
    for layout in layouts:
        for expert in range(layout.experts):
            key, gate = layout.keys(expert)
            x = torch.randn(5, key.shape[1], generator=torch.Generator().manual_seed(expert))
            m, positive = layout.coefficients(expert, x)
            assert key.shape == gate.shape == layout.values(expert).shape
            torch.testing.assert_close(layout.activation(x @ gate.T) * (x @ key.T), m, rtol=1e-4, atol=1e-6)
            assert torch.equal(x @ gate.T > 0, positive)


def test_a_gated_shared_expert_carries_its_gate_in_the_coefficient(proven):
    loaded = load(proven("qwen2-moe"), "cpu")
    states = seen(loaded, "xm", some_ids(3))
    for layer in loaded.anatomy.layers:
        moe = loaded.model.get_submodule(layer.block).mlp
        shared = next(number for number, write in enumerate(layer.second_matrices) if not write.experts)
        assert layer.second_matrices[shared].per_token_weight
        start = sum(write.memories for write in layer.second_matrices[:shared])
        x = states[layer.index, "x"]
        expert = moe.shared_expert
        m = expert.act_fn(expert.gate_proj(x)) * expert.up_proj(x) * torch.sigmoid(moe.shared_expert_gate(x))
        # the gate is recovered from the sum of both: rounding of that sum
        torch.testing.assert_close(states[layer.index, "m"][..., start : start + 20], m, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "phi3", "mixtral", "gpt-oss", "qwen2-moe"])
def test_the_sign_of_the_gate_is_that_of_what_goes_through_the_activation(proven, kind):
    loaded = load(proven(kind), "cpu")
    states = seen(loaded, "xgm", some_ids(4))
    for layer in loaded.anatomy.layers:
        mlp = loaded.model.get_submodule(layer.block).mlp
        x, found, m = (states[layer.index, quantity] for quantity in "xgm")
        evaluated = m != 0
        if kind == "llama":
            expected = mlp.gate_proj(x)
        elif kind == "phi3":
            expected = mlp.gate_up_proj(x).chunk(2, -1)[0]
        else:
            experts = mlp.experts
            x = x.reshape(-1, 16)
            parts = []
            for expert in range(4):
                matrix = experts.gate_up_proj[expert]
                both = x @ (matrix if experts.is_transposed else matrix.T)
                if kind == "gpt-oss":  # gate and up in turn
                    parts.append((both + experts.gate_up_proj_bias[expert])[:, ::2])
                else:
                    parts.append(both.chunk(2, -1)[0])
            if kind == "qwen2-moe":
                parts.insert(0 if not layer.second_matrices[0].experts else 4, mlp.shared_expert.gate_proj(x))
            expected = torch.cat(parts, -1).reshape(found.shape)
        assert evaluated.any()
        assert torch.equal(found[evaluated], (expected > 0)[evaluated])


def test_experts_that_pass_the_token_on_write_no_memory_and_a_block_may_hold_two_layers():
    narrow = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "head_dim")
    sizes = {
        "vocab_size": 60,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "num_layers": 2,
    }
    experts = {"n_routed_experts": 3, "zero_expert_num": 2, "moe_topk": 2, "expert_ffn_hidden_size": 12}
    config = LongcatFlashConfig(**sizes, **experts, ffn_hidden_size=24, qk_head_dim=16, **dict.fromkeys(narrow, 8))
    model = random_model(config)
    spec = prove_layers(model, some_ids(5), some_ids(6))
    assert [[write.module.rpartition("layers.")[2] for write in layer.second_matrices] for layer in spec.layers] == [
        ["0.mlps.0.down_proj"],
        ["0.mlp.experts", "0.mlps.1.down_proj"],
        ["1.mlps.0.down_proj"],
        ["1.mlp.experts", "1.mlps.1.down_proj"],
    ]
    assert [layer.memories for layer in spec.layers] == [24, 36 + 24, 24, 36 + 24]
    states = observe(model, spec.layers, some_ids(7))
    assert states[1]["b"].abs().max() > 0.01  # what was passed on stands beside the memories
    assert values(model, spec.layers[1])[1] is None  # and differs by token
    assert not states[0]["b"].any()


def test_a_memory_of_a_mixture_tells_its_expert_and_unit(proven):
    anatomy = read_anatomy(proven("qwen2-moe"))
    names = [anatomy.layers[0].unit(memory) for memory in range(anatomy.layers[0].memories)]
    shared = [f"shared, unit {unit}" for unit in range(20)]
    routed = [f"expert {expert}, unit {unit}" for expert in range(4) for unit in range(12)]
    assert names in (shared + routed, routed + shared)
    assert read_anatomy(proven("llama")).layers[0].unit(3) == ""
