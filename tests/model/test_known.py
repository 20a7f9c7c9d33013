"""The hash of weights is computed once for a state of their files, and every change of a file is noticed."""

import os
import time

import pytest
from support import prove_into, random_checkpoint

from ffkv.base.errors import UserError
from ffkv.base.hub.commit import Commit
from ffkv.base.settings import Model
from ffkv.model.checkpoint import fingerprint
from ffkv.model.checkpoint.load import load


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """The hashes that are computed, in a cache of its own."""
    computed, original = [], fingerprint.weights_hash
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(fingerprint, "weights_hash", lambda model: computed.append(original(model)) or computed[-1])
    return computed


def test_the_second_job_computes_nothing_and_a_change_is_noticed(tmp_path, monkeypatch, counted):
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    assert (
        fingerprint.state_of(Model(checkpoint=str(checkpoint)), Commit("model", str(checkpoint), "main")) == ""
    )  # it may change again within one tick
    monkeypatch.setattr(fingerprint, "SETTLED", 0.05)
    time.sleep(0.1)
    folder = prove_into(tmp_path / "stage", checkpoint)
    assert len(counted) == 1
    for _ in range(2):
        load(folder, "cpu")
    assert len(counted) == 1
    weights = checkpoint / "model.safetensors"
    before, stat = bytearray(weights.read_bytes()), weights.stat()
    before[-3] ^= 1
    weights.write_bytes(before)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the same size, time and inode
    time.sleep(0.1)
    with pytest.raises(UserError, match="have changed"):
        load(folder, "cpu")
    assert len(counted) == 2


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path, monkeypatch, counted):
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setattr(fingerprint, "SETTLED", 0.05)
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "gpt2")
    time.sleep(0.1)
    load(prove_into(tmp_path / "stage", checkpoint), "cpu")
    assert len(counted) == 2
