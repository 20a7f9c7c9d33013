"""What `ffkv plan` says of the hub: commits, downloads, and what would fail later."""

import pytest
from hub.attempts import BEGIN, reported
from hub.contents import parquet_dataset, sentences

PLAN = """
from ffkv.plan.hub import find_downloads, resolve_commits
from ffkv.workflow.jobs import Job
from ffkv.plan.text import measure_text
from ffkv.plan.shape import load_model_form
from ffkv.base.settings import Settings

def plan(tokens=None, **corpus):
    settings = Settings(model={"checkpoint": "someone/tiny"}, corpus=corpus)
    jobs = [Job("resolve_commit", "mine", 1, "", [], [f"commits/{kind}.json"], False) for kind in ("model", "dataset")]
    commits = resolve_commits(settings, jobs)
    found = find_downloads(settings, commits, {})
    form = load_model_form(settings, commits["model"])
    splits, _ = measure_text(settings, form, {}, tokens or {"train": 5000, "validation": 500}, commits)
    return [one._asdict() for one in found], [str(one) for one in found], splits["train"].tokens
"""


@pytest.mark.slow
def test_downloads_are_told_and_nothing_large_is_fetched(hub, child, model_folders):
    folder = model_folders("gpt2", "sharded")
    model = hub.model("someone/tiny").push_folder(folder)
    files = parquet_dataset({"default": {"train": sentences(300), "test": sentences(50, 300)}}, count=3)
    dataset = hub.dataset("someone/words").push(files)
    hub.dataset("someone/gated", gated="manual").push(files)
    code = f"""{BEGIN}{PLAN}
words = "someone/words"
print(json.dumps([
    attempt(plan, dataset=words), attempt(plan, dataset=words, limit=20),
    attempt(plan, dataset=words, train=["nothing"]), attempt(plan, dataset="someone/gated"),
    attempt(plan, dataset="someone/nothing"), attempt(plan, dataset=words, config="other"),
]))
"""
    whole, limited, *refused = reported(child(code))
    (weights, rows), told, tokens = whole["answer"]
    assert (weights["commit"], rows["commit"]) == (model, dataset)
    # What tells how the model is built was fetched for the plan; the plan told before that.
    assert weights["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert rows["files"] == 3  # of the split `train`: the run reads no `test`
    assert rows["bytes"] == sum(len(content) for name, content in files.items() if "train" in name)
    assert f"someone/words, commit {dataset}: " in told[1] and "in 3 files to download" in told[1]
    assert tokens == 5000
    assert limited["answer"][0][1]["streamed"] and limited["answer"][0][1]["bytes"] == 0
    assert not hub.asked(r"model-.*\.safetensors$", "GET")
    split, gated, missing, config = [case["refusal"] for case in refused]
    assert "has no split nothing. It has test, train." in split
    assert "it is gated. Ask for access on its page" in gated
    assert "the hub has no data set of this name" in missing
    assert "other" in config and "default" in config
