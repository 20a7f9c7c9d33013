"""Whole runs: a layer as its own dictionary gives the tables of the model; a dictionary that leaves something says so everywhere."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from safetensors.torch import save_file
from support import make_run, random_sentences, settings_file

import ffkv
from ffkv.run.export.settings import Export
from ffkv.run.export.step import export
from ffkv_comparison.comparison_file import read_comparison
from ffkv_comparison.page import cost_tables
from ffkv_dictionaries.reconstruction import measure
from ffkv_explorer.shelf import open_shelf
from tests.ffkv_dictionaries.conftest import of_layer
from tests.ffkv_dictionaries.test_layer import noisy
from tests.ffkv_dictionaries.test_stream import autoencoder
from tests.ffkv_explorer.conftest import Visitor, text_of
from tests.ffkv_formats.test_peers import PEERS, read_by_peer

pytestmark = [pytest.mark.workflow, pytest.mark.large]
CLOSE = (
    1e-4  # relative: the same sums of 24 products in batches of other shapes, at most twice subtracted from each other
)


def save_set(folder: Path, dictionaries: dict) -> str:
    """Writes a set of circuit-tracer."""
    folder.mkdir()
    (folder / "config.yaml").write_text("model_kind: transcoder_set\nfeature_input_hook: mlp.hook_in\n")
    for number, dictionary in dictionaries.items():
        tensors = {
            "W_enc": dictionary.encoder,
            "b_enc": dictionary.encoder_bias,
            "W_dec": dictionary.decoder,
            "b_dec": dictionary.decoder_bias,
            "activation_function.threshold": dictionary.threshold,
        } | ({} if dictionary.skip is None else {"W_skip": dictionary.skip})
        save_file(
            {name: each.detach().clone().contiguous() for name, each in tensors.items()},
            folder / f"layer_{number}.safetensors",
        )
    return str(folder)


@pytest.fixture(scope="module")
def runs(models, tmp_path_factory) -> Path:
    """Runs of a model, of its own layers as dictionaries, of a dictionary of layer 1 alone, and of its largest memories; compared."""
    folder = tmp_path_factory.mktemp("dictionaries")
    checkpoint, model = models("opt")
    for split, seed in (("train", 1), ("validation", 2)):
        (folder / f"{split}.txt").write_text("\n".join(random_sentences(seed, 200)))
    same = save_set(folder / "same", {number: of_layer(model, number) for number in (0, 1)})
    other = save_set(folder / "other", {1: noisy(of_layer(model, 1), noise=0.1)})
    stream = save_set(folder / "stream", {1: autoencoder()})
    pairs = [
        {"clean_prefix": f"w1 w{n}", "patch_prefix": f"w2 w{n}", "clean_answer": " w3", "patch_answer": " w4", "group": str(n)}
        for n in range(5, 25)
    ]  # fmt: skip
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    small = {
        "candidates": 3,
        "controls": 4,
        "directions": 1,
        "sets": [1],
        "random_sets": 1,
        "missed": 0,
        "minimum_accuracy": 0,
    }
    make_run(
        folder,
        settings_file(
            folder,
            model={"checkpoint": str(checkpoint)},
            corpus={"dataset": "files", "train": "train.txt", "validation": "validation.txt", "splitter": "line"},
            keys={"per_layer": 3},
            prefixes={"count": 60},
            shards=1,
            layer_groups=1,
            behaviours={"words": {"prompts": "pairs.jsonl", **small}},
            reconstruction={"tokens": 500, "prefixes": 90},
            intervention={"memories": 3, "examples": 4},
            report={"control": "none"},
            runs={
                "native": {},
                "same": {"dictionary": {"path": same}},
                "other": {"dictionary": {"path": other}},
                "largest": {"dictionary": {"largest": 4}},
                "stream": {"dictionary": {"path": stream, "reads": "stream"}},
            },
            comparisons={"units": {"runs": ["native", "other", "largest", "stream"]}},
        ),
    )
    return folder


def tables_of(folder: Path) -> dict[str, pd.DataFrame]:
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
    paths = [path for path in folder.rglob("*") if path.suffix in read and path.parts[-2] not in ("logs", "benchmarks")]
    return {str(path.relative_to(folder)): read[path.suffix](path) for path in paths}


def test_a_layer_as_its_own_dictionary_gives_every_table(runs):
    native, same = (tables_of(runs / "results" / name) for name in ("native", "same"))
    assert same.keys() - native.keys() == {"reconstruction/reconstruction.csv"}
    assert native.keys() <= same.keys() and len(native) > 30
    for name, expected in native.items():
        found = same[name]
        assert list(found.columns) == list(expected.columns) and len(found) == len(expected), name
        for column in expected.columns:
            if expected[column].dtype.kind == "f":
                scale = np.nanmax(np.abs(expected[column])) if expected[column].notna().any() else 1.0
                np.testing.assert_allclose(
                    found[column], expected[column], rtol=CLOSE, atol=CLOSE * scale, err_msg=f"{name} {column}"
                )
            else:
                assert found[column].astype(str).tolist() == expected[column].astype(str).tolist(), (name, column)
    made = same["reconstruction/reconstruction.csv"]
    assert made["unexplained"].max() < 1e-10
    helps = made["loss_without"] > made["loss"]  # of random weights, not every layer does
    assert made["recovered"].tolist() == pytest.approx(np.where(helps, 1, np.nan), abs=1e-5, nan_ok=True)
    assert helps.any()
    assert made["loss_dictionary"].tolist() == pytest.approx(made["loss"].tolist(), rel=1e-5)
    assert made["ffn_dictionary"].tolist() == [1, 1]
    assert made["prefixes"].between(45, 90).all()  # every sixth token of some 500


def test_nothing_is_recovered_of_a_layer_that_raises_the_loss(runs, monkeypatch):
    told, run = measure._losses, ffkv.open(runs / "results/other")

    def of_a_harmful_layer(*args) -> dict:
        losses = told(*args)
        return losses | {(1, "y"): 0.9 * losses[-1, ""], (1, "e"): 1.2 * losses[-1, ""]}

    monkeypatch.setattr(measure, "_losses", of_a_harmful_layer)
    (row,) = ffkv.step("reconstruction measure", run).to_dict("records")
    assert row["loss_without"] < row["loss"] < row["loss_dictionary"]
    assert np.isnan(row["recovered"])  # (0.9 - 1.2) / (0.9 - 1): three times of what the layer does


def test_what_is_left_is_told(runs, models):
    run = ffkv.open(runs / "results/other")
    made = run.table("reconstruction")
    assert made["layer"].tolist() == [1] and made["units"].tolist() == [24]
    assert 0.001 < made["unexplained"].item() < 0.9
    assert made["loss_dictionary"].item() != made["loss"].item()
    page = (runs / "reports/other/index.html").read_text()
    assert "What the dictionary makes again" in page and "Loss that is recovered with what they make alone" in page
    trace = ffkv.trace(run, "w3 w7 w9 w4")
    assert trace.deviation < 1e-4
    assert trace.remainders["part"].value_counts().to_dict() == {"other memories": 2, "bias": 2, "error": 1}
    left = trace.remainders.query("part == 'error'")
    assert left["layer"].item() == 1 and left["norm"].item() > 0.01
    shares = trace.contributions.groupby("layer")["share"].sum() + trace.remainders.groupby("layer")["share"].sum()
    assert shares.tolist() == pytest.approx([1, 1], abs=1e-5)
    found = ffkv.graph(run, "w3 w7 w9 w4", baseline="zero", device="cpu")
    assert len(found.errors) == 4 and (found.errors["layer"] == 1).all() and "these errors have effects" in found.told
    visitor = Visitor(open_shelf([run.folder]))
    assert "error" in text_of(visitor.get("/r/other/trace?prompt=w3+w7+w9+w4"))
    assert "error of the dictionary" in text_of(visitor.get("/r/other/trace?prompt=w3+w7+w9+w4&graph=1&baseline=zero"))
    log = (runs / "results/other/logs/model.log").read_text()
    assert "reads the input of the layer, writes the output of the second matrix" in log


@pytest.mark.skipif(not PEERS.exists(), reason=f"{PEERS} does not exist: make peers")
@pytest.mark.parametrize("format_name", ["neuron-record", "saedashboard", "circuit-tracer", "delphi"])
def test_exported_units_are_opened_by_the_tools_that_they_are_for(runs, models, format_name, tmp_path):
    run = ffkv.open(runs / "results/other")
    units = run.memories(layer=1).nlargest(2, "firing_rate")["memory"].tolist()  # examples enough for all
    wanted = Export(memories=[f"L1.{unit}" for unit in units], examples=4, sentences=8)
    export(run, format_name, tmp_path / "export", wanted, "cpu")
    found = read_by_peer(format_name, tmp_path / "export", str(models("opt")[0]))
    number = 0 if format_name == "circuit-tracer" else 1
    assert {each[number] for each in found} == {*units}


def test_the_largest_memories_are_few(runs):
    run = ffkv.open(runs / "results/largest")
    made = run.table("reconstruction")
    assert made["layer"].tolist() == [0, 1]
    assert (made["active"] <= 4).all() and (made["active"] > 3).all()
    assert (made["unexplained"] > 0.001).all()
    assert (run.table("figure_7_active_memories")["q3"] <= 4 / 24 + 1e-9).all()


def test_the_stream_has_no_figure_8(runs):
    """Layer 1 is read through a dictionary of the residual stream: its units do not add up to what the layer writes."""
    run = ffkv.open(runs / "results/stream")
    assert run.anatomy.of_stream == {1}
    for name in ("figure_8_no_agreement", "figure_8_agreement_cases"):
        assert {*run.table(name)["layer"]} <= {-1, 0}
    found = run.table("composition/by_prefix").groupby("layer")[["agreeing", "agreeing_all"]].agg(["min", "max"])
    assert found.loc[1].tolist() == [-1] * 4 and found.loc[0].min() >= 0
    made = run.table("reconstruction")
    assert made["ffn_dictionary"].isna().all() and made["output_error"].notna().all()
    assert 0 < made["unexplained"].item() < 0.9 and made["loss_without"].item() != made["loss"].item()
    page = (runs / "reports/stream/index.html").read_text()
    assert "there is no share of prefixes in which no unit predicts what the layer predicts (figure 8)" in page
    assert (
        'id="figure_8"' in page
        and "Layers that are read through a dictionary of the residual stream are left out" in page
    )
    assert "(of the residual stream behind it)" in page
    trace = ffkv.trace(run, "w3 w7 w9 w4")
    assert trace.deviation < 1e-4
    costs = pd.read_csv(next((runs / "results/comparisons").rglob("costs.csv")))
    assert "figure_8" not in {*costs.query("run == 'stream' and layer == 1")["figure"]}


def test_runs_are_compared(runs):
    page = (runs / "reports/comparisons/units/index.html").read_text()
    assert "other" in page and "largest" in page
    (table,) = (
        each
        for name, each in cost_tables(read_comparison(runs / "results/comparisons/units/tables"))
        if name == "Layer 1"
    )
    of_other = {row[0]: str(row[2]) for row in table.rows}
    assert of_other["units"] == "24" and of_other["agreement rate"].endswith("per 1,000")
    assert all(of_other[share].endswith("%") for share in ("variance explained", "shallow", "no memory agrees"))
