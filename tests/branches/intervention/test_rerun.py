"""Total effects: the blocks after a layer run again, and give what the whole model gives."""

import contextlib

import numpy as np
import pytest
import torch
from support import LAYER_KINDS

from ffkv.base.errors import UserError
from ffkv.base.fault import BatchTooLarge
from ffkv.model.effects import rerun
from ffkv.model.effects.rerun import (
    Running,
    from_the_start,
    keeps,
    read_on,
    rerunning,
    rerunning_layers,
    row_by_row,
    run_unchanged,
)
from ffkv.model.tap.hooks import forward, relative_error

# Models that take no mask or no positions, that mix tokens in another way than by attention, or whose last block continues.
OTHERS = ("bloom", "mpt", "falcon_h1", "recurrent_gemma", "openai-gpt", "zamba2")
KEEP_NOTHING = ("falcon_h1", "recurrent_gemma", "zamba2")  # recurrent layers have no keys and values
ROUNDING = 2e-5  # relative; passes of other shapes add up in another order
IDS = np.array([0, 5, 7, 9, 3, 8, 2])


def unchanged(loaded, layer, ids=IDS, keep=True):
    ((base,),) = run_unchanged(loaded, [layer], [ids], keep)
    return base


def changes_of(loaded, count: int = 5) -> torch.Tensor:
    return torch.randn(count, loaded.anatomy.width, generator=torch.Generator().manual_seed(1))


@contextlib.contextmanager
def added_by_hand(loaded, layer, change):
    """A change of y at the last token: added to what the block reads or returns where o is, by a hook written by hand."""

    def to_output(module, args, output):
        state = output[0] if isinstance(output, tuple) else output
        state = state.clone()
        state[:, -1] += change
        return (state, *output[1:]) if isinstance(output, tuple) else state

    def to_input(module, args):
        state = args[0].clone()
        state.view(1, -1, state.shape[-1])[:, -1] += change
        return (state, *args[1:])

    if layer.sum_module:
        handle = loaded.model.get_submodule(layer.sum_module).register_forward_pre_hook(to_input)
    else:
        handle = loaded.model.get_submodule(layer.block).register_forward_hook(to_output)
    yield
    handle.remove()


@pytest.mark.parametrize("kind", LAYER_KINDS)
def test_every_way_gives_what_a_hook_written_by_hand_gives(load_kind, kind):
    loaded = load_kind(kind)
    assert keeps(loaded)
    changes = changes_of(loaded)
    for layer in loaded.anatomy.layers:
        base = unchanged(loaded, layer)
        expected = []
        for change in changes:
            with added_by_hand(loaded, layer, change):
                expected.append(unchanged(loaded, loaded.anatomy.layers[-1]).end)
        for way in (read_on, row_by_row, from_the_start):
            (found,) = way(loaded, layer, [base], [changes])
            assert relative_error(found, torch.stack([*expected, base.end])) < ROUNDING, way
        assert relative_error(torch.stack(expected), base.end.expand(len(changes), -1)) > 0.01  # the changes are some


@pytest.mark.parametrize("kind", OTHERS)
def test_a_way_that_is_wrong_for_a_model_is_noticed_and_another_one_taken(load_kind, kind, capsys):
    loaded = load_kind(kind)
    keep = keeps(loaded)
    assert keep == (kind not in KEEP_NOTHING)
    changes = changes_of(loaded)
    layer = loaded.anatomy.layers[0]
    base = unchanged(loaded, layer, keep=keep)
    found = rerunning(loaded, layer, 1024, keep)([base], [changes])[0]
    assert relative_error(found, from_the_start(loaded, layer, [base], [changes])[0][:-1]) < ROUNDING
    assert ("Layer 0: not read on" in capsys.readouterr().out) == keep


def test_the_size_of_passes_changes_nothing_but_rounding(load_kind):
    loaded = load_kind("gpt2")
    layer, changes = loaded.anatomy.layers[0], changes_of(loaded, 30)
    base = unchanged(loaded, layer)
    whole = rerunning(loaded, layer, 1024, True)([base], [changes])[0]
    assert whole.shape == (30, 16)
    for tokens in (1, 9, 20):
        assert relative_error(rerunning(loaded, layer, tokens, True)([base], [changes])[0], whole) < ROUNDING
    assert rerunning(loaded, layer, 1024, True)([base], [changes[:0]])[0].shape == (0, 16)


@pytest.mark.parametrize("kind", [*LAYER_KINDS, "bloom", "zamba2"])
def test_layers_change_in_one_pass_as_each_by_itself(load_kind, kind, capsys):
    """Where a model takes no mask, or a layer continues after o, each has its own pass."""
    loaded, rows = load_kind(kind), [IDS, IDS[2:], IDS[:1]]
    layers, keep, ran = loaded.anatomy.layers, keeps(loaded), []
    found = run_unchanged(loaded, layers, rows, keep)
    changes = [[changes_of(loaded, 4) * (number + 1)] * 3 for number in range(len(layers))]
    reruns = [rerunning(loaded, layer, 1024, keep) for layer in layers]
    loaded.model.register_forward_pre_hook(lambda *_: ran.append(1))
    together = rerunning_layers(Running(loaded, None, keep, reruns, 1024))(layers, found, changes)
    passes, said = len(ran), capsys.readouterr().out
    for layer, bases, own, ends in zip(layers, found, changes, together, strict=True):
        expected = [base.end + each for base, each in zip(bases, own, strict=True)]
        if layer.index != loaded.anatomy.read_as:
            expected = [
                from_the_start(loaded, layer, [base], [each])[0][:-1] for base, each in zip(bases, own, strict=True)
            ]
        for end, each in zip(ends, expected, strict=True):
            assert relative_error(end, each) < ROUNDING
    one_by_one = not keep or any(layer.sum_module for layer in layers) or kind == "bloom"
    assert passes == 1 or one_by_one, said
    assert ("Not all layers change in one pass" in said) == (kind == "bloom")


@pytest.mark.parametrize("kind", [*LAYER_KINDS, "bloom"])
def test_prefixes_run_together_as_they_run_alone(load_kind, kind, capsys):
    """Of several lengths, one token too, with several numbers of changes, in passes that some of them fill; BLOOM's ALiBi takes no mask."""
    loaded = load_kind(kind)
    rows, counts = [IDS, IDS[:1], IDS[2:], IDS[:4]], (5, 2, 9, 0)
    changes = [changes_of(loaded, count) for count in counts]
    found = run_unchanged(loaded, loaded.anatomy.layers, rows, keep=True)
    for layer, bases in zip(loaded.anatomy.layers, found, strict=True):
        for base, row in zip(bases, rows, strict=True):
            alone = unchanged(loaded, layer, row)
            for quantity in ("m", "o", "end"):
                assert relative_error(getattr(base, quantity), getattr(alone, quantity)) < ROUNDING
            assert base.factor == pytest.approx(alone.factor, rel=ROUNDING)
        for tokens in (1024, 12):
            together = rerunning(loaded, layer, tokens, True)(bases, changes)
            for base, own, ends in zip(bases, changes, together, strict=True):
                (expected,) = from_the_start(loaded, layer, [base], [own])
                assert ends.shape == own.shape
                assert not len(own) or relative_error(ends, expected[:-1]) < ROUNDING
    assert ("not read on" in capsys.readouterr().out) == (kind == "bloom")


def test_the_blocks_before_the_layer_do_not_run(load_kind):
    loaded = load_kind("gpt2")
    layer = loaded.anatomy.layers[1]
    base = unchanged(loaded, layer)
    ran = []
    for number, each in enumerate(loaded.anatomy.layers):
        attention = loaded.model.get_submodule(f"{each.block}.attn")
        attention.register_forward_hook(lambda *_, number=number: ran.append(number))
    read_on(loaded, layer, [base], [changes_of(loaded)])
    assert ran == [2]


def test_the_model_is_as_before_afterwards(load_kind):
    loaded = load_kind("gpt2")
    before = forward(loaded.model, torch.from_numpy(IDS)[None]).logits
    layer = loaded.anatomy.layers[1]
    base = unchanged(loaded, layer)
    for way in (read_on, row_by_row, from_the_start):
        way(loaded, layer, [base], [changes_of(loaded)])
    with pytest.raises(RuntimeError):
        read_on(loaded, layer, [base], [torch.zeros(2, 3)])
    assert torch.equal(forward(loaded.model, torch.from_numpy(IDS)[None]).logits, before)


def test_a_model_that_cannot_be_changed_is_refused(load_kind, monkeypatch, capsys):
    """Every way gives another prediction for a change of nothing."""
    loaded = load_kind("gpt2")
    layer = loaded.anatomy.layers[0]
    base = unchanged(loaded, layer)
    monkeypatch.setattr(rerun, "TOLERANCE", 0.0)
    with pytest.raises(
        UserError, match=r"Layer 0 of .* cannot be changed while the model runs.*intervention.memories to 0"
    ):
        rerunning(loaded, layer, 1024, True)([base], [changes_of(loaded)])[0]
    assert capsys.readouterr().out.count("Layer 0: not") == 2


def test_a_full_memory_says_nothing_about_a_way(load_kind, monkeypatch, capsys):
    """Keys and values of all copies do not fit: fewer tokens per batch help, and no slower way with other last digits is taken."""
    loaded = load_kind("gpt2")
    layer = loaded.anatomy.layers[0]
    base = unchanged(loaded, layer)

    def never(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr(rerun, "behind", never)
    with pytest.raises(BatchTooLarge, match=r"batches\.tokens"):
        rerunning(loaded, layer, 1024, True)([base], [changes_of(loaded)])
    assert "not read on" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["gemma2", "gemma4_text"])
def test_a_change_of_o_is_a_change_of_what_the_layer_adds_to_it(load_kind, kind):
    """The norm after the layer gives y. Gemma 4 goes on behind o: it adds to o what it makes of o, so both change."""
    loaded = load_kind(kind)
    for layer in loaded.anatomy.layers[:-1]:
        base, change = unchanged(loaded, layer), changes_of(loaded, 1)

        def add(module, args, y, change=change):
            y = y.clone()
            y[:, -1] += change[0]
            return y

        with loaded.model.get_submodule(layer.output_module).register_forward_hook(add):
            expected = unchanged(loaded, loaded.anatomy.layers[-1]).end
        for way in (row_by_row, from_the_start):
            (found,) = way(loaded, layer, [base], [change])
            assert relative_error(found[0], expected) < ROUNDING, way
        assert relative_error(expected, base.end) > 0.01  # it is a change
