"""A chat endpoint in a thread. It answers well, unless a test gives it another behaviour."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAR = ("army", "troops", "battle")
PRESS, ABOUT_WAR, YEAR = "ends with the word press", "is about war", "ends with the word year"


def has(label: str, text: str) -> bool:
    """Whether a text has what a label says. This is what a perfect annotator knows."""
    last = text.split()[-1] if text.split() else ""
    if label == ABOUT_WAR:
        return sum(word in WAR for word in text.split()) >= 2
    return last == {PRESS: "press", YEAR: "year"}.get(label)


def label_of(texts: list[str]) -> str:
    return next((label for label in (PRESS, YEAR, ABOUT_WAR) if all(has(label, text) for text in texts)), "nothing")


def asked(body: dict[str, Any]) -> tuple[str, str]:
    """What a request says as the system, and as the user."""
    system, user = (message["content"] for message in body["messages"])
    return system, user


def good_answer(body: dict[str, Any]) -> str:
    """What a perfect annotator answers to a question of ffkv."""
    system, user = asked(body)
    data = json.loads(user)
    texts = [row["text"] for row in data["texts"]]
    if "one place is marked" in system:
        texts = [text.partition("»")[0].replace("«", "") for text in texts]
    if '{"label"' in system:
        return json.dumps({"label": label_of(texts)})
    if '{"intruder"' in system:
        for number in range(len(texts)):
            if label_of(texts[:number] + texts[number + 1 :]) != "nothing":
                return json.dumps({"intruder": number + 1})
        return json.dumps({"intruder": 1})
    found = [has(data["label"], text) for text in texts]
    if '{"values"' in system:
        return json.dumps({"values": [10 if each else 0 for each in found]})
    return json.dumps({"texts": [number for number, each in enumerate(found, 1) if each]})


def completion(content: str | None, tokens: tuple[int, int] | None = (50, 5), **message: Any) -> bytes:
    choice = {"message": {"role": "assistant", "content": content, **message}, "finish_reason": "stop"}
    found: dict[str, Any] = {"model": "stub-1", "choices": [choice]}
    if tokens:
        found["usage"] = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    return json.dumps(found).encode()


Answer = tuple[int, dict[str, str], bytes]


class Stub:
    """The endpoint: its address, and the bodies and headers of the requests so far."""

    def __init__(self, behave: Callable[[int, dict], Answer | None] | None = None, delay: float = 0, pause: float = 0):
        """Starts the endpoint.

        `behave` gets the number of the request, from 0, and its body; None: the good answer. `delay`: seconds before an
        answer; `pause`: seconds behind each byte of a body.
        """
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.behave, self.delay = behave or (lambda number, body: None), delay
        stub, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet per answer

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(stub.requests)
                    stub.requests.append(body)
                    stub.headers.append(dict(self.headers))
                time.sleep(stub.delay)
                answer = stub.behave(number, body)
                status, headers, content = answer or (200, {}, completion(good_answer(body)))
                try:
                    self.send_response(status)
                    for name, value in {"Content-Length": str(len(content)), **headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    for piece in [content] if not pause else [content[at : at + 1] for at in range(len(content))]:
                        self.wfile.write(piece)
                        self.wfile.flush()
                        time.sleep(pause)
                except OSError:
                    self.close_connection = True  # the client has gone

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
