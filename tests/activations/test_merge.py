"""Merging the triggers of shards against those of the whole corpus, of both signs, with ties."""

import errno
import os
import subprocess
import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tries

from ffkv.activations.merge import combine_triggers, merge_triggers
from ffkv.activations.trigger_file import (
    COMPRESSED,
    HISTOGRAM_EDGES,
    Negative,
    TriggerExamples,
    Triggers,
    read_triggers,
    write_triggers,
)
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.base.files.datasets import datasets_of
from ffkv.base.files.stored import verify_sum

entries = st.tuples(
    st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]),
    st.integers(0, 9),
    st.integers(1, 3),
    st.sampled_from([-1, 1]),
)


def examples(found, sign: int, t: int) -> dict[str, np.ndarray]:
    """One key's trigger examples of a sign among (coefficient, sentence, position, gate)."""
    own = sorted((entry for entry in found if sign * entry[0] > 0), key=lambda entry: (-sign * entry[0], *entry[1:3]))
    kept = own[:t] + [(0.0, -1, 0, 0)] * (t - len(own[:t]))
    coefficient, sentence, position, gate = (np.array([column]) for column in zip(*kept, strict=True))
    return {
        "coefficient": coefficient.astype(np.float32),
        "sentence": sentence.astype(np.int32),
        "position": position.astype(np.int32),
        "next_token": np.where(sentence >= 0, 10 * sentence + position, -1).astype(np.int32),
        "multiplicity": np.where(sentence >= 0, 1 + position, 0).astype(np.int32),
        "next_count": np.where(sentence >= 0, position, 0).astype(np.int32),
        "gate": gate.astype(np.int8),
        "count": np.array([len(own[:t])], np.int32),
        "fires": np.array([len(own)]),
    }


def triggers(found, t: int, signed: bool) -> Triggers:
    """The triggers of a model of one key on a part of the corpus."""
    values = [entry[0] for entry in found]
    minimum = np.array([min([0.0, *values])], np.float32)
    return Triggers(
        **examples(found, 1, t),
        layer_offset=np.array([0, 1]),
        total=np.array([int(2 * sum(values))]),
        maximum=np.array([max([0.0, *values])], np.float32),
        histogram=np.zeros((1, len(HISTOGRAM_EDGES) - 1), np.int64),
        prefixes=len(found),
        attributes={},
        negative=Negative(**examples(found, -1, t), minimum=minimum) if signed else None,
    )


@given(st.lists(entries, max_size=25, unique_by=lambda entry: entry[1:3]), st.integers(1, 5), st.booleans(), st.data())
@settings(max_examples=tries(200))
def test_shards_of_any_kind_in_any_order_merge_into_the_whole(found, t, signed, data):
    shards = data.draw(st.integers(1, 4))
    parts = [[entry for entry in found if entry[1] % shards == shard] for shard in range(shards)]
    merged = combine_triggers([triggers(part, t, signed) for part in data.draw(st.permutations(parts))])
    whole = triggers(found, t, signed)
    for one, other in [(merged, whole), *([(merged.negative, whole.negative)] if signed else [])]:
        for name in datasets_of(TriggerExamples):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name, strict=True)
    assert (merged.prefixes, merged.total, merged.maximum) == (whole.prefixes, whole.total, whole.maximum)
    assert (merged.negative is not None) == signed
    assert not signed or merged.negative.minimum == whole.negative.minimum


def random_examples(generator, sign: int, memories: int, t: int) -> dict[str, np.ndarray]:
    """Trigger examples of a sign."""
    shape = (memories, t)
    names = ("sentence", "position", "next_token", "multiplicity", "next_count")
    return {name: generator.integers(0, 999, shape, np.int32) for name in names} | {
        "coefficient": -sign * np.sort(-generator.random(shape, np.float32), 1),
        "gate": np.ones(shape, np.int8),
        "count": np.full(memories, t, np.int32),
        "fires": generator.integers(t, 99, memories),
    }


def written_shards(folder, memories: int, t: int, count: int) -> list:
    """Files of shards of random triggers of both signs."""
    paths = [folder / f"{shard}.h5" for shard in range(count)]
    for shard, path in enumerate(paths):
        generator = np.random.default_rng(shard)
        minimum = -generator.random(memories, np.float32)
        found = Triggers(
            **random_examples(generator, 1, memories, t),
            layer_offset=np.array([0, memories // 3, memories]),
            total=generator.integers(0, 99, memories),
            maximum=generator.random(memories, np.float32),
            histogram=generator.integers(0, 99, (memories, len(HISTOGRAM_EDGES) - 1)),
            prefixes=100,
            attributes={"model_hash": "one", "settings": {"per_key": t}, "shard": shard, "shards": count},
            negative=Negative(**random_examples(generator, -1, memories, t), minimum=minimum),
        )
        write_triggers(path, found)
    return paths


@pytest.mark.slow
def test_a_merge_in_parts_is_the_merge_of_all_and_cannot_be_told_from_one_shard(tmp_path, monkeypatch):
    """21 memories, cut into parts of 1, 7 or all: the same datasets, and those of the whole merged in memory."""
    shards = written_shards(tmp_path, 21, 5, 3)
    whole = combine_triggers([read_triggers(path) for path in shards])
    own = {**whole.attributes, "shard": 0, "shards": 1}
    kept = {name: value for name, value in own.items() if name not in (*hdf5.OWN, "prefixes")}
    for rows in (1, 7, 10**6):
        monkeypatch.setattr("ffkv.activations.trigger_file.PART_BYTES", rows * 400)
        merge_triggers(shards[::-1], tmp_path / "merged.h5")
        merged = read_triggers(tmp_path / "merged.h5")
        for one, other in ((merged, whole), (merged.negative, whole.negative)):
            for name in set(datasets_of(type(one))) - {"negative"}:
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name, strict=True)
        assert merged.prefixes == 300
        write_triggers(tmp_path / "alone.h5", replace(whole, attributes=kept))
        assert (tmp_path / "alone.h5").read_bytes() == (tmp_path / "merged.h5").read_bytes()


def test_the_only_shard_gets_a_second_name_and_no_second_place(tmp_path, monkeypatch):
    (shard,) = written_shards(tmp_path, 70, 5, 1)
    merged = tmp_path / "merged.h5"
    for _ in range(2):  # and again over the file of the first time
        merge_triggers([shard], merged)
        assert merged.samefile(shard)
    shard.unlink()
    assert read_triggers(merged).prefixes == 100
    verify_sum(merged)
    # On a file system without such links it is a copy.
    (shard,) = written_shards(tmp_path, 70, 5, 1)

    def refuse(*_):
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    merge_triggers([shard], tmp_path / "copy.h5")
    assert not (tmp_path / "copy.h5").samefile(shard)
    assert (tmp_path / "copy.h5").read_bytes() == shard.read_bytes()


def test_a_damaged_only_shard_does_not_become_the_merged_file(tmp_path):
    (shard,) = written_shards(tmp_path, 70, 5, 1)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(UserError, match="is not what ffkv wrote"):
        merge_triggers([shard], tmp_path / "merged.h5")
    assert not (tmp_path / "merged.h5").exists()


@pytest.mark.slow
def test_a_merge_of_large_shards_takes_bounded_memory(tmp_path):
    """Three shards of 52 MB each once they are unpacked, of which 8 MB are a part (usually 32 MB), in a process that may take 100
    MB of data beside its libraries. It takes 50 MB; all at once, 230 MB."""
    shards = written_shards(tmp_path, 20_000, 50, 3)
    with h5py.File(shards[0]) as file:
        unpacked = sum(file[name].nbytes for name in COMPRESSED if name in file)
        assert unpacked > max(50_000_000, 2 * shards[0].stat().st_size)
    script = "import resource, sys; from ffkv.activations import trigger_file; trigger_file.PART_BYTES = 2**23\n"
    script += "from ffkv.activations.merge import merge_triggers\n"
    script += "status = lambda: dict(line.split(':') for line in open('/proc/self/status'))\n"
    script += "limit = int(status()['VmData'].split()[0]) * 1024 + 100_000_000\n"
    script += "resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))\n"
    script += "before = int(status()['VmHWM'].split()[0])\n"
    script += "merge_triggers(sys.argv[1:4], sys.argv[4])\n"
    script += "print(int(status()['VmHWM'].split()[0]) - before)"
    command = [sys.executable, "-c", script, *map(str, shards), str(tmp_path / "merged.h5")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100_000  # kB
    # A chunk in two parts is written once.
    assert (tmp_path / "merged.h5").stat().st_size < 1.01 * shards[0].stat().st_size
