"""Stars, lists and notes on the pages of the explorer."""

import csv
import io
import json
import re
from urllib.parse import urlencode

import pytest

from ffkv.run.results.collections import FOLDER, append_event, read_kept

from .conftest import Visitor, text_of

ORIGIN = {"Origin": "http://127.0.0.1:8000", "Content-Type": "application/x-www-form-urlencoded"}
LISTS = "/r/small/collections"


@pytest.fixture
def visitor(own_small, visit) -> Visitor:
    """An explorer of a small run of one's own."""
    return visit(own_small)


@pytest.fixture
def files(visitor):
    return visitor.shelf.runs["small"].run.files


def send(visitor, address=LISTS, status=200, **fields):
    answer = visitor.client.post(address, content=urlencode(fields, doseq=True), headers=ORIGIN)
    assert answer.status_code == status, text_of(answer.text)
    return answer


def press(visitor, page: str, button: str, **written):
    """Sends the form of a page that has a button with these words, as a browser does."""
    form = next(form for form in re.findall(r"<form method=\"post\".*?</form>", page, re.DOTALL) if button in form)
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))
    fields |= dict(re.findall(rf'<button name="(\w+)" value="([^"]*)"[^>]*>{re.escape(button)}', form))
    (address,) = re.findall(r'action="([^"]*)"', form)
    return send(visitor, address, **fields, **written)


def test_a_star_is_one_click_and_one_click_takes_it_away(visitor, files):
    answer = press(visitor, visitor.get("/r/small/m/0/1"), "☆ star")
    assert answer.url.path == "/r/small/m/0/1" and "★ starred" in text_of(answer.text)
    assert {*read_kept(files).lists["starred"]} == {"L0.1"}
    assert "☆ star" in text_of(press(visitor, answer.text, "★ starred").text)
    assert read_kept(files).lists == {}


def test_a_memory_comes_into_a_list_and_out_of_it(visitor, files):
    page = press(visitor, visitor.get("/r/small/m/0/1"), "Put into the list", collection="dates").text
    assert "in dates" in text_of(page)
    assert "Take it out of dates" in page
    assert "in dates" not in text_of(press(visitor, page, "Take out").text)
    assert read_kept(files).lists == {}


def test_a_note_is_kept_and_a_note_of_somebody_else_stays(visitor, files):
    append_event(files, "note", memories=["L0.1"], text="of ben", person="ben <b>")
    page = press(visitor, visitor.get("/r/small/m/0/1"), "Keep the note", text="fires\r\non <i>dates</i>").text
    assert "fires\non &lt;i&gt;dates&lt;/i&gt;</textarea>" in page
    assert "of ben says ben <b>" in text_of(page)
    text = text_of(visitor.get(LISTS))
    assert "Notes" in text and "of ben" in text and "on <i>dates</i>" in text
    press(visitor, page, "Keep the note", text="")
    assert {*read_kept(files).notes["L0.1"]} == {"ben <b>"}


def test_what_is_ticked_in_a_search_comes_into_a_list(visitor):
    page = visitor.get("/r/small/memories?promotes=church")
    boxes = re.findall(r'type="checkbox" name="memory" value="([^"]*)"', page)
    run = visitor.shelf.runs["small"].run
    assert boxes == run.memories(promotes="church", sort="promoted_weight")["name"].tolist()
    answer = press(visitor, page, "Put what is ticked into the list", memory=boxes[:2], collection="church")
    assert answer.url.params["collection"] == "church" and "2 memories" in text_of(answer.text)
    answer = press(visitor, answer.text, "Take it out", memory=boxes[:1], collection="church")
    assert f"1 memory: {boxes[1]}" in text_of(answer.text)


def test_the_list_of_a_search_has_tokens_patterns_notes_and_csv(visitor, files):
    send(visitor, action="add", collection="few", memory=["L0.0", "L1.1"])
    send(visitor, action="add", collection="starred", memory=["L1.1"])
    send(visitor, action="note", memory="L1.1", text="=1+1")
    page = visitor.get("/r/small/memories?collection=few")
    heads = re.findall(r'<th scope="col"[^>]*>(?:<a[^>]*>)?([^<]*)', page.partition('class="list"')[2])
    assert heads[1:8] == ["name", "top token", "lists", "detects", "note", "added by", "added"]
    assert "starred, few" in text_of(page)
    assert "<option selected>few</option>" in page
    rows = list(csv.DictReader(io.StringIO(visitor.get("/r/small/memories?collection=few&format=csv"))))
    assert [row["name"] for row in rows] == ["L0.0", "L1.1"]
    assert rows[0]["detects"].startswith("ends with") and rows[1]["note"].endswith(": =1+1")
    listed = json.loads(visitor.get("/r/small/memories?collection=few&layer=1&format=json"))
    assert [row["name"] for row in listed["memories"]] == ["L1.1"]
    wrong = text_of(visitor.get("/r/small/memories?collection=none", 400))
    assert "called 'none'. Choose one of: few, starred" in wrong


def test_a_list_is_renamed_and_deleted(visitor, files):
    send(visitor, action="add", collection="<i>", memory=["L0.0", "L1.1"])
    page = visitor.get(LISTS)
    assert "<i>" in text_of(page) and "<i>" not in page.partition('id="main"')[2]
    page = press(visitor, page.replace("&lt;i&gt;", "<i>"), "Rename", to="bold").text
    assert "bold 2 memories: L0.0 , L1.1" in text_of(page)
    assert "There is no list yet" in text_of(press(visitor, page, "Delete the list").text)
    assert read_kept(files).lists == {}


def test_what_cannot_be_kept_is_told(visitor, files, subtests):
    for fields, message in (
        ({"action": "add", "collection": "a", "memory": "L9.0"}, "There is no layer 9"),
        ({"action": "add", "collection": "a"}, "No memory is ticked"),
        ({"action": "erase", "collection": "a", "memory": "L0.0"}, "This cannot be kept (action)"),
        ({"action": "delete", "collection": "a"}, "Nobody has made a list"),
        ({"memory": "L0.0"}, "This cannot be kept"),
    ):
        with subtests.test(message=message):
            assert message in text_of(send(visitor, status=400, **fields).text)
    assert not (files.annotations / FOLDER).exists()


def test_no_other_site_keeps_anything(visitor, files):
    body = urlencode({"action": "add", "collection": "a", "memory": "L0.0"})
    for origin in ({}, {"Origin": "null"}, {"Origin": "http://evil.example"}):
        assert visitor.client.post(LISTS, content=body, headers=origin).status_code == 403
    assert visitor.client.post("/r/small/memories", content=body, headers=ORIGIN).status_code == 405
    assert visitor.client.post(LISTS, content=b"\xff\xfe", headers=ORIGIN).status_code == 400
    assert visitor.client.post(LISTS, content=b"x" * 300_000, headers=ORIGIN).status_code == 413
    assert not files.annotations.exists()
    for address in ("/r/small/m/0/0", LISTS, "/r/small/memories", "/r/small/trace"):
        assert visitor.client.get(address).headers["referrer-policy"] == "same-origin"  # or no browser names the page


def test_lists_of_another_model_are_a_problem_of_the_page_and_all_else_is_shown(visitor, files):
    event = {"identity": {"model_hash": "f" * 16}, "time": "2026-01-01T00:00:00.000000Z", "person": "anna"}
    event |= {"action": "add", "collection": "a", "memories": ["L0.0"]}
    (files.annotations / FOLDER).mkdir(parents=True)
    (files.annotations / FOLDER / "odd.jsonl").write_text(json.dumps(event) + "\n")
    for address in ("/r/small/m/0/0", "/r/small/memories", LISTS):
        assert "odd.jsonl, line 1 belongs to another model" in text_of(visitor.get(address))
    assert "Trigger examples" in text_of(visitor.get("/r/small/m/0/0"))


def test_a_folder_that_cannot_be_written_is_told_and_pages_still_work(visitor, files):
    files.annotations.parent.write_text("a file in the place of the folder")
    assert "annotations" in text_of(send(visitor, status=400, action="add", collection="a", memory="L0.0").text)
    assert "There is no list yet" in text_of(visitor.get(LISTS))
    assert "☆ star" in text_of(visitor.get("/r/small/m/0/0"))


def test_exported_pages_tell_nothing_of_lists_and_notes(visitor, files, tmp_path):
    from ffkv_explorer.page_memory import export

    send(visitor, action="add", collection="secret-list", memory=["L0.0", "L1.1"])
    send(visitor, action="note", memory="L0.0", text="secret-note")
    held = visitor.shelf.runs["small"]
    written = export(visitor.shelf, held, ["@secret-list"], tmp_path / "pages", colours=False)
    assert {file.name for file in written} == {"index.html", "L0.0.html", "L1.1.html"}
    assert not any("secret-" in file.read_text() for file in written)
