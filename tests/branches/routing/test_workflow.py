"""A whole run of a model with experts: rules, files, report, Python, explorer."""

import json

import pytest
from support import make_run, random_checkpoint, random_sentences, settings_file

import ffkv
from ffkv.base.errors import UserError
from ffkv_explorer.shelf import open_shelf
from tests.ffkv_explorer.conftest import Visitor, text_of

pytestmark = pytest.mark.workflow


def test_a_run_of_a_model_with_experts(tmp_path):
    checkpoint = random_checkpoint(tmp_path / "checkpoint", "mixtral")
    for split, seed in (("train", 1), ("validation", 2)):
        sentences = random_sentences(seed, 200)
        (tmp_path / f"{split}.txt").write_text("\n".join(sentences))
    corpus = {"dataset": "files", "train": "train.txt", "validation": "validation.txt", "splitter": "line"}
    less = {"keys": {"per_layer": 3}, "prefixes": {"count": 100}, "shards": 1, "layer_groups": 1}
    pairs = [
        {"clean_prefix": f"w1 w{n}", "patch_prefix": f"w2 w{n}", "clean_answer": " w3", "patch_answer": " w4"}
        for n in range(5, 25)
    ]
    (tmp_path / "pairs.jsonl").write_text(
        "\n".join(map(json.dumps, [{**pair, "group": f"{n}"} for n, pair in enumerate(pairs)]))
    )
    small = {
        "candidates": 2,
        "controls": 4,
        "directions": 1,
        "sets": [1],
        "random_sets": 1,
        "missed": 0,
        "minimum_accuracy": 0,
    }
    less |= {"intervention": {"memories": 0}, "routing": {"tokens": 500}}
    less |= {"behaviours": {"words": {"prompts": "pairs.jsonl", **small}}}
    make_run(
        tmp_path,
        settings_file(tmp_path, model={"checkpoint": str(checkpoint)}, corpus=corpus, runs={"experts": {}}, **less),
    )
    run = ffkv.open(tmp_path / "results/experts")
    load = run.table("routing_load")
    assert load["layer"].tolist() == [0, 1] and (load["experts"] == 4).all() and (load["per_token"] == 2).all()
    page = (tmp_path / "reports/experts/index.html").read_text()
    assert "How evenly tokens are sent to experts" in page and "effective share of experts" in page

    expert = run.expert("L1.e2")
    assert repr(expert) == "<Expert L1.e2 of experts>"
    own = expert.memories
    assert own["memory"].sort_values().tolist() == [*range(48, 72)] and (own["layer"] == 1).all()
    assert own["contribution"].is_monotonic_decreasing
    assert (
        expert.load["share"].item() == run.table("routing_experts").query("layer == 1 and expert == 2")["share"].item()
    )
    assert expert.patterns["q"].is_monotonic_increasing
    effects = expert.effects
    assert set(effects["change"]) == {"removed", "renormalised", "replaced"} and (effects["behaviour"] == "words").all()
    every = run.table("behaviour_experts").query("change == 'removed' and reach == 'total'")
    assert every.groupby("layer")["clean"].sum().tolist() == pytest.approx([2, 2])  # each token has two experts
    assert every["effect"].notna().sum() == (every["active"] > 0).sum() > 0
    assert "Experts of words" in page and "Sets of experts of words" in page
    assert run.memory("L1.50").expert == "L1.e2" and run.memory("L1.50").unit == "expert 2, unit 2"
    for wrong, told in {
        "L1.e4": "experts 0 to 3",
        "L2.e0": "layers 0 to 1",
        "L1.2": "Write expert 5 of layer 3",
    }.items():
        with pytest.raises(UserError, match=told):
            run.expert(wrong)
    visitor = Visitor(open_shelf([run.folder]))
    shown = text_of(visitor.get("/r/experts/e/L1.e2"))
    assert "expert 2 of 4 in layer 1" in shown and "of tokens are sent to it" in shown and "All 24 memories" in shown
    assert ("What it does on behaviours" in shown) and "renormalised" in shown
    assert 'href="/r/experts/e/L1.e2"' in visitor.get("/r/experts/m/1/50")
    assert "24 memories" in text_of(visitor.get("/r/experts/memories?expert=L1.e2"))
    assert "Of the expert" in visitor.get("/r/experts/memories")
