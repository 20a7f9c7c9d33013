"""The pages on which people judge, without a script."""

import re
from html import unescape
from urllib.parse import urlencode

import pytest
from explorer.conftest import text_of
from starlette.testclient import TestClient

from ffkv.apps.annotation.records import MarkedPattern, read_records
from ffkv.apps.annotation.sheets import read_sheet
from ffkv.apps.annotation.step import latest_of_person

ORIGIN = {"Origin": "http://127.0.0.1:8000", "Content-Type": "application/x-www-form-urlencoded"}
KEYS, CHANGES = "/r/made/annotate/keys/anna", "/r/made/annotate/changes/anna"


@pytest.fixture
def keys(annotations):
    return read_sheet(annotations, "keys")


@pytest.fixture
def changes(annotations):
    return read_sheet(annotations, "changes")


def post(visitor, address, fields, status=200, follow=True, **headers):
    answer = visitor.client.post(
        address, content=urlencode(fields, doseq=True), headers={**ORIGIN, **headers}, follow_redirects=follow
    )
    assert answer.status_code == status, answer.text
    return answer


def test_the_pages_lead_to_the_first_item_that_is_open(visitor, keys):
    assert "keys of made" in text_of(visitor.get("/annotate")) and "changes of made" in text_of(
        visitor.get("/annotate")
    )
    assert 'href="/annotate"' in visitor.get("/r/made/annotate/keys")
    people = text_of(visitor.get("/annotate/keys"))
    assert f"anna 0 of {len(keys.orders['anna'])} done" in people and "bert" in people
    page = visitor.get(KEYS)
    assert f"1 of {len(keys.orders['anna'])}" in text_of(page)
    shown = "".join(text_of(page).split())
    for text in keys.items[keys.orders["anna"][0]].prefixes:
        assert "".join(text.replace("\n", "↵").split()) in shown


def test_what_is_sent_is_kept_and_shown_again(visitor, annotations, keys):
    item = keys.orders["anna"][0]
    fields = {
        "which": item,
        "slots": 3,
        "label.0": "ends <i>so</i> “=1”",
        "kind.0": "shallow",
        "mark.0": [0, 2, 5],
        "label.1": "",
        "kind.1": "semantic",
        "mark.1": [7],
        "label.2": "",
        "go": "save",
    }
    page = post(visitor, f"{KEYS}/1", fields).text
    said = latest_of_person(annotations, keys, "anna")[item]
    assert not said.done and said.annotator == "person:anna"
    assert said.patterns == (
        MarkedPattern(label="ends <i>so</i> “=1”", kind="shallow", prefixes=(0, 2, 5)),
        MarkedPattern(label="", kind="semantic", prefixes=(7,)),
    )
    assert 'value="ends &lt;i&gt;so&lt;/i&gt; “=1”"' in page and "<i>" not in page
    checked = {
        (int(slot), int(text)) for slot, text in re.findall(r'name="mark\.(\d+)" value="(\d+)"[^>]* checked', page)
    }
    assert checked == {(0, 0), (0, 2), (0, 5), (1, 7)}
    post(visitor, f"{KEYS}/1", fields)
    assert len(read_records(annotations).history) == 1  # the same again says nothing new


def test_done_leads_on_and_stays_done_when_the_words_change(visitor, annotations, keys):
    item = keys.orders["anna"][0]
    answer = post(visitor, f"{KEYS}/1", {"which": item, "go": "done"}, 303, follow=False)
    assert answer.headers["location"] == f"{KEYS}/2"
    post(visitor, f"{KEYS}/1", {"which": item, "label.0": "later", "kind.0": "semantic", "mark.0": [1], "go": "stay"})
    said = latest_of_person(annotations, keys, "anna")[item]
    assert said.done and said.patterns[0].label == "later"
    assert visitor.client.get(KEYS, follow_redirects=False).headers["location"] == f"{KEYS}/2"
    assert f"1 of {len(keys.orders['anna'])} done" in text_of(visitor.get("/annotate/keys"))


def test_a_pattern_without_its_kind_is_kept_but_not_done(visitor, annotations, keys):
    item = keys.orders["anna"][0]
    page = post(visitor, f"{KEYS}/1", {"which": item, "label.0": "something", "mark.0": [0], "go": "done"}, 400).text
    assert "Choose shallow or semantic for pattern 1." in page and 'value="something"' in page
    said = latest_of_person(annotations, keys, "anna")[item]
    assert not said.done and said.patterns[0].label == "something"


def test_there_is_room_for_more_patterns(visitor, keys):
    item = keys.orders["anna"][0]
    page = post(visitor, f"{KEYS}/1", {"which": item, "slots": 3, "label.2": "third", "go": "more"}).text
    assert 'name="label.3"' in page and 'name="label.4"' not in page and 'value="third"' in page


def test_each_button_leads_where_it_says(visitor, keys):
    order = keys.orders["anna"]
    for number, go, place in [(2, "previous", "/1"), (1, "previous", "/1"), (2, "next", "/3"), (2, "save", "/2")]:
        answer = post(visitor, f"{KEYS}/{number}", {"which": order[number - 1], "go": go}, 303, follow=False)
        assert answer.headers["location"] == f"{KEYS}{place}"
    answer = post(visitor, f"{KEYS}/{len(order)}", {"which": order[-1], "go": "done"}, 303, follow=False)
    assert answer.headers["location"] == "/r/made/annotate/keys"


def test_a_change_is_judged(visitor, annotations, changes):
    item = changes.orders["anna"][0]
    page = visitor.get(f"{CHANGES}/1")
    assert text_of(page).count("Related?") == 1 and "checked" not in page
    post(visitor, f"{CHANGES}/1", {"which": item, "go": "done"}, 400)
    post(visitor, f"{CHANGES}/1", {"which": item, "related": "unsure", "go": "done"})
    said = latest_of_person(annotations, changes, "anna")[item]
    assert said.done and said.related == "unsure" and said.kind == "change"


@pytest.mark.parametrize("person", ["anna", "bert"])
@pytest.mark.parametrize("name", ["keys", "changes"])
def test_no_page_tells_layer_memory_or_control(visitor, annotations, person, name):
    sheet = read_sheet(annotations, name)
    pages = [visitor.get("/annotate"), visitor.get(f"/annotate/{name}")]
    pages += [
        visitor.get(f"/r/made/annotate/{name}/{person}/{number + 1}") for number in range(len(sheet.orders[person]))
    ]
    for page in pages:
        assert not re.search(
            r"layer|memory|memories|control|random|trigger|sample|rank\b|sentence|L\d+\.\d+", page, re.I
        )


def test_the_texts_of_the_corpus_are_no_markup(visitor, keys):
    page = visitor.get(f"{KEYS}/1")
    assert "<script>alert(1)" not in page and "&lt;script&gt;" in page


@pytest.mark.parametrize(
    "address",
    ["/annotate/none", "/r/made/annotate/none", "/r/made/annotate/..%2fsecret%2fkeys", f"{KEYS}/0", f"{KEYS}/999",
     "/r/made/annotate/keys/eva", "/r/made/annotate/keys/eva/1", "/r/none/annotate/keys", f"{KEYS}/x"],
)  # fmt: skip
def test_there_is_no_other_page(visitor, address):
    visitor.get(address, 404)


BAD_FIELDS = [
    {"label.0": "x" * 501},
    {"kind.0": "deep"},
    {"mark.0": [99]},
    {"mark.0": [-1]},
    {"mark.0": ["x"]},
    {"mark.0": [1, 1]},
    {"which": "bcdfghjk"},
]


@pytest.mark.parametrize("fields", BAD_FIELDS)
def test_what_no_page_sends_is_refused(visitor, annotations, keys, fields):
    answer = visitor.client.post(
        f"{KEYS}/1",
        content=urlencode({"which": keys.orders["anna"][0], "go": "stay"} | fields, doseq=True),
        headers=ORIGIN,
    )
    assert answer.status_code in (400, 409)
    assert read_records(annotations).history == []


@pytest.mark.parametrize("body", [b"\xff\xfe", b"a=1&" * 6000, b""])
def test_a_body_that_is_none_is_refused(visitor, annotations, body):
    assert visitor.client.post(f"{KEYS}/1", content=body, headers=ORIGIN).status_code in (400, 409)
    assert visitor.client.post(f"{KEYS}/1", content=b"x" * 300_000, headers=ORIGIN).status_code == 413
    assert read_records(annotations).history == []


@pytest.mark.parametrize(
    "origin", [None, "null", "http://evil.example", "https://127.0.0.1:8000", "http://127.0.0.1:9999"]
)
def test_another_site_can_keep_nothing(visitor, annotations, keys, origin):
    headers = {"Content-Type": ORIGIN["Content-Type"]} | ({"Origin": origin} if origin else {})
    fields = urlencode({"which": keys.orders["anna"][0], "go": "done"})
    assert visitor.client.post(f"{KEYS}/1", content=fields, headers=headers).status_code == 403
    stranger = TestClient(visitor.client.app, base_url="http://127.0.0.1:8000")
    assert stranger.post(f"{KEYS}/1", content=fields, headers=ORIGIN).status_code == 403
    assert read_records(annotations).history == []


@pytest.mark.parametrize(
    "address", ["/annotate", "/annotate/keys", "/r/made/annotate/keys", KEYS, "/r/made/", "/r/made/m/0/0"]
)
def test_other_pages_keep_nothing(visitor, address):
    assert visitor.client.post(address, headers=ORIGIN).status_code == 405


def test_a_disk_that_takes_nothing_is_told_on_the_page(visitor, annotations, keys):
    (annotations / "records").write_text("a file where the folder should be")
    fields = {"which": keys.orders["anna"][0], "label.0": "x"}
    answer = post(visitor, f"{KEYS}/1", fields | {"go": "stay"}, 500)
    assert "cannot be" in answer.text and "<" not in answer.text
    assert "This cannot be shown" in post(visitor, f"{KEYS}/1", fields | {"go": "save"}, 500).text


def test_the_page_lets_the_browser_name_it_as_the_origin(visitor):
    # A page with no-referrer sends a form with "Origin: null", which the explorer refuses.
    assert visitor.client.get(f"{KEYS}/1").headers["referrer-policy"] == "same-origin"
    assert '<meta name="referrer" content="same-origin">' in visitor.get(f"{KEYS}/1")


def test_an_address_of_another_run_with_the_same_sheet_offers_both(own, tmp_path, visit_two):
    page = visit_two.get("/annotate/keys")
    assert "keys of made" in text_of(page) and "keys of made-2" in text_of(page)
    assert unescape(page).count("/annotate/keys") >= 2
