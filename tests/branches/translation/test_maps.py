"""The file of maps."""

import numpy as np
import pytest

from ffkv.base.errors import UserError
from ffkv.branches.translation import maps


def test_the_map_of_a_layer_in_a_reading_is_read_again_and_another_group_is_refused(tmp_path):
    weight, offset = (
        np.random.default_rng(0).normal(size=(2, 2, *shape)).astype(np.float32) for shape in ((3, 3), (3,))
    )
    made = maps.Maps(layer=np.array([4, 5], np.int32), weight=weight, offset=offset, attributes={})
    maps.write_maps(tmp_path / "maps.h5", made)
    read = maps.read_maps(tmp_path / "maps.h5", {}, [4, 5])
    for which, reading in enumerate(("translated", "shuffled")):
        for found, expected in zip(read.map_of(reading, 5), (weight[1, which], offset[1, which]), strict=True):
            np.testing.assert_array_equal(found, expected)
    message = r"maps\.h5 has layers \[4, 5\], not layers \[3, 4\]: give the file of the same layer group"
    with pytest.raises(UserError, match=message):
        maps.read_maps(tmp_path / "maps.h5", {}, [3, 4])
