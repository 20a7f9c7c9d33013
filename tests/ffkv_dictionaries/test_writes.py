"""What a dictionary leaves of a layer's output writes into the residual stream, too: beside its units, and patched by itself."""

from dataclasses import replace

import pytest
import torch

from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.behaviours.writers import sets_of_writers
from ffkv.model.dictionaries import Decoder
from ffkv.model.effects.rerun import Running
from ffkv.model.effects.writes import norms_before, run_writes, writers_of
from ffkv.model.head.head_file import load_head
from ffkv.run.graph.of_prompt import measure_errors
from tests.ffkv_dictionaries.conftest import of_layer
from tests.ffkv_dictionaries.test_layer import by_hand, noisy

IDS = torch.tensor([[0, 5, 7, 9, 3, 12]])
OTHER = torch.tensor([[0, 8, 2, 4, 6, 11]])


@pytest.fixture
def made(models, loaded):
    """A GPT-2 whose layer 1 of two is read through a dictionary that leaves something, and the writes of two prompts."""
    dictionary = noisy(of_layer(models("gpt2")[1], 1), noise=0.02)
    found = loaded("gpt2", {1: dictionary})
    norms = norms_before(found, IDS)
    return found, dictionary, norms, *(run_writes(found, norms, ids) for ids in (IDS, OTHER))


def test_units_and_error_of_a_dictionary_are_two_writers(made, models):
    found, dictionary, _, own, _ = made
    writers = writers_of(found.anatomy)
    assert writers == [(-1, "embedding"), (0, "attention"), (0, "memories")] + [
        (1, each) for each in ("attention", "error", "memories")
    ]
    assert [writer for writer in own.noted if writer[1] != "read"] == writers
    torch.testing.assert_close(own.parts.sum(0), own.end[0], rtol=1e-5, atol=1e-5)
    seen = {}
    block = models("gpt2")[1].eval().transformer.h[1]
    handle = block.mlp.register_forward_hook(lambda module, args, y: seen.update(x=args[0][0], y=y[0]))
    with torch.no_grad():
        models("gpt2")[1](IDS)
    handle.remove()
    m, beside = by_hand(dictionary, seen["x"])
    units = (m @ dictionary.decoder.double() + beside).float()
    torch.testing.assert_close(own.noted[1, "memories"], units, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(own.noted[1, "error"], seen["y"] - units, rtol=1e-4, atol=1e-4)
    assert own.noted[1, "error"].abs().max() > 0.01


def test_a_patched_error_is_a_plain_change_of_the_output(made, models):
    """At the last token it becomes that of the other prompt, while all else of the layer stays: a hook without ffkv adds the difference."""
    found, _, norms, own, other = made
    named, sets = sets_of_writers(writers_of(found.anatomy))
    copies = torch.from_numpy(sets)
    ends = run_writes(found, norms, IDS, other, slice(-1, None), copies).end[:, -1]
    at = {(each["layer"], each["writer"]): end for each, end in zip(named, ends, strict=True)}
    by = other.noted[1, "error"][-1] - own.noted[1, "error"][-1]

    def change(module, args, y):
        y[:, -1] += by
        return y

    block, seen = models("gpt2")[1].eval().transformer.h[1], []
    handles = [
        block.mlp.register_forward_hook(change),
        block.register_forward_hook(lambda module, args, o: seen.append(o[0] if isinstance(o, tuple) else o)),
    ]
    with torch.no_grad():
        models("gpt2")[1](IDS)
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(at[1, "error"], seen[0].reshape(len(IDS[0]), -1)[-1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(at[-1, "error"], at[1, "error"])  # there is no other one
    torch.testing.assert_close(at[-1, "everything"], other.end[0, -1], rtol=1e-4, atol=1e-4)
    assert (at[1, "error"] - own.end[0, -1]).abs().max() > 0.01


@pytest.mark.parametrize("to_other", [True, False])
def test_errors_of_a_graph_are_plain_changes_at_one_token(models, loaded, tmp_path, to_other):
    """Answer 3 and not 4, at the last 4 tokens: the error becomes that of the other prompt, or 0. Hooks without ffkv do the same."""
    found = loaded("gpt2", {0: noisy(of_layer(models("gpt2")[1], 0), noise=0.1)})
    own, other = (run_writes(found, norms_before(found, IDS), ids) for ids in (IDS, OTHER))
    prompt = Encoded(IDS[0].numpy(), (OTHER if to_other else IDS[:, :0])[0].numpy(), 3, 4, "", tokens=4)
    errors = measure_errors(Running(found, load_head(tmp_path / "model", "cpu"), False, (), 12), prompt).set_index(
        "position"
    )
    assert (errors["layer"] == 0).all() and sorted(errors.index) == [2, 3, 4, 5]
    assert errors["effect"].abs().is_monotonic_decreasing and (errors["effect"].abs() > 1e-3).sum() > 1
    model = models("gpt2")[1].eval()

    def difference(position, by):
        def change(module, args, y):
            y[:, position] += by
            return y

        handle = model.transformer.h[0].mlp.register_forward_hook(change)
        with torch.no_grad():
            logits = model(IDS).logits[0, -1]
        handle.remove()
        return float(logits[3] - logits[4])

    for position, row in errors.iterrows():
        by = -own.noted[0, "error"][position] + (other.noted[0, "error"][position] if to_other else 0)
        assert row["effect"] == pytest.approx(difference(0, 0) - difference(position, by), abs=1e-4)


def test_without_an_error_a_graph_has_none(models, loaded, tmp_path):
    found = loaded("gpt2", {1: of_layer(models("gpt2")[1], 1)})
    prompt = Encoded(IDS[0].numpy(), IDS[0, :0].numpy(), 3, 4, "", tokens=4)
    assert measure_errors(Running(found, load_head(tmp_path / "model", "cpu"), False, (), 12), prompt).empty


def test_a_dictionary_of_nothing_leaves_everything(models, loaded):
    """It would be refused, so its place is that of one that explains most."""
    found = loaded("gpt2", {1: replace(noisy(of_layer(models("gpt2")[1], 1), noise=0.02), skip=None)})
    decoder = next(module for module in found.model.modules() if isinstance(module, Decoder))
    decoder.weight.data.zero_(), decoder.bias.data.zero_()
    own = run_writes(found, norms_before(found, IDS), IDS)
    assert own.noted[1, "memories"].abs().max() < 1e-5
    torch.testing.assert_close(own.parts.sum(0), own.end[0], rtol=1e-5, atol=1e-5)


def test_a_layer_as_its_own_dictionary_leaves_nothing_and_has_no_writer_more(models, loaded):
    found = loaded("gpt2", {1: of_layer(models("gpt2")[1], 1)})
    assert found.anatomy.layers[1].is_dictionary and not [
        what for _, what in writers_of(found.anatomy) if what == "error"
    ]
