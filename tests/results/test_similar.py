"""Similar memories: by brute force over all pairs."""

import numpy as np
import pytest
from results.conftest import EXAMPLES, IDENTITY

from ffkv.base.errors import UserError
from ffkv.base.files import hdf5
from ffkv.run.results import similar

NAMES = ["L0.0", "L0.1", "L0.2", "L1.0", "L1.1"]


@pytest.fixture
def values(folder) -> np.ndarray:
    """The values of the small run; that of L0.2 is zero."""
    made = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    made[2] = 0
    with hdf5.create(folder / "values.h5", "values", IDENTITY) as file:
        hdf5.put(file, "value", made, ["memory", "width"], "1", "values")
    return made


@pytest.mark.parametrize("rows", [1, 2, 8192])
def test_by_value_is_the_cosine(run, values, monkeypatch, rows):
    monkeypatch.setattr(similar, "ROWS", rows)
    for row, name in enumerate(NAMES):
        found = run.memory(name).similar("value", 10)
        length = np.linalg.norm(values, axis=1)
        cosine = values @ values[row] / np.where(length * length[row] > 0, length * length[row], 1)
        assert sorted(found["name"]) == sorted({*NAMES} - {name})
        assert found["cosine"].is_monotonic_decreasing
        expected = [cosine[NAMES.index(other)] for other in found["name"]]
        assert found["cosine"].to_numpy() == pytest.approx(expected, abs=1e-6)  # float32 sums of four terms


@pytest.mark.parametrize("size", [1, 2**25])
def test_by_coefficients_is_the_correlation(folder, run, monkeypatch, size):
    monkeypatch.setattr(similar, "COEFFICIENT_BYTES", size)
    m = np.random.default_rng(0).normal(3, 1, size=(40, 5)).astype(np.float32)
    m[:, 2] = 0.1  # this coefficient never changes
    m[:, 4] = 2 - m[:, 0]
    with hdf5.create(
        folder / "sampled_prefixes.h5",
        "sampled prefixes",
        {**IDENTITY, "corpus_hash": run.files.corpora["validation"]["corpus_hash"]},
    ) as file:
        hdf5.put(file, "m", m, ["prefix", "memory"], "1", "coefficients")
    found = run.memory("L0.0").similar("coefficients")
    expected = np.corrcoef(m[:, [0, 1, 3, 4]], rowvar=False)[0]
    assert sorted(found["name"]) == ["L0.1", "L1.0", "L1.1"]
    assert found["name"].iloc[-1] == "L1.1"
    by_name = dict(zip(["L0.0", "L0.1", "L1.0", "L1.1"], expected))
    assert found["correlation"].to_numpy() == pytest.approx([by_name[name] for name in found["name"]], abs=1e-6)
    assert run.memory("L0.2").similar("coefficients").empty


@pytest.mark.parametrize("rows", [1, 8192])
def test_by_triggers_counts_prefixes_of_both(folder, monkeypatch, rows):
    from ffkv.run.results.run import open

    # L0.1 gets both prefixes of L1.1, L1.0 one of them and one of another length.
    with hdf5.h5py.File(folder / "triggers.h5", "r+") as file:
        for row, places in ((1, [(2, 1), (1, 2)]), (3, [(2, 1), (1, 3)])):
            file["sentence"][row], file["position"][row] = np.array(places).T
            file["count"][row] = 2
    (folder / ".triggers.h5.sha256").unlink()
    monkeypatch.setattr(similar, "ROWS", rows)
    run = open(folder)
    found = run.memory("L1.1").similar("triggers")
    assert found[["name", "shared"]].to_numpy().tolist() == [["L0.1", 2], ["L1.0", 1]]
    assert run.memory("L0.2").similar("triggers").empty
    assert found[["layer", "memory"]].to_numpy().tolist() == [[0, 1], [1, 0]]
    assert EXAMPLES[2][0][0] == 0  # L0.2 has no trigger example


@pytest.mark.parametrize("options", [{"by": "key"}, {"count": 0}])
def test_what_cannot_be_compared_is_refused(run, options):
    with pytest.raises(UserError, match="by is 'value', 'coefficients' or 'triggers', and count"):
        run.memory("L0.0").similar(**options)
