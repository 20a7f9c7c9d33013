"""The emulated hub with its clients as they are: huggingface_hub and transformers, in a process of their own."""

import hashlib
import json

import pytest
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow

LOAD = """
import hashlib, json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
def digest(name, revision):
    state = AutoModelForCausalLM.from_pretrained(name, revision=revision).state_dict()
    return hashlib.sha256(b"".join(state[key].numpy().tobytes() for key in sorted(state))).hexdigest()
"""


def printed(done):
    """What a child printed, as JSON."""
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def weights(folder) -> str:
    state = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return hashlib.sha256(b"".join(state[key].numpy().tobytes() for key in sorted(state))).hexdigest()


def test_models_of_every_form_and_revision_load_and_load_again_offline(hub, child, model_folders):
    """Shards, one file, and pytorch_model.bin; a branch, a commit, a short commit, a tag."""
    tiny = hub.model("someone/tiny")
    first = tiny.push_folder(model_folders(form="sharded"))
    tiny.tags["v1"] = first
    latest = tiny.push_folder(model_folders(form="sharded", seed=1))
    hub.model("someone/bin").push_folder(model_folders("gpt2", form="bin"))
    revisions = ["main", first, first[:8], "v1"]
    code = f"""{LOAD}
from urllib.request import urlopen
import huggingface_hub.constants
from huggingface_hub import resolve_revision
def everything():
    loaded = [digest("someone/tiny", revision) for revision in {revisions}] + [digest("someone/bin", "main")]
    resolved = [resolve_revision("someone/tiny", revision=revision).resolved for revision in {revisions}]
    return [loaded, resolved, AutoTokenizer.from_pretrained("someone/tiny")("w1 w2").input_ids]
first = everything()
try:
    urlopen("{hub.url}/goodbye")
except OSError:
    huggingface_hub.constants.HF_HUB_OFFLINE = True  # as the variable does, without another start of transformers
    print(json.dumps([first, everything()]))
"""
    hub.when("goodbye", hub.stop)
    told, again = printed(child(code))
    old, new, other = (weights(model_folders(*kind)) for kind in [("llama",), ("llama", "sharded", 1), ("gpt2",)])
    assert old != new
    assert told == again == [[new, old, old, old, other], [latest, first, first, first], [0, 2, 3]]
    shard = "model-00001-of-"
    assert len(hub.asked(f"{first}/{shard}", "GET")) == len(hub.asked(f"{latest}/{shard}", "GET")) == 1
    assert hub.asked("")[-1].path == "/goodbye"
