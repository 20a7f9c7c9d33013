"""What dictionaries leave on text: every number by plain hooks on the model, without ffkv."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from ffkv_dictionaries.reconstruction.measure import Sums, _losses
from tests.ffkv_dictionaries.conftest import of_layer
from tests.ffkv_dictionaries.test_layer import by_hand, noisy

BEGINNING = 1  # tokens in front of every text, which do not count


def test_losses_and_sums_are_those_of_plain_hooks(models, loaded):
    dictionary, model = noisy(of_layer(models("opt")[1], 1), noise=0.1), models("opt")[1].eval()
    found = loaded("opt", {1: dictionary})
    rows = [np.array([0, 5, 7, 9, 3]), np.array([0, 8, 2, 4, 6, 11, 13])]
    layer = found.anatomy.layers[1]
    sums = {1: Sums(layer, torch.device("cpu"))}
    losses = _losses(found, rows, BEGINNING, [layer], sums, step=1)
    block, heard = model.model.decoder.layers[1], {}

    def loss(change=None) -> float:
        """Summed over both texts, each alone. `change`: what fc2 returns, from what it returns and x."""
        total, heard["x"], heard["y"] = 0.0, [], []

        def on_output(module, args, y):
            heard["x"].append(x[-1][..., BEGINNING:, :].reshape(-1, 16))
            heard["y"].append(y[..., BEGINNING:, :].reshape(-1, 16))
            return None if change is None else change(y, x[-1])

        x = []
        handles = [
            block.fc1.register_forward_pre_hook(lambda module, args: x.append(args[0])),
            block.fc2.register_forward_hook(on_output),
        ]
        with torch.no_grad():
            for row in rows:
                ids = torch.from_numpy(row)[None]
                logits = model(ids).logits[0, :-1]
                total += float(cross_entropy(logits, ids[0, 1:], reduction="sum"))
        for handle in handles:
            handle.remove()
        return total

    def made(y, x):
        m, beside = by_hand(dictionary, x)
        return (m @ dictionary.decoder.double() + beside).float()

    plain = loss()
    x, y = torch.cat(heard["x"]), torch.cat(heard["y"])
    assert losses[-1, ""] == pytest.approx(plain, rel=1e-5)
    assert losses[1, "e"] == pytest.approx(loss(made), rel=1e-5) and losses[1, "e"] != pytest.approx(plain, rel=1e-3)
    assert losses[1, "y"] == pytest.approx(loss(lambda y, x: torch.zeros_like(y)), rel=1e-5)
    m, _ = by_hand(dictionary, x)
    told = sums[1].row()
    left = ((y - made(y, x)).square().sum() / (y - y.mean(0)).square().sum()).item()
    assert told["tokens"] == len(y) == 10 and told["units"] == 24
    assert told["unexplained"] == pytest.approx(left, rel=1e-4) and 0.01 < left < 1
    assert told["active"] == pytest.approx((m != 0).sum().item() / 10)
    assert told["silent"] == int((m == 0).all(0).sum())
    torch.testing.assert_close(torch.cat(sums[1].sampled["e"]), y - made(y, x), rtol=1e-4, atol=1e-4)
