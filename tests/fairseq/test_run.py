"""A whole run through Snakemake: every step is a process of its own, and has to know the model's class."""

import json

import numpy as np
import pytest
import yaml
from support import ROOT, make_run, random_sentences

from ffkv.base.files import tables
from ffkv.model.anatomy import read_anatomy

pytestmark = pytest.mark.workflow
SHARED = ROOT.parent / "shared"


@pytest.mark.skipif(
    (SHARED / "oracle/model").exists() and (SHARED / "wikitext2/valid.txt").exists(),
    reason="the authors' own checkpoint goes through the same run, see tests/workflow/test_checkpoints.py",
)
def test_a_run_of_the_papers_settings_on_a_small_checkpoint(write_checkpoint, tmp_path):
    """configs/paper.yaml with another checkpoint, another corpus, and no more jobs than these need."""
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layers=3, vocabulary=200)
    for split, seed in (("train", 0), ("valid", 1)):
        sentences = random_sentences(seed, 300, words=200)
        (tmp_path / f"wiki.{split}.tokens").write_text(
            " \n".join(f" {sentence} . {sentence}" for sentence in sentences)
        )
    config = yaml.safe_load((ROOT / "configs/paper.yaml").read_text())
    config["model"]["checkpoint"] = str(checkpoint)
    files = {"dataset": "files", "train": "wiki.train.tokens", "validation": "wiki.valid.tokens"}
    config["corpus"] = {name: value for name, value in config["corpus"].items() if name != "config"} | files
    (tmp_path / "paper.yaml").write_text(yaml.safe_dump(config | {"shards": 1, "layer_groups": 1}))
    make_run(tmp_path, tmp_path / "paper.yaml")
    results = tmp_path / "results" / "paper"
    anatomy = read_anatomy(results / "model")
    assert (anatomy.architecture, anatomy.vocabulary, len(anatomy.layers)) == ("FairseqForCausalLM", 200, 3)
    agreement = tables.read(results / "values/figure_4_agreement.csv")
    assert (agreement[agreement.source == "trigger"]["keys"] == 24).all()
    breakdown = tables.read(results / "refinement/figure_11_breakdown.csv").groupby("layer")["share"].sum()
    np.testing.assert_allclose(breakdown, 1)
    assert json.loads((results / "settings.json").read_text())["triggers"]["include_empty_prefix"]
    assert (tmp_path / "reports/paper/index.html").exists()
