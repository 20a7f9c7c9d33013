"""A pretended card counts what a GPU would have to start, and numbers are the same on it. Counts may not rise."""

from pathlib import Path

import pandas as pd
import pytest
import torch

import ffkv
from benchmarks import launches
from benchmarks.launches import CASES, STORED, WORK, count
from benchmarks.pretended_card import DEVICE, PretendedCard, as_device
from ffkv.activations import top_t
from ffkv.base.batching import to_host


def test_what_is_started_awaited_and_copied_is_counted():
    here = torch.arange(6.0).reshape(2, 3)
    with PretendedCard() as card:
        there = here.to(DEVICE)
        assert there.device.type == DEVICE and card.copies.total() == 1 and not card.launches
        product = there.t() @ there  # the transposed one is the same memory
        assert card.launches == {"mm": 1} and not card.waits
        assert product.sum().item() == 153 and card.waits.total() == 1  # the squares of the sums of the rows
        product[0, 0] = 7  # in place, by a copy of a number
        assert product.cpu()[0, 0] == 7 and card.waits.total() == 2
        assert (there > 2).nonzero().tolist() == [[1, 0], [1, 1], [1, 2]] and card.waits.total() == 4
        torch.ones(2) + 1  # not on the card
        before = card.launches.total()
        assert torch.tensor([1.0, 2.0], device=DEVICE).device.type == DEVICE and card.launches.total() == before
        assert card.copies.total() == 2


def test_tensors_come_back_with_one_wait():
    with PretendedCard() as card:
        found = to_host([torch.full((2,), number, device=DEVICE) for number in range(3)] + [torch.zeros(1)])
        assert card.waits == {"synchronize": 1}
    assert [each.tolist() for each in found] == [[0, 0], [1, 1], [2, 2], [0]]
    assert [each.tolist() for each in to_host([torch.ones(2)])] == [[1, 1]]


@pytest.mark.parametrize(("kept", "merges"), [(0, 6), (8 * 5 * 3 * 2, 3), (2**30, 0)])
def test_triggers_of_some_batches_are_merged_together(kept, merges, monkeypatch):
    """Whatever is kept for later, in the end the top t are the largest of all, the highest first."""
    monkeypatch.setattr(top_t, "MERGE_BYTES", kept)
    triggers = torch.randint(1, 2**62, (6, 5, 3), generator=torch.Generator().manual_seed(0))  # [batch, prefix, key]
    with PretendedCard() as card:
        top = top_t.TopT(3, 4, 1, True, DEVICE)
        for of_batch in triggers:
            top.merge(of_batch.to(DEVICE))
        assert card.launches["topk"] == merges
        top.settle()
        found = top.best.cpu()
    assert torch.equal(found, triggers.flatten(0, 1).T.sort(1, descending=True).values[:, :4])


def test_gradients_pass_the_card():
    with torch.enable_grad(), PretendedCard():
        layer = torch.nn.Linear(3, 1).to(DEVICE)
        layer(torch.ones(2, 3, device=DEVICE)).sum().backward()
        assert layer.weight.grad.device.type == DEVICE and layer.weight.grad.tolist() == [[2.0, 2.0, 2.0]]


def test_without_the_card_its_tensors_are_refused():
    with PretendedCard():
        there = torch.ones(2, device=DEVICE)
    with pytest.raises(RuntimeError, match="outside of `with PretendedCard"):
        there + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keys removal", "values project", "refinement measure", "intervention measure"])
def test_a_step_gives_the_same_on_the_card(tiny, name):
    run = tiny / "results/tiny"
    expected = ffkv.step(name, run, group=1, work=ffkv.Work("cpu"))
    with as_device(), PretendedCard() as card:
        found = ffkv.step(name, run, group=1, work=WORK)
    assert card.launches.total() > 10
    for one, other in zip(found, expected) if isinstance(found, tuple) else [(found, expected)]:
        if isinstance(one, pd.DataFrame):
            # A GPU's ways add in another order; float32.
            pd.testing.assert_frame_equal(one, other, check_exact=False, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_counts_are_not_above_those_that_are_stored(tiny):
    """What rises here makes a GPU wait. `python -m benchmarks.launches --store results/tiny` stores smaller ones."""
    found, stored = count(tiny / "results/tiny"), pd.read_csv(STORED, index_col="step")
    assert [*stored.index] == [*CASES]
    kinds = ["launches", "waits", "copies", "passes"]
    risen = found[(found[kinds] > stored[kinds]).any(axis=1)]
    assert risen.empty, f"\n{found.loc[risen.index, kinds]}\nstored:\n{stored.loc[risen.index, kinds]}"


def test_the_page_has_the_counts_that_are_stored():
    page = launches.PAGE.read_text()
    written = page[page.index(launches.BEGIN) + len(launches.BEGIN) : page.index(launches.END)].strip().splitlines()
    expected = launches.table(pd.read_csv(STORED, index_col="step"), Path("tiny")).splitlines()
    assert written[1:] == expected[1:]  # the first line names the version of torch
