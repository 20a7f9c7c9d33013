"""What ffkv says when the hub refuses, is out of order or out of reach; and that the same start succeeds afterwards."""

import json
import re

from hub.attempts import BEGIN, reported

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
    hub.when("/over/faults", lambda: [setattr(fault, "times", 0) for fault in hub.faults])
    code = f"""{BEGIN}
from concurrent.futures import ThreadPoolExecutor
import huggingface_hub.file_download
from ffkv.hub.commit import resolve_model
from ffkv.hub.fetch import local_model
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
    done = child(code, timeout=1)
    first, then = reported(done)
    for (name, (_, _, told)), refusal in zip(cases().items(), first, strict=True):
        assert re.fullmatch(f"The model someone/{name} cannot be (read|fetched): .*{told}.*|.*{told}.*", refusal), (
            refusal
        )
        assert len(refusal) < 350 and refusal.endswith(".") and "\n" not in refusal, refusal
    assert then == [name * 100 for name in cases()]
    assert "thrown while requesting" not in done.stderr  # the library's own log
