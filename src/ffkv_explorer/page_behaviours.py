"""Behaviours that a person asks of a run: a form for a file of prompts, how far the answer is, and the answer.

Each has a folder in `annotations/<run>/behaviours/` that only the person can read: the prompts, what `ffkv causes` says, and
what it writes. The command is a process of its own: it can be stopped, and no page waits for it.
"""

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from email import message_from_bytes
from pathlib import Path
from typing import Any, NamedTuple

from starlette.responses import RedirectResponse, Response

from ffkv.base.errors import UserError
from ffkv.base.lookup import find, is_file, make_folder
from ffkv.base.options import command_line
from ffkv.base.terminal import plain
from ffkv.branches.behaviours.prompt_file import read_prompts
from ffkv.branches.settings import Behaviour, section
from ffkv_explorer.pages import LIVE, drawn, error_page, read_form, render, whole
from ffkv_explorer.shelf import Busy, Held, NoSuch, Shelf

LONGEST = 2**22  # bytes that a form with a file may send: some 20,000 pairs
OPTIONS = ("positions", "baseline", "count", "candidates", "effect_prompts", "controls", "graph_prompts")  # of the form
FIELDS = {name: Behaviour.model_fields[name] for name in OPTIONS}
LOG, FOUND = "log.txt", "found"
SAID = 4000  # bytes at the end of what the command has said
STEP, BAR = re.compile(r"Step (\d+) of (\d+)"), re.compile(r"(\d+)%\|")  # of lines that tell progress
LEAD = re.compile(r'href="#L(\d+)\.(\d+)"')  # of a page: where a memory leads


class Asked(NamedTuple):
    """A behaviour that a person has asked for. Its part of an address is the name of its folder."""

    folder: Path
    prompts: Path  # the file
    time: datetime
    runs: bool  # whether it is being computed

    @property
    def state(self) -> str:
        """Returns "running", "finished" or "not finished"."""
        return "running" if self.runs else "finished" if is_file(self.folder / FOUND / "index.html") else "not finished"

    @property
    def said(self) -> list[str]:
        """The last lines that the command has said; of a line that was written over, what it became."""
        with (self.folder / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - SAID))
            lines = file.read().decode(errors="replace").split("\n")
        return [plain(line.rstrip("\r").rpartition("\r")[2]) for line in lines if line.strip()]


def overview(held: Held, shelf: Shelf) -> Response:
    """Returns the page with the form, and with what was asked before."""
    return _form(held, shelf, {})


def _form(held: Held, shelf: Shelf, sent: Mapping[str, str], problem: str = "", status: int = 200) -> Response:
    about: dict[str, Any] = {"asked": read_asked(held, shelf), "fields": FIELDS, "longest": LONGEST, "problem": problem}
    return render("prompts.html", held=held, sends=True, status=status, sent=sent, **about)


def _folder(held: Held) -> Path:
    """Returns the folder of the behaviours of a run. Raises UserError if it is a link: another user may have made it."""
    folder = held.run.files.annotations / "behaviours"
    if folder.is_symlink():
        raise UserError(f"{folder} is a link. Move it away, and make a folder.")
    return folder


def read_asked(held: Held, shelf: Shelf) -> list[Asked]:
    """Returns what the person has asked of a run, the latest first. What is of another user is left out."""
    own = [path for path in find(_folder(held), "*/*.jsonl") if path.parent.lstat().st_uid == os.getuid()]
    dated = ((path, datetime.fromtimestamp(path.stat().st_mtime, UTC)) for path in own)
    asked = [Asked(path.parent, path, time, path == shelf.running) for path, time in dated]
    return sorted(asked, key=lambda one: one.time, reverse=True)


def _find(held: Held, shelf: Shelf, key: str) -> Asked:
    """Returns what an address names. Raises NoSuch if there is none."""
    for one in read_asked(held, shelf):
        if one.folder.name == key:
            return one
    raise NoSuch("There is no such behaviour. It may have been deleted.")


def ask(held: Held, shelf: Shelf, body: bytes, kind: str) -> Response:
    """Begins to ask for a behaviour, as the form of the page says, and leads to the page that tells its progress.

    kind: what the body is, with what is between its parts. What the command would refuse is refused, beside the form.
    """
    message = message_from_bytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    parts = {str(part.get_param("name", "", "content-disposition")): part for part in message.walk()}
    content = {name: bytes(part.get_payload(decode=True) or b"") for name, part in parts.items()}
    sent = {name: one.decode(errors="replace").strip() for name, one in content.items()}
    prompts = content.get("file") or content.get("prompts", b"").replace(b"\r\n", b"\n")
    stem = Path((parts["file"].get_filename() if "file" in parts else "") or "prompts").stem
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", sent.get("name") or stem).strip("-._")[:40] or "prompts"
    try:
        found = {field: sent[field] for field in FIELDS if sent.get(field)}
        numbers = {field: whole(text, field) for field, text in found.items() if isinstance(FIELDS[field].default, int)}
        pairs = (each.partition("=") for each in sent.get("fields", "").split(",") if each.strip())
        options = {**found, **numbers, "fields": {own.strip(): theirs.strip() for own, _, theirs in pairs}}
        with shelf.starting:
            return _begin(held, shelf, name, prompts, options)
    except UserError as error:
        return _form(held, shelf, sent, str(error), 429 if isinstance(error, Busy) else 400)


def _begin(held: Held, shelf: Shelf, name: str, prompts: bytes, options: dict[str, Any]) -> Response:
    """Writes the prompts into a folder, and starts the command. Raises Busy if one runs, and UserError as the command."""
    if shelf.running:
        raise Busy("The explorer computes one behaviour at a time. Wait until it is finished, or stop it.")
    run, above = held.run, _folder(held)
    try:
        make_folder(above)
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=above))  # which only the person can read
        path = folder / f"{name}.jsonl"
        path.write_bytes(prompts)
    except OSError as error:
        raise UserError(f"{above} cannot be written: {error.strerror}. Check its rights, and the disk.") from error
    try:
        read_prompts(path, section(Behaviour, **{**options, "prompts": str(path)}).fields)
    except UserError as error:
        shutil.rmtree(folder)
        raise UserError(str(error).replace(str(path), path.name)) from error
    # -P: no module of the folder where the explorer was started
    words = [sys.executable, "-P", "-m", "ffkv", "causes", f"--output={folder / FOUND}"]
    words += [f"--annotations={run.files.annotations}", *["--trust-remote-code"] * run.trust_remote_code]
    words += [*shlex.split(command_line({"behaviours": options}, "behaviours")), "--", str(run.folder), str(path)]
    with (folder / LOG).open("wb") as log:
        shelf.asking[path] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return RedirectResponse(LIVE.run(held, f"behaviours/{folder.name}"), 303)


def answer(held: Held, shelf: Shelf, key: str) -> Response:
    """Returns the page that the command has written, with links; before that, how far it is, or why there is none."""
    asked = _find(held, shelf, key)
    if asked.state != "finished":
        said = asked.said  # once: the command goes on
        return render("asked.html", held=held, sends=True, asked=asked, said=said, done=done(said))
    page = (asked.folder / FOUND / "index.html").read_text(encoding="utf-8")
    links = f'<p><a href="../behaviours">Behaviours asked</a> <a href="{key}/zip">All files (zip)</a></p>\n</header>'
    return drawn(LEAD.sub(r'href="../m/\1/\2"', page).replace("</header>", links, 1))


def done(said: list[str]) -> float:
    """Returns which share of its steps the command has taken, by what it has said; also of a step that tells progress."""
    begun, steps, part = 1, 1, 0
    for line in said:
        if step := STEP.search(line):
            begun, steps, part = int(step[1]), int(step[2]), 0
        elif bar := BAR.search(line):
            part = int(bar[1])
    return (begun - 1 + part / 100) / steps


def archive(held: Held, shelf: Shelf, key: str) -> Response:
    """Sends the prompts, the tables, the page and what the command said as one file."""
    folder, packed = _find(held, shelf, key).folder, io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for path in find(folder, "**/[!.]*.*"):
            file.write(path, path.relative_to(folder.parent))
    headers = {"Content-Disposition": f'attachment; filename="{key}.zip"'}
    return Response(packed.getvalue(), 200, headers, "application/zip")


def change(held: Held, shelf: Shelf, key: str, body: bytes) -> Response:
    """Stops what is computed, or deletes what was found, as the field `action` of the form says."""
    asked = _find(held, shelf, key)
    if asked.runs:
        shelf.stop()
    elif read_form(body).get("action") == "delete":
        try:
            shutil.rmtree(asked.folder)
        except OSError as error:
            return error_page(500, "This cannot be deleted", f"{error.filename}: {error.strerror}. Check its rights.")
    return RedirectResponse(LIVE.run(held, "behaviours"), 303)
