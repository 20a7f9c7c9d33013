"""What `ffkv plan` reads of the hub, and what it refuses because the run would."""

import pytest

from tests.base.hub.contents import parquet_dataset, sentences

PLAN = """
from ffkv.branches.settings import Settings
from ffkv.plan.facts import inspect_run
from ffkv.workflow.jobs import Job

def plan(tokens=5000, **corpus):
    settings = Settings(model={"checkpoint": "someone/tiny"}, corpus=corpus)
    jobs = [Job("resolve_commit", "mine", 1, "", [], [f"commits/{kind}.json"], False) for kind in ("model", "dataset")]
    found = inspect_run(settings, {"resolve_commit": jobs}, tokens)
    return found.download, found.shape.parameters, found.text["train"].tokens
"""


@pytest.mark.slow
def test_downloads_are_counted_and_nothing_large_is_fetched(hub, child, model_folders):
    hub.model("someone/tiny").push_folder(folder := model_folders("gpt2", "sharded"))
    files = parquet_dataset({"default": {"train": sentences(300), "test": sentences(50, 300)}}, count=3)
    hub.dataset("someone/words").push(files)
    hub.dataset("someone/gated", gated="manual").push(files)
    code = f"""{PLAN}
words = "someone/words"
print(json.dumps([
    attempt(plan, dataset=words), attempt(plan, dataset=words, limit=20), attempt(plan, dataset=words, train=["nothing"]),
    attempt(plan, dataset="someone/gated"), attempt(plan, dataset="someone/nothing"),
    attempt(plan, dataset=words, config="other"),
]))
"""
    whole, streamed, *refused = child(code)
    download, parameters, tokens = whole["answer"]
    # What tells how the model is built was fetched for the plan; the plan counted before that. No run reads `test`.
    of_model = sum(path.stat().st_size for path in folder.iterdir())
    assert download == of_model + sum(len(content) for name, content in files.items() if "train" in name)
    assert parameters > 1000 and tokens == 5000
    assert streamed["answer"][0] < of_model
    assert not hub.asked(r"model-.*\.safetensors$", "GET") and not hub.asked(r"\.parquet$", "GET")
    split, gated, missing, config = [case["refusal"] for case in refused]
    assert "has no split nothing. It has test, train." in split
    assert "it is gated. Ask for access on its page" in gated
    assert "the hub has no data set of this name" in missing
    assert "other" in config and "default" in config
