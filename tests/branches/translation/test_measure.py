"""The steps of `translation` on random models: every number from the maps, by a second computation; shards and groups."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import log_softmax

from ffkv.activations.prefix_file import read_layer
from ffkv.activations.trigger_file import read_triggers
from ffkv.base.errors import UserError
from ffkv.base.files import hdf5, tables
from ffkv.base.steps import WHOLE, Part, Work
from ffkv.branches.given import Given
from ffkv.branches.settings import Batches, Prefixes, Translation
from ffkv.branches.translation.fit import fit_maps
from ffkv.branches.translation.maps import Maps, write_maps
from ffkv.branches.translation.measure import measure_translation
from ffkv.branches.translation.states import read_states
from ffkv.branches.translation.summarize import summarize_translation
from ffkv.branches.translation.tables import (
    BY_MEMORY,
    BY_PREFIX,
    FIT,
    JACOBIAN_BY_MEMORY,
    JACOBIAN_BY_PREFIX,
    JACOBIAN_READINGS,
    SUMMARIES,
)
from ffkv.model.anatomy import read_anatomy
from ffkv.model.head.head_file import load_head
from ffkv.model.values_file import read_values

SETTINGS = Translation(prefixes=120)
BLOCKS = Batches(tokens=100, block_sentences=50)


def outputs(path: Path | str, layer: int) -> np.ndarray:
    with hdf5.open(path, "sampled prefixes") as file:
        assert {"y", "m"}.isdisjoint(file)
        return read_layer(file, layer, "o").o


def fitted(files: dict, part: Part = WHOLE, settings: Translation = Translation()) -> tuple[Maps, pd.DataFrame]:
    return fit_maps(Given(Work("cpu", part=part), **files), settings)


def measured(files: dict, tmp_path: Path) -> tuple:
    maps, _ = fitted(files)
    write_maps(tmp_path / "maps.h5", maps)
    return maps, *measure_translation(Given(Work("cpu"), **files, maps=tmp_path / "maps.h5"))


def measured_by_jacobian(files: dict, tmp_path: Path) -> tuple:
    """The same by maps of the form of a Jacobian lens, whatever they hold."""
    anatomy = read_anatomy(files["model"])
    shape = (len(anatomy.layers), len(JACOBIAN_READINGS), anatomy.width)
    weight, offset = (
        np.random.default_rng(1).normal(size=each).astype(np.float32) for each in ((*shape, shape[-1]), shape)
    )
    maps = Maps(layer=np.arange(shape[0], dtype=np.int32), weight=weight, offset=offset, attributes={})
    write_maps(tmp_path / "maps.h5", maps)
    return maps, *measure_translation(Given(Work("cpu"), **files, jacobian_maps=tmp_path / "maps.h5"))


def test_shards_and_groups_change_no_byte(files, tmp_path):
    files = files("gpt2")
    read_states(Given(Work("cpu"), **files), SETTINGS, Prefixes(), BLOCKS)(tmp_path / "whole.h5")
    whole = outputs(tmp_path / "whole.h5", 1)
    assert len(whole) == 120
    np.testing.assert_array_equal(np.concatenate([outputs(path, 1) for path in files["states"]]), whole)
    maps, fit = fitted(files)
    one, table = fitted(files | {"states": [tmp_path / "whole.h5"]})
    np.testing.assert_array_equal(one.weight, maps.weight)
    pd.testing.assert_frame_equal(table, fit)
    groups = [fitted(files, Part(group, 3)) for group in range(3)]
    np.testing.assert_array_equal(np.concatenate([each.weight for each, _ in groups]), maps.weight)
    pd.testing.assert_frame_equal(pd.concat([each for _, each in groups if len(each)], ignore_index=True), fit)


def test_maps_by_divergence_are_the_same_in_any_group(files):
    files = files("gpt2")
    descent = Translation(fit="divergence")
    (maps, fit), (plain, by_ridge) = fitted(files, settings=descent), fitted(files)
    FIT.check(fit)
    steps = fit[fit["reading"] != "head"]["steps"].to_numpy().reshape(3, 2)  # [layer, reading]
    moved = (maps.weight != plain.weight).any((2, 3))
    assert (moved == (steps > 0)).all() and moved.any() and (by_ridge["steps"] == 0).all()
    one, table = fitted(files, Part(1, 3), descent)
    np.testing.assert_array_equal(one.weight[0], maps.weight[1])
    pd.testing.assert_frame_equal(table, fit[fit["layer"] == 1].reset_index(drop=True))


@pytest.mark.parametrize(
    ("kind", "how"),
    [("gpt2", measured), ("llama", measured), ("opt-post-norm", measured), ("llama", measured_by_jacobian)],
)
def test_every_reading_from_the_maps(files, tmp_path, kind, how):
    files = files(kind)
    maps, projections, by_memory, by_prefix = how(files, tmp_path)
    for table, own in ((by_memory, (BY_MEMORY, JACOBIAN_BY_MEMORY)), (by_prefix, (BY_PREFIX, JACOBIAN_BY_PREFIX))):
        own[how == measured_by_jacobian].check(table)
    anatomy, head = read_anatomy(files["model"]), load_head(files["model"], "cpu")
    values, triggers = read_values(files["values"]), read_triggers(files["triggers"])

    def logits(vectors: np.ndarray) -> np.ndarray:
        return head.logits(torch.from_numpy(vectors.astype(np.float32)), anatomy.read_as).double().numpy()

    with hdf5.open(files["prefixes"], "sampled prefixes") as file:
        final = logits(read_layer(file, len(anatomy.layers) - 1, "o").o).argmax(1)
        for layer in range(len(anatomy.layers)):
            states = read_layer(file, layer)
            for which, reading in enumerate(maps.readings):
                weight, offset = maps.weight[layer, which], maps.offset[layer, which]
                rows = by_memory[(by_memory["reading"] == reading) & (by_memory["layer"] == layer)]
                own = logits(values.of_layer(layer).value @ weight)
                w = triggers.next_token[anatomy.layer_offset[layer] + rows["memory"], 0]
                assert rows["top_token"].tolist() == own.argmax(1).tolist()
                assert rows["agrees"].tolist() == (own.argmax(1) == w).tolist()
                # Near ties of float32 logits may change a rank by one.
                rank = np.where(w < 0, -1, (own > np.take_along_axis(own, np.maximum(w, 0)[:, None], 1)).sum(1))
                np.testing.assert_allclose(rows["rank"], rank, atol=1)
                read = by_prefix[(by_prefix["reading"] == reading) & (by_prefix["layer"] == layer)]
                r, y = logits(states.r @ weight + offset), logits(states.y @ weight)
                assert read["top_residual"].tolist() == r.argmax(1).tolist()
                assert read["top_ffn"].tolist() == y.argmax(1).tolist()
                assert read["final"].tolist() == final.tolist()
                expected = np.exp(log_softmax(r, 1)[np.arange(len(final)), final])
                np.testing.assert_allclose(read["probability"], expected, rtol=1e-3)
                agrees = own.argmax(1)[None] == y.argmax(1)[:, None]
                assert read["agreeing"].tolist() == (agrees & (states.m > 0)).sum(1).tolist()
                assert read["agreeing_all"].tolist() == agrees.sum(1).tolist()
    own = by_memory[by_memory["reading"] == maps.readings[0]]
    assert projections.top.tolist() == own["top_token"].tolist()
    assert projections.attributes["readout"] == maps.readings[0]


def test_the_last_layer_is_read_as_the_head_reads_it(files, tmp_path):
    files = files("gpt2")
    maps, _, by_memory, _ = measured(files, tmp_path)
    last = by_memory[(by_memory["reading"] == "translated") & (by_memory["layer"] == 2)]
    np.testing.assert_allclose(maps.weight[2, 0], np.eye(maps.weight.shape[-1]), atol=1e-3)
    assert (last["top_token"] == last["head_top_token"]).mean() > 0.95  # the others are nearly tied
    _, fit = fitted(files)
    own = fit[fit["layer"] == 2].set_index("reading")
    assert own.loc["head", "explained_variance"] == 1 and own.loc["head", "divergence"] == 0
    assert own.loc["translated", "explained_variance"] > 0.999 and own.loc["translated", "divergence"] < 1e-4
    assert own.loc["shuffled", "explained_variance"] < 0.1


def test_the_fit_is_judged_on_validation_prefixes(files):
    files = files("gpt2")
    maps, fit = fitted(files)
    FIT.check(fit)
    head = load_head(files["model"], "cpu")
    with hdf5.open(files["prefixes"], "sampled prefixes") as file:
        o, last = (read_layer(file, layer, "o").o.astype(float) for layer in (0, 2))
    p = log_softmax(head.logits(torch.from_numpy(last.astype(np.float32))).double().numpy(), 1)
    for which, reading in enumerate(("translated", "shuffled", "head")):
        read = o if reading == "head" else o @ maps.weight[0, which] + maps.offset[0, which]
        row = fit[(fit["layer"] == 0) & (fit["reading"] == reading)].iloc[0]
        explained = 1 - ((last - read) ** 2).sum() / ((last - last.mean(0)) ** 2).sum()
        assert row["explained_variance"] == pytest.approx(explained, abs=1e-5)  # maps are stored in float32
        q = log_softmax(head.logits(torch.from_numpy(read.astype(np.float32))).double().numpy(), 1)
        assert row["divergence"] == pytest.approx((np.exp(p) * (p - q)).sum(1).mean(), rel=1e-3)
        assert row["low"] < row["divergence"] < row["high"] and row["prefixes"] == 40


def test_the_tables_of_the_figures(files, tmp_path):
    files = files("gpt2")
    _, _, by_memory, by_prefix = measured(files, tmp_path)
    for name, table in (("fit", fitted(files)[1]), ("by_memory", by_memory), ("by_prefix", by_prefix)):
        tables.write(table, tmp_path / f"{name}.parquet")
    files |= {name: [tmp_path / f"{name}.parquet"] for name in ("fit", "by_memory", "by_prefix")}
    found = summarize_translation(Given(**files))
    for described in SUMMARIES:
        described.check(found[described.name])
    with pytest.raises(UserError, match="--fit: layers"):
        summarize_translation(Given(**files | {"fit": [tmp_path / "fit.parquet"] * 2}))
