"""Files of Jacobian lenses: of ours and of others; what is of another model, is no lens, or would run code is refused by name."""

import re

import numpy as np
import pytest
import torch

from ffkv.base.errors import UserError
from ffkv.branches.translation.lens_file import read_lens, write_lens

LAYERS, D = 3, 4


def lens(**others) -> dict:
    matrices = {layer: torch.full((D, D), layer + 0.5, dtype=torch.float16) for layer in range(LAYERS - 1)}
    return {"J": matrices, "n_prompts": 7, "source_layers": [0, 1], "d_model": D} | others


def test_a_lens_comes_back_to_float16_and_the_last_layer_is_the_identity(tmp_path):
    made = {layer: np.random.default_rng(layer).normal(size=(D, D)) for layer in range(LAYERS - 1)}
    write_lens(tmp_path / "lens.pt", made, 7)
    read, texts = read_lens(tmp_path / "lens.pt", LAYERS, D)
    for layer, j in made.items():
        np.testing.assert_array_equal(read[layer], j.astype(np.float16))
    np.testing.assert_array_equal(read[2], np.eye(D))
    assert texts == 7
    held = torch.load(tmp_path / "lens.pt", weights_only=True)
    assert [*held] == ["J", "n_prompts", "source_layers", "d_model"] and held["source_layers"] == [0, 1]


def test_what_float16_cannot_hold_is_not_written(tmp_path):
    with pytest.raises(UserError, match="J of layer 1 does not fit float16"):
        write_lens(tmp_path / "lens.pt", {0: np.eye(2), 1: np.eye(2) * 1e6}, 1)
    assert not (tmp_path / "lens.pt").exists()


class Evil:
    """Would run a command when it is unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('code ran')",))


WRONG = {
    "code": (lens(J=Evil()), "it holds more than numbers. No code of a file is run"),
    "another width": (lens(J={0: torch.zeros(5, 5), 1: torch.zeros(5, 5)}), r"layer 0 has \[5, 5\], and this one has 3 layers of 4"),
    "no square": (lens(J={0: torch.zeros(D, D), 1: torch.zeros(D)}), r"layer 1 has \[4\]"),
    "a layer too few": (lens(J={0: torch.zeros(D, D)}, source_layers=[0]), "it lacks the layers 1"),
    "a layer too many": (lens(J={n: torch.zeros(D, D) for n in range(5)}, source_layers=[*range(5)]), "it has a layer 4"),
    "not a number": (lens(J={0: torch.zeros(D, D), 1: torch.full((D, D), torch.nan)}), "is not finite in layer 1"),
    "other keys": ({"weight": torch.zeros(D, D)}, "J is not as expected"),
    "a list": ([1, 2], "J is not as expected"),
    "layers not listed": (lens(source_layers=[0, 2]), "J is not as expected"),
    "no number of texts": (lens(n_prompts="many"), "n_prompts is not as expected"),
    "whole numbers": (lens(J={n: torch.zeros(D, D, dtype=torch.int64) for n in range(2)}), "J is not as expected"),
    "claims to be large": (lens(J={0: torch.zeros(D, D), 1: torch.zeros(1, 1).expand(2**20, 2**20)}), r"layer 1 has \[1048576, 1048576\]"),
    "is large": (lens(J={n: torch.zeros(600, 600) for n in range(2)}), "larger than a lens of 3 layers and 4 dimensions"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_lens_is_refused_by_name(name, tmp_path):
    held, message = WRONG[name]
    path = tmp_path / "lens.pt"
    torch.save(held, path)
    with pytest.raises(UserError, match=message) as refused:
        read_lens(path, LAYERS, D)
    assert str(path) in str(refused.value)


def test_what_is_no_archive_or_cut_or_absent_is_refused(tmp_path):
    path = tmp_path / "lens.pt"
    with pytest.raises(UserError, match=re.escape(f"There is no file {path}. Set translation.lens")):
        read_lens(path, LAYERS, D)
    path.write_bytes(b"not an archive")
    with pytest.raises(UserError, match="cannot be read as a Jacobian lens"):
        read_lens(path, LAYERS, D)
    torch.save(lens(), path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(UserError, match="cannot be read as a Jacobian lens"):
        read_lens(path, LAYERS, D)
