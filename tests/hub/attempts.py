"""Code for child processes that try many cases and report each one, because a process takes seconds to start."""

import json
import subprocess
from typing import Any

# `attempt` gives what a call returned, its refusal and what it said; any other error than UserError ends the child.
# `over` tells the test that it may change something on the hub, which `Hub.when` of "/over/<name>" does.
BEGIN = """
import contextlib, io, json, os, sys, time
from pathlib import Path
from urllib.request import urlopen
from ffkv.base.errors import UserError
from ffkv.base.settings import Corpus, Model

wait = time.sleep
time.sleep = lambda seconds: wait(min(seconds, 0.05))  # between the tries of the hub's clients

def attempt(call, *arguments, **options):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            return {"answer": call(*arguments, **options), "refusal": "", "said": said.getvalue()}
        except UserError as error:
            return {"answer": None, "refusal": str(error), "said": said.getvalue()}

def over(name):
    with contextlib.suppress(OSError):
        urlopen(os.environ["HF_ENDPOINT"] + "/over/" + name)

def offline(yes=True):
    import datasets
    import huggingface_hub.constants
    os.environ["HF_HUB_OFFLINE"] = "1" if yes else "0"
    huggingface_hub.constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = yes
"""


def reported(done: subprocess.CompletedProcess) -> Any:
    """What a child printed last, as JSON."""
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith(("[", "{"))]
    assert lines, done.stdout
    return json.loads(lines[-1])
