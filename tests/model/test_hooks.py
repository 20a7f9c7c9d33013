"""What modules read, whether their code passes it by position or by name."""

import pytest
import torch
from support import CONFIGS, random_model
from transformers import DynamicCache

from ffkv.base.errors import UserError
from ffkv.model.discover.prove import observe, prove_layers
from ffkv.model.tap.hooks import forward, hidden_input, replace_hidden_argument
from ffkv.model.tap.tap import tap


def ids(seed):
    return torch.randint(1, 60, (2, 9), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_second_matrix_that_is_called_by_name_is_read(kind):
    """`down_proj(input=x)`: no positional argument. gemma2 has a norm after the layer, which takes another way."""
    model = random_model(CONFIGS[kind])
    expected = observe(model, prove_layers(model, ids(1), ids(2)).head_spec.layers, ids(3))
    for layer in model.model.layers:
        mlp = layer.mlp
        mlp.forward = lambda x, mlp=mlp: mlp.down_proj(input=mlp.act_fn(mlp.gate_proj(input=x)) * mlp.up_proj(input=x))
    found = observe(model, prove_layers(model, ids(1), ids(2)).head_spec.layers, ids(3))
    for one, other in zip(found, expected, strict=True):
        for quantity in "myo":
            torch.testing.assert_close(one[quantity], other[quantity])


def test_a_module_that_reads_no_state_is_refused():
    with pytest.raises(UserError, match="called without a hidden state"):
        hidden_input((None, torch.zeros(2, dtype=torch.long)), {"mask": None})


def test_the_state_is_replaced_where_it_was():
    state, mask, new = torch.zeros(2), torch.ones(2), torch.full((2,), 7.0)
    assert replace_hidden_argument((None, state), {"mask": mask}, new) == ((None, new), {"mask": mask})
    assert replace_hidden_argument((), {"x": state, "mask": mask}, new) == ((), {"x": new, "mask": mask})


def test_a_tap_goes_on_to_the_end_only_if_it_is_asked_to():
    model = random_model(CONFIGS["gpt2"])
    layers = prove_layers(model, ids(1), ids(2)).head_spec.layers
    seen = []
    for whole in (False, True):
        with tap(model, layers[:1], "m", whole) as run:
            output = run(ids(3), lambda *found: seen.append(found[1]))
        if whole:
            torch.testing.assert_close(output.logits, forward(model, ids(3)).logits, rtol=0, atol=0)
        else:
            assert output is None
    assert seen == ["m", "m"]
    with tap(model, layers, "ms") as run:  # no norm after a layer, so that nothing is left to read
        assert run(ids(3), lambda *found: None) is None


class OldNames(torch.nn.Module):
    """A model whose code calls its cache as before transformers 5.24."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        return forward(self.model, input_ids, cache=past_key_values)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("wrap", [lambda model: model, OldNames], ids=["new name", "old name"])
def test_a_cache_is_filled_under_the_name_that_the_model_has_for_it(wrap):
    model, cache = random_model(CONFIGS["llama"]), DynamicCache()
    whole = forward(model, ids(1)).logits
    parts = [forward(wrap(model), part, cache=cache).logits for part in ids(1).split(5, dim=1)]
    assert cache.get_seq_length() == 9
    torch.testing.assert_close(torch.cat(parts, 1), whole)
