"""How many tokens a batch has: as many as a device takes well, and fewer where its memory does not suffice."""

from types import SimpleNamespace

import click
import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from ffkv.activations import commands
from ffkv.base.fault import BatchTooLarge
from ffkv.base.options import HALVINGS, step_options
from ffkv.base.steps import Step, Work
from ffkv.branches.given import Given
from ffkv.branches.translation.jacobian import jacobian_of
from ffkv.model.checkpoint import load
from ffkv.model.checkpoint.load import load_for, tokens_per_batch

MEBI = 2**20


def on_cards(*cards, memories=100, width=10, vocabulary=1000):
    """A model on some GPUs, of which a token of a batch takes 4 (8 * 100 + 12 * 10) + 8 * 1000 = 11,680 bytes."""
    anatomy = SimpleNamespace(
        layers=[SimpleNamespace(memories=memories), SimpleNamespace(memories=3)], width=width, vocabulary=vocabulary
    )
    return SimpleNamespace(devices=[torch.device(card) for card in cards], anatomy=anatomy)


@pytest.fixture
def memory(monkeypatch):
    """Sets the bytes of each GPU, and how many of them this process holds."""

    def give(**bytes_of):
        cards = {torch.device(name.replace("_", ":")): size for name, size in bytes_of.items()}
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda card: (0, cards[card][0]))  # others may use what is free
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda card: cards[card][1])

    return give


def test_a_number_is_that_number_and_auto_is_what_the_device_takes(memory):
    assert [tokens_per_batch(on_cards(card), 7) for card in ("cpu", "cuda:0")] == [7, 7]
    assert tokens_per_batch(on_cards("cpu"), "auto") == 1024
    for free, expected in ((4 * 11_680 * 4096, 4096), (4 * 11_680 * 4096 - 8, 2048), (10**12, 16_384), (1, 1024)):
        memory(cuda_0=(free + 5 * MEBI, 5 * MEBI))
        assert tokens_per_batch(on_cards("cuda:0"), "auto") == expected
    for free, expected in ((4 * 15_360 * 4096, 4096), (4 * 15_360 * 4096 - 8, 2048)):  # 3,680 more for the second layer
        memory(cuda_0=(free, 0))
        assert tokens_per_batch(on_cards("cuda:0"), "auto", gradients=True) == expected
    memory(cuda_0=(10**12, 0), cuda_1=(10**12, 10**12 - 4 * 11_680 * 2048))
    assert tokens_per_batch(on_cards("cuda:0", "cuda:1"), "auto") == 2048  # what the fullest one takes
    assert tokens_per_batch(on_cards("cuda:0", "cpu"), "auto") == 16_384


@pytest.mark.parametrize("given", ["Auto", "", "0", "-3", "1.5", "99999999999"])
def test_an_option_that_is_no_number_of_tokens_is_refused(given):
    refused = CliRunner().invoke(commands.triggers, ["--batch-tokens", given])
    assert refused.exit_code == 2
    assert f"'{given}': must be a whole number from 1 to 1000000000, or 'auto'" in refused.output


def test_a_step_that_begins_again_has_half_as_many(proven):
    for halvings, expected in enumerate((1024, 512, 256)):
        assert load_for(proven("gpt2"), Work("cpu", halvings=halvings)).batch_tokens == expected
    assert load_for(proven("gpt2"), Work("cpu", batch_tokens=3, halvings=4)).batch_tokens == 1


def test_a_model_that_is_changed_and_differentiated_has_batches_for_that(proven, monkeypatch):
    monkeypatch.setattr(load, "tokens_per_batch", lambda loaded, wanted, gradients: 7 if gradients else 64)
    for gradients, expected in ((True, 7), (False, 64)):
        with Given(Work("cpu"), model=proven("gpt2")).running(gradients=gradients) as its:
            assert its.batch_tokens == its.loaded.batch_tokens == expected


@pytest.fixture
def small_card(monkeypatch):
    """Lets no batch of more than 40 tokens through. Returns the sizes of those that were tried."""
    tried = list[int]()
    original = torch.nn.Embedding.forward

    def look_up(self, ids):
        tried.append(ids.numel())
        if ids.numel() > 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return original(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", look_up)
    return tried


@pytest.mark.parametrize("command", [commands.triggers, commands.sampled_prefixes])
def test_a_batch_that_is_too_large_is_halved(proven, corpus_for, small_card, command, tmp_path):
    corpus = corpus_for("gpt2", 60)

    def call(tokens):
        line = ["--model", proven("gpt2"), "--corpus", corpus, "--output", tmp_path / f"{tokens}.h5"]
        return CliRunner().invoke(command, [*map(str, line), "--batch-tokens", str(tokens), "--device", "cpu"])

    few = call(40)
    assert few.exit_code == 0 and "half as many" not in few.output and max(small_card) <= 40
    small_card.clear()
    many = call(160)
    assert many.exit_code == 0 and many.output.count("half as many tokens per batch") == 2
    assert max(small_card) > 80 and small_card[-1] <= 40
    assert many.output.count("(CUDA out of memory. Tried to allocate 20.00 MiB.)") == 2  # the reason, and no more
    with h5py.File(tmp_path / "40.h5") as once, h5py.File(tmp_path / "160.h5") as again:
        found = "coefficient" if "coefficient" in once else "o"
        assert np.array_equal(once[found][...], again[found][...])
        assert "160" in again.attrs["batches"]  # as the settings say, whatever the card took
    small_card.clear()
    never = call(40 * 2 ** (HALVINGS + 2))
    assert (
        isinstance(never.exception, BatchTooLarge) and never.output.count("half as many tokens per batch") == HALVINGS
    )
    assert not (tmp_path / f"{40 * 2 ** (HALVINGS + 2)}.h5").exists()


@pytest.mark.parametrize(
    ("taken", "calls"), [((), 1), (("batches/tokens",), 1 + HALVINGS), (("batches",), 1 + HALVINGS)]
)
def test_only_a_step_with_batches_is_begun_again(taken, calls):
    """A step that reads what others wrote, in parts of its own, would do the same again."""
    tried = list[Work]()

    @click.command()
    @step_options(Step("some:step", settings=("model/device", "layer_groups", *taken)))
    def command(work, **_):
        tried.append(work)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    told = CliRunner().invoke(command, [])
    assert isinstance(told.exception, torch.OutOfMemoryError) and len(tried) == calls
    assert told.output.count("half as many tokens per batch") == calls - 1


def test_a_batch_of_the_check_of_long_sentences_is_halved(proven, corpus_for, small_card, tmp_path):
    """30 tokens fit, and are read beside others of as many."""
    corpus = corpus_for("gpt2", sentences=[" ".join(f"w{number}" for number in range(31)), "w1 w2 w3"])
    line = ["--model", proven("gpt2"), "--corpus", corpus, "--output", tmp_path / "triggers.h5", "--batch-tokens", 70]
    done = CliRunner().invoke(commands.triggers, [*map(str, line), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    assert done.output.count("half as many tokens per batch") == 1 and max(small_card) > 40


def test_a_derivative_that_does_not_fit_is_a_batch_that_is_too_large(proven, monkeypatch):
    """Not a model without derivatives."""

    def never(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    loaded = load_for(proven("gpt2"), Work("cpu"))
    monkeypatch.setattr(torch.autograd, "grad", never)
    with pytest.raises(BatchTooLarge, match=r"batches\.tokens"):
        jacobian_of(loaded, torch.tensor([0, 3, 5, 7]), slice(1, 3), copies=2)
