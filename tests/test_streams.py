"""Random streams: one per purpose, layer and seed, and always the same."""

import itertools

import numpy as np

from ffkv.base.streams import Purpose, random_stream


def test_no_two_purposes_layers_or_seeds_share_a_stream():
    """Seed 1 in layer 0 once drew what seed 0 drew in layer 1, and three purposes shared one stream."""
    draws = {
        tuple(random_stream(seed, purpose, *parts).integers(0, 2**62, 4))
        for seed, purpose, parts in itertools.product(range(3), Purpose, itertools.product(range(3), repeat=2))
    }
    assert len(draws) == 3 * len(Purpose) * 9


def test_a_stream_is_numpys_own_of_these_numbers():
    assert random_stream(5, Purpose.SIMILARITY, 2).integers(0, 2**62) == np.random.default_rng([5, 4, 2]).integers(
        0, 2**62
    )


def test_no_module_makes_a_stream_of_its_own():
    from support import ROOT

    users = {
        str(path.relative_to(ROOT / "src/ffkv"))
        for path in (ROOT / "src/ffkv").rglob("*.py")
        if "default_rng" in path.read_text()
    }
    assert users == {"base/streams.py"}
