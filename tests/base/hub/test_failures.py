"""What ffkv says when the hub refuses, is out of order or out of reach; and that the same start succeeds afterwards."""

import hashlib
import json
import re
import subprocess

import pytest
from forks import with_forks

from ffkv.base.hub import fetch
from tests.base.hub.contents import json_dataset, sentences

pytestmark = pytest.mark.slow

LOGIN = "hf auth login"
NOT_THE_HUB = "is not the hub, but perhaps the login page"
CHANGED = "arrived with another (content|size) than the hub"
OUT_OF_REACH = "cannot be reached .* Check the network"
# What is said of each fault of all answers; None: the clients get on.
TOLD: dict[int | str, str] = {
    401: LOGIN,
    403: LOGIN,
    404: "status 404. Look at its page",
    429: "Wait some minutes",
    503: "out of order .503.. Start again later",
    "stall": OUT_OF_REACH,
    "reset": OUT_OF_REACH,
    "truncate": OUT_OF_REACH,
    "garbage": NOT_THE_HUB,
    "html": NOT_THE_HUB,
}
STAGES = {
    "commit": ("/revision/", None),
    "files": ("/tree/", None),
    "head": ("safetensors", "HEAD"),
    "body": ("safetensors", "GET"),
}
OF_BODIES = {"garbage": CHANGED, "html": CHANGED, "checksum": CHANGED}


def cases() -> dict[str, tuple[str, int | str, str]]:
    """Stage, fault and what is said, by the name of a repository."""
    told = {stage: dict(TOLD) for stage in STAGES}
    told["body"] |= OF_BODIES
    for kind in ("garbage", "truncate"):  # an answer without a body
        del told["head"][kind]
    return {f"{stage}-{kind}": (stage, kind, text) for stage in told for kind, text in told[stage].items()}


def test_each_fault_is_one_sentence_and_the_same_start_succeeds_when_it_is_over(hub, child):
    for name, (stage, kind, _) in cases().items():
        hub.model(f"someone/{name}").push(
            {"config.json": json.dumps({"n": name}).encode(), "model.safetensors": name.encode() * 100}
        )
        path, method = STAGES[stage]
        hub.fail(rf"/{name}/.*{path}" if stage in ("head", "body") else rf"/{name}{path}", kind, method=method)
    hub.model("someone/well").push({"config.json": b"{}", "model.safetensors": b"well"})
    hub.when("/over/faults", hub.faults.clear)
    code = f"""
from concurrent.futures import ThreadPoolExecutor
import huggingface_hub.file_download
from ffkv.base.hub.commit import resolve_model
from ffkv.base.hub.fetch import local_model
huggingface_hub.file_download._ETAG_RETRY_TIMEOUT = 1
def read(name):
    try:
        folder = Path(local_model(resolve_model(Model(checkpoint="someone/" + name))))
        return (folder / "model.safetensors").read_bytes().decode()
    except UserError as error:
        return str(error)
names = {list(cases())}
read("well")  # makes the client that the threads share
with ThreadPoolExecutor(24) as pool:
    first = list(pool.map(read, names))
    over("faults")
    print(json.dumps([first, list(pool.map(read, names))]))
"""
    first, then = child(code, timeout=4)  # of 24 threads on a busy machine
    for (name, (_, _, told)), refusal in zip(cases().items(), first, strict=True):
        assert re.fullmatch(f"The model someone/{name} cannot be (read|fetched): .*{told}.*|.*{told}.*", refusal), (
            refusal
        )
        assert len(refusal) < 350 and refusal.endswith(".") and "\n" not in refusal, refusal
    assert then == [name * 100 for name in cases()]


def test_who_may_not_read_is_told_what_to_do(hub, child, model_folders):
    """Gated and private models and data sets, wrong names and revisions, with no token, a wrong one and a good one."""
    hub.tokens = {"hf_good": {"someone/gated", "someone/private", "someone/tiny", "someone/words"}, "hf_other": set()}
    for name, rights in {"gated": {"gated": "auto"}, "private": {"private": True}, "tiny": {}}.items():
        hub.model(f"someone/{name}", **rights).push_folder(model_folders())
    hub.model("someone/tiny").tags["v1"] = hub.model("someone/tiny").branches["main"]
    hub.dataset("someone/words", gated="manual").push(json_dataset({"train": sentences(20)}))
    code = """
from ffkv.corpus.sources import read_documents
from ffkv.model.checkpoint.load import load_checkpoint, load_form
def count(**settings):
    return len(list(read_documents(Corpus(dataset="someone/words", validation_share=1e-9, **settings), "train")))
def load(read, name, revision="main"):
    return type(read(Model(checkpoint=name, revision=revision))).__name__
told = []
for token in ("", "hf_wrong", "hf_other", "hf_good"):
    os.environ["HF_TOKEN"] = token
    told.append([attempt(load, read, "someone/" + name) for read in (load_form, load_checkpoint) for name in ("gated", "private")])
    told[-1] += [attempt(count, limit=limit) for limit in (3, 0)]
os.environ["HF_TOKEN"] = ""
told.append([
    attempt(load, load_form, "someone/unknown"), attempt(load, load_form, "someone/tiny", "v2"),
    attempt(load, load_form, "some one/x"), attempt(load, load_form, "someone/tiny", "0" * 40),
])
print(json.dumps(told))
"""
    anyone, wrong, other, good, names = child(code)
    login = "log in with `hf auth login` or set HF_TOKEN"
    ask = f"it is gated. Ask for access on its page, {hub.url}/someone/gated, then {login}"
    for told in (anyone, other):
        assert ask in told[0]["refusal"] and ask in told[2]["refusal"], told
        assert "or it is private" in told[1]["refusal"] and login in told[1]["refusal"], told
        for case in told[4:]:
            assert f"{hub.url}/datasets/someone/words, then {login}" in case["refusal"], case
    for case in wrong:
        assert "refuses access (401)" in case["refusal"] and "The token" in case["refusal"], case
    assert [case["answer"] for case in good] == ["LlamaForCausalLM"] * 4 + [3, 20], good
    unknown, revision, blank, commit = [case["refusal"] for case in names]
    assert "The model someone/unknown cannot be read: the hub has no model of this name" in unknown
    assert "it has no revision 'v2'. It has main, v1." in revision
    assert "is neither a local folder nor a name that the hub can have" in blank
    assert f"it has no revision '{'0' * 40}'. It has main, v1." in commit
    for case in [*anyone, *wrong, *other, *names]:
        assert case["refusal"].count("\n") == 0 and len(case["refusal"]) < 420, case


def test_a_command_that_fails_leaves_nothing_and_the_same_command_succeeds(hub, cache, model_folders, tmp_path):
    """The exit code, the one sentence, and no file."""
    hub.model("someone/tiny").push_folder(model_folders())
    hub.fail(r"resolve/.*\.safetensors", "checksum", method="GET")
    out = tmp_path / "run"
    out.mkdir()
    command = ["ffkv", "model", "--checkpoint", "someone/tiny"]
    command += ["--output", out / "model", "--output-values", out / "values.h5"]

    def start() -> subprocess.CompletedProcess:
        environment = with_forks(hub.environment(cache))
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)

    failed = start()
    assert failed.returncode == 2
    fetching, *_, last = failed.stderr.strip().splitlines()
    assert fetching.startswith("Fetching ") and "of the model someone/tiny, revision main, commit " in fetching
    assert last.startswith("ffkv: model.safetensors of someone/tiny arrived with another content")
    assert "Traceback" not in failed.stderr and not list(out.iterdir())
    hub.faults.clear()
    done = start()
    assert done.returncode == 0, done.stderr
    assert "Fetching 1 file, " in done.stderr  # the others were kept
    assert {"model", "values.h5"} <= {path.name for path in out.iterdir()}


ETAGS = [
    (hashlib.sha256(b"x\n").hexdigest(), True),
    (hashlib.sha1(b"blob 2\0x\n").hexdigest(), True),
    (hashlib.sha1(b"x\n").hexdigest(), True),  # as proxies of companies give it
    (hashlib.sha1(b"x\n").hexdigest().upper(), True),
    (hashlib.sha1(b"y\n").hexdigest(), False),
    (hashlib.sha256(b"y\n").hexdigest(), False),
    (hashlib.md5(b"y\n").hexdigest(), True),  # forms that ffkv does not know say nothing
    ("5d41402abc4b2a76b9719d911017c592-3", True),
    ("65a1b2c3-1f4", True),
]


def test_a_file_is_damaged_only_if_a_known_form_of_etag_says_so(subtests, tmp_path):
    for name, whole in ETAGS:
        with subtests.test(name=name, whole=whole):
            (tmp_path / name).write_bytes(b"x\n")
            assert fetch._is_whole(tmp_path / name) == whole


def test_a_folder_of_the_cache_that_cannot_be_looked_up_is_not_called_one_that_exists(hub, child):
    hub.model("someone/closed").push({"config.json": b"{}", "model.safetensors": b"weights"})
    code = """
from ffkv.base.hub.commit import resolve_model
from ffkv.base.hub.fetch import local_model
real = os.stat
def stat(path, *given, **more):
    if str(path).endswith("/blobs"):
        raise PermissionError(13, "Permission denied", str(path))
    return real(path, *given, **more)
os.stat = stat
print(json.dumps(attempt(lambda: local_model(resolve_model(Model(checkpoint="someone/closed"))))))
"""
    assert "blobs cannot be looked up: Permission denied" in child(code)["refusal"]
