"""TransformerLens' `JacobianLens` on the same texts: the same matrices, and it loads our file. It lies in an environment of its own."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from support import ROOT

from ffkv.branches.translation.jacobian import jacobian_of
from ffkv.branches.translation.lens_file import write_lens

PEERS = Path(os.environ.get("FFKV_PEERS", ROOT / ".venv-peers")) / "bin/python"
SKIP = 2
# What it does with a checkpoint, our file, and a file for what it finds.
SCRIPT = """
import json, sys
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.tools.analysis import JacobianLens
checkpoint, ours, found = sys.argv[1:]
texts = json.load(sys.stdin)
model = TransformerBridge.boot_transformers(checkpoint, device="cpu")
model.eval()
lens = JacobianLens.fit(model, texts, corpus="texts", dim_batch=4, max_seq_len=16, skip_first_positions=2, show_progress=False)
loaded = JacobianLens.load(ours)
json.dump({
    "ids": [model.to_tokens(text)[0].tolist() for text in texts],
    "jacobians": {layer: matrix.tolist() for layer, matrix in lens.jacobians.items()},
    "loaded": {layer: matrix.float().tolist() for layer, matrix in loaded.jacobians.items()},
    "n_prompts": loaded.n_prompts,
}, open(found, "w"))
"""


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_matrices_are_those_of_transformer_lens(kind, load_kind, tmp_path):
    if not PEERS.exists():
        pytest.skip(f"{PEERS} does not exist: make peers")
    loaded = load_kind(kind)
    ours = {layer: np.random.default_rng(layer).normal(size=(loaded.anatomy.width,) * 2) for layer in range(2)}
    write_lens(tmp_path / "lens.pt", ours, 9)
    texts = ["the cat sat on the mat and saw", "a dog ran in the park with a ball"]
    done = subprocess.run(
        [PEERS, "-c", SCRIPT, loaded.anatomy.checkpoint, tmp_path / "lens.pt", tmp_path / "found.json"],
        input=json.dumps(texts), capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    parts = [jacobian_of(loaded, torch.tensor(ids), slice(SKIP, len(ids) - 1), 4)[0] for ids in found["ids"]]
    expected = np.mean(parts, 0)
    for layer, matrix in found["jacobians"].items():  # float32 in both
        np.testing.assert_allclose(matrix, expected[int(layer)], atol=1e-5 * np.abs(expected).max())
    assert len(found["jacobians"]) >= len(expected) - 1 and found["n_prompts"] == 9
    for layer, matrix in found["loaded"].items():
        np.testing.assert_array_equal(np.float16(matrix), np.float16(ours[int(layer)]))
