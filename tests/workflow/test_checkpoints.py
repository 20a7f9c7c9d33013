"""Whole runs of checkpoints from disk, by the commands of the workflow."""

import h5py
import numpy as np
import pytest
import yaml
from support import ROOT, described, described_columns, make_run, random_checkpoint, random_sentences, settings_file

import ffkv
from ffkv.base.files import tables

pytestmark = pytest.mark.workflow
WIKITEXT = ROOT.parent / "shared" / "wikitext2" / "valid.txt"


STORIES = ROOT.parent / "shared" / "tinystories"


@pytest.mark.skipif(not STORIES.exists(), reason="the trained model is not beside the project")
def test_a_trained_model_in_low_precision(tmp_path):
    """A small Llama with SentencePiece blanks in bfloat16. The report says what that does to the triggers; the last layers
    predict, and tokens are shown with their blanks."""
    corpus = {"dataset": "files", "train": str(STORIES / "train.txt"), "validation": str(STORIES / "validation.txt")}
    keys = {"per_layer": 3, "background_prefixes": 1000, "removal_triggers": 5}
    few = {"prefixes": 150, "texts": 1, "tokens": 12, "skip": 4, "reading_texts": 1}
    less = {"keys": keys, "prefixes": {"count": 150}, "translation": few, "shards": 1, "layer_groups": 1}
    model = {"checkpoint": str(STORIES / "model"), "dtype": "bfloat16"}
    make_run(tmp_path, settings_file(tmp_path, model=model, corpus={**corpus, "limit": 25}, runs={"low": {}}, **less))
    assert "type on trigger examples, per layer" in (tmp_path / "reports/low/index.html").read_text()
    check_both_sides(tmp_path / "results/low", tmp_path / "reports/low/index.html")
    run = ffkv.open(tmp_path / "results/low")
    found = run.table("precision")
    assert found.columns.tolist() == described_columns()["keys/precision.csv"]
    # bfloat16 has 8 bits: rounding errors of some 1e-3, here of numbers that some products sum up
    assert found["error_median"].between(1e-4, 2e-2).all()
    assert found["upper_half_stays"].between(0.5, 1).all()
    assert {" the", "he", " he"} <= set(run.vocabulary)
    assert not any("\u2581" in token for token in run.vocabulary)
    residual = run.table("figure_9_residual_agreement")["share"]
    assert residual.iloc[-1] > 0.4 > 0.1 > residual.iloc[0]
    agreement = (
        run.table("figure_4_agreement").query("source in ['trigger', 'permuted'] and layer == 7").set_index("source")
    )
    assert agreement.loc["trigger", "rate"] > 5 * agreement.loc["permuted", "rate"]
    assert run.files.corpora["train"]["beginning"] == "<s> precedes every sentence: the tokenizer puts it there."


@pytest.mark.skipif(STORIES.exists(), reason="a trained model, which is gated too, goes through the same checks above")
def test_a_gated_model_is_read_on_both_sides_of_zero(tmp_path):
    """The embedded model has ReLU; a random Llama has negative coefficients and gates, from the triggers to the report."""
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "llama")
    for split, seed in (("train", 1), ("validation", 2)):
        (tmp_path / f"{split}.txt").write_text("\n".join(random_sentences(seed, 400)))
    corpus = {"dataset": "files", "train": "train.txt", "validation": "validation.txt", "splitter": "line"}
    less = {"keys": {"per_layer": 10}, "prefixes": {"count": 300}, "shards": 1, "layer_groups": 1}
    config = settings_file(tmp_path, model={"checkpoint": str(checkpoint)}, corpus=corpus, runs={"both": {}}, **less)
    make_run(tmp_path, config)
    results = tmp_path / "results/both"
    check_both_sides(results, tmp_path / "reports/both/index.html")


def check_both_sides(results, page):
    """A finished run of a gated model has triggers of both signs with their gates, in files, tables and report."""
    assert {f"negative/{name}" for name in ("coefficient", "gate", "minimum")} <= set(described(results))
    columns = described_columns(negative=True)
    for path in ("keys/activity.csv", "values/by_memory/{group}.parquet", "values/figure_4_agreement.csv"):
        assert tables.read(results / path.replace("{group}", "0")).columns.tolist() == columns[path]
    assert "negative" in tables.read(results / "values/figure_4_agreement.csv")["source"].unique()
    with h5py.File(results / "triggers.h5") as file:
        for side, sign in ((file, 1), (file["negative"], -1)):
            found = side["sentence"][...] >= 0
            assert found.any()
            assert (np.sign(side["coefficient"][...]) == sign * found).all()
            assert (np.abs(side["gate"][...]) == found).all()
    page = page.read_text()
    assert "Trigger examples of negative coefficients" in page
    assert "gate and up. Their signs are shown beside it." in page


ORACLE = ROOT.parent / "shared" / "oracle" / "model"


@pytest.mark.skipif(
    not (WIKITEXT.exists() and ORACLE.exists()), reason="the authors' checkpoint is not beside the project"
)
def test_the_authors_small_checkpoint_on_wikitext(tmp_path):
    """A trained fairseq model with the adaptive softmax, by the settings of the paper's own run."""
    config = yaml.safe_load((ROOT / "configs/paper.yaml").read_text())
    corpus = {"dataset": "files", "train": str(WIKITEXT), "limit": 300}
    config["corpus"] = {
        key: value for key, value in config["corpus"].items() if key not in ("config", "validation")
    } | corpus
    config |= {"model": {"checkpoint": str(ORACLE)}, "shards": 1, "layer_groups": 1, "runs": {"authors": {}}}
    config["prefixes"]["count"] = 300
    config["keys"] |= {"per_layer": 10, "removal_triggers": 5}
    config["intervention"] = {"memories": 1, "examples": 2, "controls": 5, "top_k_prefixes": 2}
    config["report"] = {"control": "none"}
    (tmp_path / "authors.yaml").write_text(yaml.safe_dump(config))
    make_run(tmp_path, tmp_path / "authors.yaml")
    assert (tmp_path / "reports/authors/index.html").exists()
    matching = tables.read(tmp_path / "results/authors/refinement/figure_9_residual_agreement.csv")["share"]
    assert matching.iloc[-1] > 0.5 > matching.iloc[0]  # a trained model's residual comes to hold its prediction
