"""The emulated hub with its clients as they are: huggingface_hub, transformers and datasets, each in its own process."""

import hashlib
import json

import pytest
from hub.contents import chats, json_dataset, parquet_dataset, sentences
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.slow

# Reports what a call returns, or the exception and its status.
TRY = """
import json
def attempt(call):
    try:
        return call()
    except Exception as error:
        response = getattr(error, "response", None)
        return [type(error).__name__, response.status_code if response is not None else None]
"""
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


def test_what_the_hub_says_of_a_repository(hub, child):
    hub.tokens = {"hf_good": set()}
    hub.page_size = 2
    repository = hub.dataset("someone/words")
    first = repository.push({"README.md": b"# A", "data/train/0.parquet": b"12345"}, "Begin")
    repository.tags["v1"] = first
    latest = repository.push({"data/train/1.parquet": b"67", "é x.txt": b"8"}, "Go on")
    repository.push({"more": b"9"}, branch="refs/pr/1")
    code = """
import json
from huggingface_hub import HfApi
api, this = HfApi(), {"repo_id": "someone/words", "repo_type": "dataset"}
facts = api.repo_info(**this, files_metadata=True)
tree = list(api.list_repo_tree(**this, recursive=True, expand=True))
refs = api.list_repo_refs(**this, include_pull_requests=True)
paths = api.get_paths_info(**this, paths=["data", "data/train/1.parquet", "é x.txt", "nothing"])
print(json.dumps({
    "sha": [facts.sha, api.repo_info(**this, revision="v1").sha, api.repo_info(**this, revision="refs/pr/1").sha],
    "large": {one.rfilename: [one.size, one.lfs and one.lfs.sha256] for one in facts.siblings},
    "tree": [[type(one).__name__, one.path, one.last_commit.title] for one in tree],
    "top": [one.path for one in api.list_repo_tree(**this, revision="v1")],
    "below": [one.path for one in api.list_repo_tree(**this, path_in_repo="data/train")],
    "paths": [one.path for one in paths],
    "refs": [[one.name for one in refs.branches + refs.tags], [one.ref for one in refs.pull_requests]],
    "commits": [one.commit_id for one in api.list_repo_commits(**this)],
    "who": api.whoami(token="hf_good")["name"],
}))
"""
    told = printed(child(code))
    assert told["sha"] == [latest, first, repository.branches["refs/pr/1"]]
    assert told["large"] == {
        "README.md": [3, None],
        "data/train/0.parquet": [5, hashlib.sha256(b"12345").hexdigest()],
        "data/train/1.parquet": [2, hashlib.sha256(b"67").hexdigest()],
        "é x.txt": [1, None],
    }
    assert told["tree"] == [
        ["RepoFile", "README.md", "Begin"],
        ["RepoFolder", "data", "Go on"],
        ["RepoFolder", "data/train", "Go on"],
        ["RepoFile", "data/train/0.parquet", "Begin"],
        ["RepoFile", "data/train/1.parquet", "Go on"],
        ["RepoFile", "é x.txt", "Go on"],
    ]
    assert len(hub.asked("tree.*expand=true")) == 3  # pages of two entries
    assert told["top"] == ["README.md", "data"]
    assert told["below"] == ["data/train/0.parquet", "data/train/1.parquet"]
    assert told["paths"] == ["data", "data/train/1.parquet", "é x.txt"]
    assert told["refs"] == [["main", "v1"], ["refs/pr/1"]]
    assert told["commits"] == [latest, first]
    assert told["who"] == "someone"


def test_who_may_read_what(hub, child):
    hub.tokens = {"hf_good": {"someone/gated", "someone/private"}, "hf_other": set()}
    for repository in (
        hub.model("someone/open"),
        hub.model("someone/gated", gated="auto"),
        hub.model("someone/private", private=True),
    ):
        repository.push({"x.txt": b"12"})
    cases = [
        ("open", None, "x.txt", "main", "12"),
        ("open", None, "y.txt", "main", ["RemoteEntryNotFoundError", 404]),
        ("open", None, "x.txt", "v9", ["RevisionNotFoundError", 404]),
        ("open", "hf_wrong", "x.txt", "main", ["HfHubHTTPError", 401]),
        ("gated", None, "x.txt", "main", ["GatedRepoError", 401]),
        ("gated", "hf_other", "x.txt", "main", ["GatedRepoError", 403]),
        ("gated", "hf_good", "x.txt", "main", "12"),
        ("private", None, "x.txt", "main", ["RepositoryNotFoundError", 401]),
        ("private", "hf_other", "x.txt", "main", ["RepositoryNotFoundError", 404]),
        ("private", "hf_good", "x.txt", "main", "12"),
        ("unknown", None, "x.txt", "main", ["RepositoryNotFoundError", 401]),
        ("unknown", "hf_good", "x.txt", "main", ["RepositoryNotFoundError", 404]),
    ]
    code = f"""{TRY}
from huggingface_hub import HfApi, hf_hub_download
def read(number, name, token, file, revision):
    return open(hf_hub_download("someone/" + name, file, revision=revision, token=token, cache_dir=str(number))).read()
told = [attempt(lambda: read(number, *case[:-1])) for number, case in enumerate({cases})]
told.append(attempt(lambda: HfApi().model_info("someone/gated").gated))
told.append(attempt(lambda: HfApi().model_info("someone/private")))
print(json.dumps(told))
"""
    *told, gated, private = printed(child(code))
    assert told == [case[-1] for case in cases]
    assert gated == "auto"  # anyone may know of a gated repository
    assert private == ["RepositoryNotFoundError", 401]
    told = child("import huggingface_hub, json; print(json.dumps(huggingface_hub.get_token()))", token="hf_a")
    assert printed(told) == "hf_a"


def test_a_snapshot_has_all_bytes_and_redirects_keep_the_token(hub, child, model_folders):
    """Large files come from another host, to which the token is not sent."""
    folder = model_folders()
    hub.tokens = {"hf_good": {"someone/tiny"}}
    hub.redirects = True
    hub.model("someone/tiny", gated="auto").push_folder(folder)
    code = """
import hashlib, json
from pathlib import Path
from huggingface_hub import HfFileSystem, get_safetensors_metadata, snapshot_download
found = Path(snapshot_download("someone/tiny"))
with HfFileSystem().open("someone/tiny/model.safetensors", block_size=64) as file:
    file.seek(1000)
    part = file.read(10).hex()
parameters = sum(get_safetensors_metadata("someone/tiny").parameter_count.values())
print(json.dumps([{path.name: path.read_bytes().hex() for path in found.iterdir()}, part, parameters]))
"""
    files, part, parameters = printed(child(code, token="hf_good"))
    assert files == {path.name: path.read_bytes().hex() for path in folder.iterdir()}
    assert part == (folder / "model.safetensors").read_bytes()[1000:1010].hex()
    assert parameters == sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert {request.token for request in hub.asked("^/storage/")} == {None}
    assert {request.token for request in hub.asked("^/someone/tiny/resolve/")} == {"hf_good"}
    assert [request.range for request in hub.asked("^/storage/", "GET") if request.range]


def test_datasets_load_stream_and_load_again_offline(hub, child):
    """Configs and splits of parquet files, compressed JSON lines, conversations; at main and at a commit."""
    words = hub.dataset("someone/words")
    old = words.push(parquet_dataset({"small": {"train": sentences(9)}}))
    rows = {"train": sentences(40), "validation": sentences(8, 40)}
    words.push(parquet_dataset({"small": rows, "large": {"train": sentences(60)}}, 4, group_rows=4), replace=True)
    for compression in ("gz", "zst"):
        hub.dataset(f"someone/{compression}").push(json_dataset({"train": sentences(20)}, compression, count=3))
    hub.dataset("someone/chats").push(json_dataset({"train": chats(3)}))
    code = f"""
import json
from datasets import load_dataset
old = load_dataset("someone/words", "small", revision="{old}", split="train")
small = load_dataset("someone/words", "small")
print(json.dumps([
    list(old),
    {{split: list(small[split]) for split in small}},
    *[list(load_dataset("someone/" + name, split="train")) for name in ("gz", "zst", "chats")],
]))
"""
    expected = [sentences(9), rows, sentences(20), sentences(20), chats(3)]
    assert printed(child(code)) == expected
    assert not hub.asked("large/")

    hub.requests.clear()
    stream = """
import json
from datasets import load_dataset
rows = load_dataset("someone/words", "large", split="train", streaming=True).take(5)
packed = load_dataset("someone/zst", split="train", streaming=True).take(3)
print(json.dumps([list(rows), list(packed)]))
"""
    assert printed(child(stream, cache="another")) == [sentences(5), sentences(3)]
    # datasets reads one table ahead: a row group, or the next of these small files.
    files = hub.dataset("someone/words").find("main").files
    assert {request.path.rpartition("/")[2] for request in hub.asked(r"\.(parquet|zst)$", "GET")} == {
        "train-00000-of-00004.parquet",
        "train-00000-of-00003.jsonl.zst",
        "train-00001-of-00003.jsonl.zst",
    }
    assert 0 < hub.sent("large/train-00000") <= 2 * len(files["large/train-00000-of-00004.parquet"].content)

    # Offline, datasets takes what was prepared last, whatever the revision.
    hub.stop()
    assert printed(child(code, HF_HUB_OFFLINE="1")) == [rows["train"], *expected[1:]]


def test_what_the_client_makes_of_each_fault(hub, child):
    """huggingface_hub tries again after some faults, gives up after others, and does not see wrong bytes."""
    survived = [429, "truncate", "stall", "stall halfway"]
    fatal = {500: ["HfHubHTTPError", 500], 503: ["HfHubHTTPError", 503], "reset": ["ReadError", None]}
    lasting = {401: "HfHubHTTPError", 403: "LocalEntryNotFoundError", 404: "LocalEntryNotFoundError"}
    lasting["html"] = "LocalEntryNotFoundError"  # no commit and no hash in the headers
    wrong = ["garbage", "checksum"]
    # No two are alike: the client takes a file from its cache if it knows the hash. It keeps pieces of 10 MiB, and
    # resumes after those it has, so that half of a file must be more.
    kinds = [*survived, *fatal, *lasting, *wrong]
    contents = {kind: f"{kind}".encode() * 1000 for kind in kinds}
    contents |= {"truncate": bytes(24_000_000), "stall halfway": b"1" * 24_000_000}
    hub.model("someone/tiny").push({f"{kind}.bin": content for kind, content in contents.items()})
    for kind in kinds:
        once = kind in survived or kind in fatal
        hub.fail(f"/{kind}.bin", kind, times=1 if once else None, method=None if kind in lasting else "GET")
    hub.fail("/api/models/someone/tiny/revision/v1", "html")
    hub.fail("/api/models/someone/tiny/revision/v2", 500)
    code = f"""{TRY}
from concurrent.futures import ThreadPoolExecutor
import hashlib
from huggingface_hub import HfApi, hf_hub_download
def found(content):
    return [hashlib.sha256(content).hexdigest(), len(content)]
def read(kind):
    return attempt(lambda: found(open(hf_hub_download("someone/tiny", f"{{kind}}.bin"), "rb").read()))
with ThreadPoolExecutor(16) as pool:
    told = list(pool.map(read, {kinds}))
told += [attempt(lambda: HfApi().model_info("someone/tiny", revision=name)) for name in ("v1", "v2")]
print(json.dumps([told, [read(kind) for kind in {list(fatal)}]]))
"""
    (*told, html, failed), again = printed(child(code, timeout=2))
    found = dict(zip(kinds, told))
    right = {kind: [hashlib.sha256(content).hexdigest(), len(content)] for kind, content in contents.items()}
    assert {kind: found[kind] for kind in survived} == {kind: right[kind] for kind in survived}
    assert {kind: found[kind] for kind in fatal} == fatal
    assert again == [right[kind] for kind in fatal]
    assert {kind: found[kind][0] for kind in lasting} == lasting
    flipped = contents["checksum"][:-1] + bytes([contents["checksum"][-1] ^ 0xFF])
    assert found["checksum"] == [hashlib.sha256(flipped).hexdigest(), len(flipped)]
    assert found["garbage"][0] != right["garbage"][0] and found["garbage"][1] == right["garbage"][1]
    assert html == ["JSONDecodeError", None]
    assert failed == ["HfHubHTTPError", 500]
    for kind in ("truncate", "stall halfway"):
        first, second = hub.asked(f"/{kind}.bin", "GET")
        assert (first.sent, second.range, second.sent) == (12_000_000, f"bytes={10 << 20}-", 24_000_000 - (10 << 20))
    assert [request.status for request in hub.asked("/reset.bin", "GET")] == [0, 200]


def test_a_push_in_the_middle_leaves_a_resolved_revision_as_it_was(hub, child):
    repository = hub.model("someone/tiny")
    repository.push({"a.txt": b"1", "b.txt": b"1"})
    hub.when("resolve/.*/a.txt", lambda: repository.push({"a.txt": b"2", "b.txt": b"2"}))
    code = """
import json
from huggingface_hub import hf_hub_download, resolve_revision
revision = resolve_revision("someone/tiny")
names = [("a.txt", revision), ("b.txt", revision), ("b.txt", "main")]
print(json.dumps([open(hf_hub_download("someone/tiny", name, revision=one)).read() for name, one in names]))
"""
    assert printed(child(code)) == ["1", "1", "2"]
    assert len(repository.commits) == 2
