"""An emulated Hugging Face hub on 127.0.0.1, for huggingface_hub, transformers and datasets as they are.

    with Hub() as hub:
        first = hub.model("someone/tiny").push_folder(folder)
        hub.dataset("someone/words").push({"README.md": b"...", "data/train-00000.parquet": b"..."})
        subprocess.run([...], env=hub.environment(tmp_path / "cache"))
        assert hub.sent("model.safetensors") == size

Repositories (`hub.repositories`): `push`, `push_folder`, `branches`, `tags`, `private`, `gated`. A commit's hash follows
from content, message and history alone. `hub.tokens` says which repositories a token may access.

Requests: `hub.requests` is a list of what was asked and answered, in the order of arrival; `hub.asked(pattern)` and
`hub.sent(pattern)` select by path; `hub.requests.clear()` begins anew.

Faults: `hub.fail(pattern, kind, times, method, after)` spoils answers whose path matches. Kinds: a status, "garbage",
"checksum" (one byte is another), "html" (a login page with status 200), "truncate", "stall", "stall halfway", "reset".
`hub.when(pattern, action)` does something when a path is asked for, as a push in the middle of a run. `hub.stop()` takes the
hub off the network, and `hub.start()` brings it back under the same address.

`hub.environment(cache)` is the environment of a child process. `hub.contents` makes tiny models and data sets.

Emulated: information on repositories, trees with pages, paths, refs, files with ranges, gates, private ones. Not
emulated: redirects, xet, uploads, search, the data set viewer (its address does not exist: the clients go on without).
"""

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hub.repositories import Repository
from hub.server import FAULTS, Fault, Request, Server


@dataclass
class Hook:
    """An action that is done before requests whose path matches are answered, a number of times."""

    pattern: str
    action: Callable[[], object]
    times: int


class Hub:
    """An emulated hub. As a context manager it is on the network between start and end.

    port: of its address; 0 for any. tokens: names of repositories that a token may access, by token. page_size: entries in a
    page of a listing.
    """

    def __init__(self, port: int = 0) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.tokens: dict[str, set[str]] = {}
        self.page_size = 1000
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.hooks: list[Hook] = []
        self.lock = threading.Lock()
        self.port = port
        self._server: Server | None = None

    def __enter__(self) -> "Hub":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """What HF_ENDPOINT must be."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Puts the hub on the network, under the address that it had before, if any."""
        self._server = Server(self, self.port)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Takes the hub off the network and closes all connections, those that stall included."""
        if self._server is not None:
            self._server.shutdown()
            self._server.close_all()
            self._server = None

    def model(self, name: str, private: bool = False, gated: Literal["auto", "manual", False] = False) -> Repository:
        """The repository of a model. It is made if there is none."""
        return self.repositories.setdefault(("model", name), Repository(name, "model", private, gated))

    def dataset(self, name: str, private: bool = False, gated: Literal["auto", "manual", False] = False) -> Repository:
        """The repository of a data set. It is made if there is none."""
        return self.repositories.setdefault(("dataset", name), Repository(name, "dataset", private, gated))

    def asked(self, pattern: str, method: str | None = None) -> list[Request]:
        """The requests whose path a regular expression is found in."""
        found = [request for request in list(self.requests) if re.search(pattern, request.path)]
        return [request for request in found if method in (None, request.method)]

    def sent(self, pattern: str = "") -> int:
        """The bytes of all bodies that were sent, of requests whose path a regular expression is found in."""
        return sum(request.sent for request in self.asked(pattern))

    def fail(
        self, pattern: str, kind: int | str, times: int | None = None, method: str | None = None, after: int = 0
    ) -> Fault:
        """Spoils the answers to requests whose path a regular expression is found in. Returns the fault.

        kind: a status, as 503 (429 comes with Retry-After: 0), or a key of `hub.server.FAULTS`. times: how many answers;
        None: all. after: how many are answered well before. A fault whose `times` is set to 0 is over.
        Raises ValueError for a kind that does not exist.
        """
        if isinstance(kind, str) and kind not in FAULTS:
            raise ValueError(f"no such fault: {kind}; there are {', '.join(FAULTS)}")
        fault = Fault(pattern, kind, times, method, after)
        self.faults.append(fault)
        return fault

    def when(self, pattern: str, action: Callable[[], object], times: int = 1) -> None:
        """Does something before a request is answered whose path a regular expression is found in."""
        self.hooks.append(Hook(pattern, action, times))

    def run_hooks(self, path: str) -> None:
        """Does what `when` asked for."""
        with self.lock:
            due = [hook for hook in self.hooks if hook.times and re.search(hook.pattern, path)]
            for hook in due:
                hook.times -= 1
        for hook in due:
            hook.action()

    def next_fault(self, path: str, method: str) -> Fault | None:
        """The first fault that is due for a request, counted down."""
        with self.lock:
            for fault in self.faults:
                if fault.times != 0 and fault.method in (None, method) and re.search(fault.pattern, path):
                    if fault.after:
                        fault.after -= 1
                        continue
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def environment(self, cache: Path, token: str | None = None, timeout: int = 10, **more: str) -> dict[str, str]:
        """The environment of a process that knows this hub and no other.

        cache: HF_HOME. timeout: seconds after which a client gives up a request. more: further variables.
        """
        strange = re.compile(r"(HF|HUGGINGFACE|TRANSFORMERS)_.*|.*_proxy", re.IGNORECASE)
        kept = {name: value for name, value in os.environ.items() if not strange.fullmatch(name)}
        own = {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            # Otherwise transformers asks a service of the real hub to convert pytorch_model.bin.
            "DISABLE_SAFETENSORS_CONVERSION": "1",
            "HF_HUB_DOWNLOAD_TIMEOUT": str(timeout),
            "HF_HUB_ETAG_TIMEOUT": str(timeout),
            "NO_PROXY": "127.0.0.1,localhost",
        }
        return kept | own | ({"HF_TOKEN": token} if token else {}) | more
