"""Dictionaries that the code of SAELens, circuit-tracer and sparsify made, where `make peers` has installed it: read, they give the same."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from support import ROOT

from ffkv_dictionaries.forms import form_of

PEERS = Path(os.environ.get("FFKV_PEERS", ROOT / ".venv-peers")) / "bin/python"
# The functions of made_by_peers.py, what they import, and how many dictionaries they make.
MADE = {
    "sae_lens": ("sae_lens.saes.sae", 17),
    "llama_scope": ("sae_lens.saes.sae", 1),
    "circuit_tracer": ("circuit_tracer.transcoder.single_layer_transcoder", 3),
    "gemma_scope": ("circuit_tracer.transcoder.single_layer_transcoder", 2),
    "sparsify": ("sparsify", 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("peer", MADE)
def test_a_dictionary_of_a_peer_gives_what_its_own_code_gives(peer, tmp_path, subtests):
    if not PEERS.exists():
        pytest.skip(f"{PEERS} does not exist: make peers")
    module, expected = MADE[peer]
    # SAELens stands beside the TransformerLens that it asks for.
    places = str(PEERS.parents[1] / "circuitkit") if module.startswith("sae_lens") else ""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": places}
    options = {"capture_output": True, "text": True, "env": environment, "cwd": tmp_path}
    if subprocess.run([PEERS, "-c", f"import {module}"], **options).returncode:
        pytest.skip(f"{module} cannot be imported by {PEERS}")
    script = Path(__file__).with_name("made_by_peers.py")
    done = subprocess.run([PEERS, script, tmp_path, peer], **options)
    assert done.returncode == 0, done.stderr[-5000:]
    names = [path.stem for path in tmp_path.glob("*.npz")]
    assert len(names) == expected
    for name in names:
        with subtests.test(name=name):
            given = {key: torch.from_numpy(array) for key, array in np.load(tmp_path / f"{name}.npz").items()}
            (place,) = form_of(tmp_path / name).layers(tmp_path / name).values()
            found = form_of(tmp_path / name).load(place)
            h = given["states"] @ found.encoder.T + found.encoder_bias
            if found.largest:
                ids = (h.abs() if found.either_sign else h).topk(found.largest, dim=1).indices
                kept = torch.zeros_like(h).scatter(1, ids, h.gather(1, ids))
                m = kept if found.either_sign else kept.relu()
            else:
                m = torch.where(h > found.threshold, h, 0)
            y = m @ found.decoder + found.decoder_bias
            y = y if found.skip is None else y + given["states"] @ found.skip.T
            assert given["coefficients"].any()
            for own, theirs in ((m, given["coefficients"]), (y, given["outputs"])):
                torch.testing.assert_close(own, theirs, atol=1e-5 * theirs.abs().max().item(), rtol=0)
