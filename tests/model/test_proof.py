"""The model stage on every family that it promises, and its taps: what modules read, whether their code passes it by position or by name."""

import h5py
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from support import CONFIGS, random_checkpoint, random_model, some_ids
from transformers import AutoModelForCausalLM, DynamicCache, MixtralConfig

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load
from ffkv.model.commands import inspect
from ffkv.model.discover import prove as prove_module
from ffkv.model.discover.prove import observe, prove_layers
from ffkv.model.identities import IDENTITIES
from ffkv.model.keys_and_values import values
from ffkv.model.step import prove
from ffkv.model.tap.hooks import after, forward, hidden_input, replace_hidden_argument
from ffkv.model.tap.tap import tap
from ffkv.model.values_file import read_values


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_identity_of_the_decomposition_holds(proven, kind):
    anatomy = read_anatomy(proven(kind))
    has_experts = any(matrix.experts for layer in anatomy.layers for matrix in layer.second_matrices)
    # an identity that does not apply has no error
    assert list(anatomy.errors) == [identity for identity in IDENTITIES if has_experts or identity != "experts"]
    # float32 rounding over two or three layers; the stage itself allows 1e-4
    assert all(error < 1e-5 for error in anatomy.errors.values())


@pytest.mark.parametrize(
    ("kind", "expected", "before_the_end"),
    [
        ("gpt2", "plain", False),
        ("opt", "plain", False),
        ("opt-post-norm", "plain; post-norm block", True),
        ("gpt-neox", "plain", False),
        ("llama", "gated", False),
    ],
)
def test_the_anatomy_says_how_the_layers_are_built(proven, kind, expected, before_the_end):
    for layer in read_anatomy(proven(kind)).layers:
        assert layer.kind == expected
        assert bool(layer.sum_module) == before_the_end


@pytest.mark.parametrize("kind", ["gpt2", "opt-post-norm", "gpt-neox", "llama"])
def test_states_are_those_of_a_second_computation(proven, checkpoints, kind):
    """m from the weights and x by hand; o of the last layer through the model's own tail gives the logits."""
    loaded = load(proven(kind), "cpu")
    ids = some_ids(1, tokens=7)
    seen = {}

    with tap(loaded.model, loaded.anatomy.layers, "xmyo") as run:
        run(ids, lambda layer, q, t: seen.__setitem__((layer.index, q), t.clone()))
    for layer in loaded.anatomy.layers:
        matrices = [loaded.model.get_submodule(name) for name in layer.second_matrices[0].first_matrices]
        pre = [matrix(seen[layer.index, "x"]) for matrix in matrices]
        block = loaded.model.get_submodule(layer.block)
        ends = (".act", ".act_fn", ".activation_fn")
        act = next(module for name, module in block.named_modules() if f".{name}".endswith(ends))
        expected = act(pre[0]) * (pre[1] if len(pre) == 2 else 1)
        torch.testing.assert_close(seen[layer.index, "m"], expected, rtol=1e-5, atol=1e-6)
        v, b = values(loaded.model, layer)
        torch.testing.assert_close(seen[layer.index, "m"] @ v + b, seen[layer.index, "y"], rtol=1e-4, atol=1e-5)


def test_values_are_rows_of_the_second_matrix(proven, checkpoints):
    weights = load_file(checkpoints("gpt2") / "model.safetensors")
    memories = read_values(proven("gpt2").parent / "values.h5", range(1, 2))
    expected = weights["transformer.h.1.mlp.c_proj.weight"]  # Conv1D: rows are values
    torch.testing.assert_close(torch.from_numpy(memories.value), expected, rtol=1e-6, atol=1e-6)
    assert set(memories.layer) == {1}
    assert memories.memory.tolist() == list(range(64))
    with h5py.File(proven("gpt2").parent / "values.h5") as file:
        assert file["value"].compression == "gzip" and file["value"].shuffle


def test_a_float16_model_whose_coefficients_overflow_is_refused(tmp_path):
    folder = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"] *= 2e4  # finite in float32, not in what float16 makes of it
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"overflows in float16"):
        prove(Model(checkpoint=str(folder), dtype="float16"))
    assert prove(Model(checkpoint=str(folder)))


def test_inspect_shows_layers_and_errors(checkpoints):
    result = CliRunner().invoke(inspect, ["--checkpoint", str(checkpoints("opt"))])
    assert result.exit_code == 0, result.output
    assert "model.decoder.layers.1.fc1 -> model.decoder.layers.1.fc2" in result.output
    assert "the head turns the last block output into the model's own logits" in result.output
    assert "experts" not in result.output  # an identity that does not apply is not shown


def test_the_tap_ends_the_pass_with_the_last_wanted_layer(proven):
    loaded, ran = load(proven("gpt2"), "cpu"), []
    blocks = [
        (loaded.model.get_submodule(layer.block), lambda m, a, k, o, i=layer.index: ran.append(i))
        for layer in loaded.anatomy.layers
    ]
    with after(*blocks), tap(loaded.model, loaded.anatomy.layers[:2], "m") as run:
        run(torch.ones(1, 4, dtype=torch.long), lambda *_: None)
    assert ran == [0]  # layer 1's block was left in the middle, layer 2 never ran


def test_observing_leaves_no_hooks_behind(proven):
    loaded = load(proven("gpt2"), "cpu")
    observe(loaded.model, loaded.anatomy.layers, torch.ones(1, 4, dtype=torch.long))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in loaded.model.modules())


def test_positions_that_no_token_has_are_no_context(tmp_path):
    """RoBERTa counts positions on from the padding's id, 0 in the tiny model."""
    proven = prove(Model(checkpoint=str(random_checkpoint(tmp_path / "c", "roberta"))))
    model, anatomy = proven.model, proven.anatomy
    assert anatomy.context == model.config.max_position_embeddings - model.config.pad_token_id - 1
    model(torch.full((1, anatomy.context), 5))  # does not end in an index error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_values_of_half_precision_keep_their_digits_beside_a_large_bias(dtype):
    model = AutoModelForCausalLM.from_config(CONFIGS["gpt2"]).eval()
    for block in model.transformer.h:
        block.mlp.c_proj.bias.data = 8 * torch.randn(16)
    model = model.to(dtype)
    ids = some_ids(0)
    for layer in prove_layers(model, ids, ids.flip(1)).layers:
        expected = model.get_submodule(layer.second_matrices[0].module).weight.float()
        v, b = values(model, layer)
        # float32 differences of numbers near 8
        torch.testing.assert_close(v, expected, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(b, model.get_submodule(layer.second_matrices[0].module).bias.float())


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_second_matrix_that_is_called_by_name_is_read(kind):
    """`down_proj(input=x)`: no positional argument. gemma2 has a norm after the layer, which takes another way."""
    model = random_model(CONFIGS[kind])
    expected = observe(model, prove_layers(model, some_ids(1), some_ids(2)).layers, some_ids(3))
    for layer in model.model.layers:
        mlp = layer.mlp
        mlp.forward = lambda x, mlp=mlp: mlp.down_proj(input=mlp.act_fn(mlp.gate_proj(input=x)) * mlp.up_proj(input=x))
    found = observe(model, prove_layers(model, some_ids(1), some_ids(2)).layers, some_ids(3))
    for one, other in zip(found, expected, strict=True):
        for quantity in "myo":
            torch.testing.assert_close(one[quantity], other[quantity])


def test_coefficients_that_the_second_matrix_does_not_read_are_refused(monkeypatch):
    """Two slips of published code (2604.02178). A layer of GPT-NeoX is computed again with its activations as coefficients, and its second
    matrix reads what was there before them. And an expert's input is kept as its coefficients, where both have as many columns."""
    right = prove_module.observe

    def slipped(coefficients):
        def observed(model, layers, ids, quantities="mbsyo"):
            found = right(model, layers, ids, {*quantities, "m", "x"})
            for states in found:
                states["m"] = coefficients(states)
            return found

        monkeypatch.setattr(prove_module, "observe", observed)

    model = random_model(CONFIGS["gpt-neox"])
    for layer in model.gpt_neox.layers:
        layer.mlp.forward = lambda x, mlp=layer.mlp: mlp.dense_4h_to_h(mlp.dense_h_to_4h(x))
    prove_layers(model, some_ids(1), some_ids(2))  # what the second matrix reads are the coefficients of this layer
    slipped(lambda states: torch.nn.functional.gelu(states["m"]))
    with pytest.raises(
        UserError, match=r"layer 0 \(gpt_neox\.layers\.0\.mlp\.dense_4h_to_h\): the memories do not add up"
    ):
        prove_layers(model, some_ids(1), some_ids(2))
    config = MixtralConfig(**{**CONFIGS["mixtral"].to_dict(), "intermediate_size": CONFIGS["mixtral"].hidden_size})
    model = random_model(config)
    slipped(lambda states: states["m"])
    prove_layers(model, some_ids(1), some_ids(2))
    slipped(lambda states: (states["m"] != 0) * states["x"].repeat(1, 1, config.num_local_experts))
    with pytest.raises(UserError, match=r"layer 0 \(model\.layers\.0\.mlp\.experts\): the memories do not add up"):
        prove_layers(model, some_ids(1), some_ids(2))


def test_a_module_that_reads_no_state_is_refused():
    with pytest.raises(UserError, match="called without a hidden state"):
        hidden_input((None, torch.zeros(2, dtype=torch.long)), {"mask": None})


def test_the_state_is_replaced_where_it_was():
    state, mask, new = torch.zeros(2), torch.ones(2), torch.full((2,), 7.0)
    assert replace_hidden_argument((None, state), {"mask": mask}, new) == ((None, new), {"mask": mask})
    assert replace_hidden_argument((), {"x": state, "mask": mask}, new) == ((), {"x": new, "mask": mask})


def test_a_tap_goes_on_to_the_end_only_if_it_is_asked_to():
    model = random_model(CONFIGS["gpt2"])
    layers = prove_layers(model, some_ids(1), some_ids(2)).layers
    seen = []
    for whole in (False, True):
        with tap(model, layers[:1], "m", whole) as run:
            output = run(some_ids(3), lambda *found: seen.append(found[1]))
        if whole:
            torch.testing.assert_close(output.logits, forward(model, some_ids(3)).logits, rtol=0, atol=0)
        else:
            assert output is None
    assert seen == ["m", "m"]
    with tap(model, layers, "ms") as run:  # no norm after a layer, so that nothing is left to read
        assert run(some_ids(3), lambda *found: None) is None


class OldNames(torch.nn.Module):
    """A model whose code calls its cache as before transformers 5.24."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        return forward(self.model, input_ids, cache=past_key_values)


@pytest.mark.filterwarnings("error::FutureWarning")  # what transformers says of the old name
@pytest.mark.parametrize("wrap", [lambda model: model, OldNames], ids=["new name", "old name"])
def test_a_cache_is_filled_under_the_name_that_the_model_has_for_it(wrap):
    model, cache = random_model(CONFIGS["llama"]), DynamicCache()
    whole = forward(model, some_ids(1)).logits
    parts = [forward(wrap(model), part, cache=cache).logits for part in some_ids(1).split(5, dim=1)]
    assert cache.get_seq_length() == 9
    torch.testing.assert_close(torch.cat(parts, 1), whole)
