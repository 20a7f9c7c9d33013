"""The lens of a run as a file: that of the run in float16, the same bytes each time, whatever memories are asked for."""

import json
import shutil

import numpy as np
import pytest

import ffkv
from ffkv.base.errors import UserError
from ffkv.branches.translation.lens_file import read_lens
from ffkv.branches.translation.maps import read_map
from ffkv.run.export.settings import Export
from ffkv.run.export.step import export


def test_the_lens_of_a_run_is_written_and_read_again(tiny, tmp_path):
    run = ffkv.open(tiny / "results/tiny")
    for name in ("one", "other"):
        assert export(run, "jacobian-lens", tmp_path / name, Export(memories=["L0.0"]), "cpu") == []
    one, other = (tmp_path / name / "lens.pt" for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    assert json.loads((tmp_path / "one/ffkv-export.json").read_text())["finished"]
    (jacobians, texts), files = read_lens(one, 2, run.anatomy.width), run.read_as("jacobian").files
    assert texts == run.settings.translation.texts
    for layer in range(2):
        with files.open_maps(files.layer_group(layer)) as file:
            weight, _ = read_map(file, layer)
        np.testing.assert_array_equal(jacobians[layer], weight.T.astype(np.float16))
    np.testing.assert_allclose(jacobians[1], np.eye(run.anatomy.width), atol=1e-3)  # of the last layer


def test_a_run_without_the_table_of_its_lens_is_refused_before_anything_is_written(tiny, tmp_path):
    """As one that is not finished: its maps are there, and no summary."""
    shutil.copytree(tiny / "results/tiny", tmp_path / "run")
    (tmp_path / "run/translation/translation_fit.csv").unlink()
    run = ffkv.open(tmp_path / "run")
    with pytest.raises(UserError, match="translation_fit"):
        export(run, "jacobian-lens", tmp_path / "lens", Export(memories=["L0.0"]), "cpu")
    assert not (tmp_path / "lens").exists()
