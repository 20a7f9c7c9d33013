"""A file of prompts is asked in the explorer: what is refused, how far it is, its stop, the answer, and who may read it."""

import io
import json
import re
import subprocess
import sys
import time
import zipfile
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

import ffkv
from ffkv.base.errors import UserError
from ffkv.branches.behaviours.prompt_file import read_prompts
from ffkv_explorer import page_behaviours
from ffkv_explorer.page_behaviours import LONGEST, done

from .conftest import text_of

HERE = {"Origin": "http://127.0.0.1:8000"}
PROMPTS = "\n".join(
    json.dumps({"prompt": f"This {word}", "answer": " is", "wrong": " are"})
    for word in ("list", "file", "name", "line", "word", "text", "path", "type", "code", "mode", "case", "byte")
)


def ask(visitor, prompts: str | bytes = PROMPTS, run: str = "small", **sent):
    """Sends the form, with the prompts as a file if they are bytes."""
    file = ("is.jsonl", prompts) if isinstance(prompts, bytes) else ("", b"")
    sent = {"prompts": prompts if isinstance(prompts, str) else "", **sent}
    return visitor.client.post(f"/r/{run}/behaviours", headers=HERE, data=sent, files={"file": file})


def problem(page: str) -> str:
    return text_of("".join(re.findall(r'role="alert">(.*?)</p>', page)))


def wait(visitor, address: str, running: bool) -> str:
    """The page of a behaviour that runs, or does not run any more."""
    for _ in range(1200):
        page = visitor.get(address)
        if ("data-again" in page) == running:
            return page
        time.sleep(0.1)
    raise AssertionError(text_of(page))


@pytest.fixture
def visitor(own_small, visit, monkeypatch):
    """An explorer of a small run, and a command that says how far it is, and waits to be stopped or to go on."""
    visitor = visit(own_small)
    code = (
        "import sys, time, pathlib\n"
        "print('Step 4 of 6: measure\\n\\ris:  0%|  | 0/7\\ris:  50%|##  | 3/7 [00:01<00:01, 2 prompts/s]', end='', flush=True)\n"
        "folder = pathlib.Path(sys.argv[-1]).parent\n"
        "while not (folder / 'go').exists(): time.sleep(0.05)\n"
        "(folder / 'found').mkdir()\n"
        "(folder / 'found/behaviours.csv').write_text('behaviour\\n')\n"
        "(folder / 'found/index.html').write_text('<header></header><td><a href=\"#L1.0\">L1.0</a></td><p>L0.1</p>')\n"
    )

    class Popen(subprocess.Popen):
        def __init__(self, words, **options):
            visitor.words = words
            super().__init__([sys.executable, "-c", code, words[-1]], **options)

    monkeypatch.setattr(page_behaviours.subprocess, "Popen", Popen)
    yield visitor
    visitor.shelf.stop()


def test_what_the_command_refuses_is_refused_beside_the_form(visitor, tmp_path, subtests):
    bad = PROMPTS + '\n{"prompt": "This", "answer": " is"}'
    for prompts in (bad, bad.encode(), "{", '{"prompt": 3, "answer": "a", "wrong": "b"}', "[]", "", b"\xff", "{}"):
        with subtests.test(prompts=prompts):
            path = tmp_path / "is.jsonl"
            path.write_bytes(prompts if isinstance(prompts, bytes) else prompts.encode())
            with pytest.raises(UserError) as refused:
                read_prompts(path)
            answer = ask(visitor, prompts, name="is")
            assert answer.status_code == 400
            assert problem(answer.text) == " ".join(str(refused.value).replace(str(path), "is.jsonl").split())
            if prompts is bad:
                assert "is.jsonl, line 13: lacks wrong" in problem(answer.text)
                assert unescape(answer.text).count(bad) == 1  # what was written is still there
    for sent, message in (
        ({"count": "many"}, "count is 'many'. Write a whole number"),
        ({"count": "1"}, "count is 1: must be at least 2"),
        ({"positions": "none"}, "positions"),
        ({"fields": "answer=correct"}, "lacks the field 'correct', which the setting `fields` names for answer"),
        ({"fields": "answers=correct"}, "fields has no 'answers'. Did you mean 'answer'?"),
    ):
        with subtests.test(sent=sent):
            answer = ask(visitor, **sent)
            assert answer.status_code == 400 and message in problem(answer.text)
    assert not visitor.shelf.asking
    assert not [*visitor.shelf.runs["small"].run.files.annotations.glob("behaviours/*")]


def test_a_form_is_taken_from_our_pages_alone_up_to_a_size(visitor):
    for headers in ({}, {"Origin": "http://evil.example"}):
        for address in ("behaviours", "behaviours/x"):
            assert visitor.client.post(f"/r/small/{address}", headers=headers).status_code == 403
    assert ask(visitor, b"x" * (LONGEST + 1)).status_code == 413
    assert visitor.client.post("/r/small/behaviours", headers=HERE, content=b"prompts=x").status_code == 400
    assert visitor.client.post("/r/small/collections", headers=HERE, content=b"x" * 2**19).status_code == 413
    for address in ("behaviours/x", "behaviours/x/zip", "behaviours/..%2f..", "behaviours/collections"):
        visitor.get(f"/r/small/{address}", 404)
        assert visitor.client.post(f"/r/small/{address}", headers=HERE).status_code in (404, 405)


def test_it_tells_how_far_it_is_then_shows_the_page_with_links(visitor):
    sent = {"name": "the behaviour/../is", "fields": "answer=answer", "controls": "19", "positions": "all"}
    answer = ask(visitor, PROMPTS.encode(), **sent)
    address = answer.url.path
    assert re.fullmatch(r"/r/small/behaviours/the-behaviour-..-is-\w+", address)
    run = visitor.shelf.runs["small"].run
    folder = run.files.annotations / "behaviours" / address.rpartition("/")[2]
    assert visitor.words[:5] == [sys.executable, "-P", "-m", "ffkv", "causes"]
    assert {"--controls", "19", "--positions", "all", "answer=answer"} <= {*visitor.words}
    assert visitor.words[-3:] == ["--", str(run.folder), str(folder / "the-behaviour-..-is.jsonl")]
    assert "--trust-remote-code" not in visitor.words
    assert (folder / "the-behaviour-..-is.jsonl").read_text() == PROMPTS
    assert folder.stat().st_mode & 0o077 == 0  # prompts may be private

    for _ in range(200):
        if "3/7" in (page := wait(visitor, address, running=True)):
            break
        time.sleep(0.05)
    assert '<progress max="1" value="0.58' in page and "0/7" not in page  # a half of the fourth of six steps
    assert 'http-equiv="refresh"' in page  # without script
    again = ask(visitor)
    assert again.status_code == 429 and "one behaviour at a time" in problem(again.text)
    assert "running" in text_of(visitor.get("/r/small/behaviours"))

    (folder / "go").touch()
    page = wait(visitor, address, running=False)
    assert '<td><a href="../m/1/0">L1.0</a></td><p>L0.1</p>' in page
    assert "default-src 'none'" in visitor.client.get(address).headers["content-security-policy"]
    with zipfile.ZipFile(io.BytesIO(visitor.client.get(f"{address}/zip").content)) as packed:
        names = {name.partition("/")[2] for name in packed.namelist()}
    assert names == {"the-behaviour-..-is.jsonl", "log.txt", "found/behaviours.csv", "found/index.html"}
    assert "finished" in text_of(visitor.get("/r/small/behaviours"))
    visitor.client.post(address, headers=HERE, data={"action": "delete"})
    assert not folder.exists() and "Asked before" not in visitor.get("/r/small/behaviours")


def test_it_can_be_stopped_and_what_it_said_is_shown(visitor):
    address = ask(visitor).url.path
    (process,) = visitor.shelf.asking.values()
    page = visitor.client.post(address, headers=HERE, data={"action": "delete"}).text  # what runs is only stopped
    assert process.poll() is not None and "not finished" in text_of(page)
    assert "It was not finished." in text_of(wait(visitor, address, running=False))
    assert ask(visitor).status_code == 200  # and another one may begin


def test_what_is_of_another_user_or_a_link_is_not_shown(visitor, tmp_path, monkeypatch):
    key = ask(visitor).url.path.rpartition("/")[2]
    visitor.shelf.stop()
    monkeypatch.setattr(page_behaviours.os, "getuid", lambda: 12345)
    assert key not in visitor.get("/r/small/behaviours")
    visitor.get(f"/r/small/behaviours/{key}", 404)
    monkeypatch.undo()
    folder = visitor.shelf.runs["small"].run.files.annotations / "behaviours"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in text_of(visitor.get("/r/small/behaviours", 500))


def test_the_share_that_is_done_counts_steps():
    assert done([]) == done(["Loading"]) == 0
    assert done(["Step 1 of 6: encode", "Step 3 of 6: choose"]) == 2 / 6
    assert done(["Step 4 of 6: measure", "x: 50%|##", "Step 5 of 6: graph"]) == 4 / 6


@pytest.mark.workflow
def test_the_answer_is_that_of_the_command(own_tiny, visit, monkeypatch, forked_python):
    monkeypatch.chdir(own_tiny)
    visitor = visit(Path("results/tiny"))
    options = {"candidates": "1", "controls": "19", "effect_prompts": "2", "count": "12"}
    address = ask(visitor, PROMPTS.encode(), "tiny", name="is", **options).url.path
    (process,) = visitor.shelf.asking.values()
    assert process.wait(900) == 0  # a limit for what hangs
    page = visitor.get(address)
    folder = visitor.shelf.runs["tiny"].run.files.annotations / "behaviours" / address.rpartition("/")[2]
    assert "Memories of is" in text_of(page), (folder / "log.txt").read_text()
    assert (
        re.search(r'<td><a href="../m/\d+/\d+">L\d+\.\d+</a></td>', page) and 'href="#L' not in page
    )  # each name leads on
    found = ffkv.behaviour(
        ffkv.open("results/tiny"), folder / "is.jsonl", **{name: int(one) for name, one in options.items()}
    )
    found.save("again")
    assert {path.name for path in Path("again").glob("*.csv")} == {
        path.name for path in (folder / "found").glob("*.csv")
    }
    for path in Path("again").glob("*.csv"):
        again, asked = (pd.read_csv(each) for each in (path, folder / "found" / path.name))
        # The command has its own number of threads, which add float32 numbers in another order.
        pd.testing.assert_frame_equal(again, asked, rtol=1e-4, atol=1e-6, obj=path.name)
    assert (folder / "found/index.html").read_bytes().count(b"<section") == Path("again/index.html").read_bytes().count(
        b"<section"
    )
