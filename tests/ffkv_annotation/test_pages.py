"""The pages on which people judge, without a script."""

import re
import shutil
from html import unescape
from urllib.parse import urlencode

from starlette.testclient import TestClient

from ffkv_annotation.records import MarkedPattern, read_records
from ffkv_annotation.sheets import read_sheet
from ffkv_annotation.step import latest_of
from ffkv_explorer.shelf import open_shelf
from tests.ffkv_explorer.conftest import Visitor, text_of

ORIGIN = {"Origin": "http://127.0.0.1:8000", "Content-Type": "application/x-www-form-urlencoded"}
KEYS, CHANGES = "/r/made/annotate/keys/anna", "/r/made/annotate/changes/anna"


def post(visitor, address, fields, status=200, follow=True, **headers):
    answer = visitor.client.post(
        address, content=urlencode(fields, doseq=True), headers={**ORIGIN, **headers}, follow_redirects=follow
    )
    assert answer.status_code == status, answer.text
    return answer


def test_without_a_sheet_the_page_says_how_to_make_one_and_leads_back(made_up, tmp_path):
    visitor = Visitor(open_shelf([shutil.copytree(made_up, tmp_path / "results/made")]))
    page = visitor.get("/annotate")
    assert f"ffkv annotate sheets {tmp_path / 'results/made'} --annotators anna" in page
    assert '<li><a href="/">Runs</a></li>' in page


def test_the_pages_lead_to_the_first_item_that_is_open(visitor, keys):
    sheets = text_of(visitor.get("/annotate"))
    assert "keys of made" in sheets and "changes of made" in sheets
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
        "go": "save",
        "label.1": "",
        "kind.1": "semantic",
        "mark.1": [7],
        "label.2": "",
    }
    fields |= {"label.0": "ends <i>so</i> “=1”", "kind.0": "shallow", "mark.0": [0, 2, 5]}
    page = post(visitor, f"{KEYS}/1", fields).text
    said = latest_of(annotations, keys, "person:anna")[item]
    assert not said.done and said.annotator == "person:anna"
    assert said.patterns == (
        MarkedPattern(label="ends <i>so</i> “=1”", kind="shallow", prefixes=(0, 2, 5)),
        MarkedPattern(label="", kind="semantic", prefixes=(7,)),
    )
    assert 'value="ends &lt;i&gt;so&lt;/i&gt; “=1”"' in page and "<i>" not in page
    checked = re.findall(r'name="mark\.(\d+)" value="(\d+)"[^>]* checked', page)
    assert {*checked} == {("0", "0"), ("0", "2"), ("0", "5"), ("1", "7")}
    post(visitor, f"{KEYS}/1", fields)
    assert len(read_records(annotations).history) == 1  # the same again says nothing new


def test_done_leads_on_and_stays_done_when_the_words_change(visitor, annotations, keys):
    item = keys.orders["anna"][0]
    answer = post(visitor, f"{KEYS}/1", {"which": item, "go": "done"}, 303, follow=False)
    assert answer.headers["location"] == f"{KEYS}/2"
    post(visitor, f"{KEYS}/1", {"which": item, "label.0": "later", "kind.0": "semantic", "mark.0": [1], "go": "stay"})
    said = latest_of(annotations, keys, "person:anna")[item]
    assert said.done and said.patterns[0].label == "later"
    assert visitor.client.get(KEYS, follow_redirects=False).headers["location"] == f"{KEYS}/2"
    assert f"1 of {len(keys.orders['anna'])} done" in text_of(visitor.get("/annotate/keys"))


def test_a_pattern_without_its_kind_is_kept_but_not_done(visitor, annotations, keys):
    item = keys.orders["anna"][0]
    page = post(visitor, f"{KEYS}/1", {"which": item, "label.0": "something", "mark.0": [0], "go": "done"}, 400).text
    assert "Choose shallow or semantic for pattern 1." in page and 'value="something"' in page
    said = latest_of(annotations, keys, "person:anna")[item]
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


def test_a_change_is_judged(visitor, annotations):
    changes = read_sheet(annotations, "changes")
    item = changes.orders["anna"][0]
    page = visitor.get(f"{CHANGES}/1")
    assert text_of(page).count("Related?") == 1 and "checked" not in page
    post(visitor, f"{CHANGES}/1", {"which": item, "go": "done"}, 400)
    post(visitor, f"{CHANGES}/1", {"which": item, "related": "unsure", "go": "done"})
    said = latest_of(annotations, changes, "person:anna")[item]
    assert said.done and said.related == "unsure" and said.kind == "change"


def test_no_page_tells_layer_memory_or_control_and_texts_are_no_markup(visitor, annotations):
    pages = [visitor.get(f"/annotate{rest}") for rest in ("", "/keys", "/changes")]
    for name in ("keys", "changes"):
        for person, order in read_sheet(annotations, name).orders.items():
            pages += [visitor.get(f"/r/made/annotate/{name}/{person}/{number}") for number in range(1, len(order) + 1)]
    told = r"layer|memory|memories|control|random|trigger|sample|rank\b|sentence|L\d+\.\d+"
    for page in pages:
        assert not re.search(told, page, re.I) and "<script>alert(1)" not in page
    assert "&lt;script&gt;" in "".join(pages)


def test_there_is_no_other_page(visitor):
    of_run = ("none", "..%2fsecret%2fkeys", "keys/anna/0", "keys/anna/999", "keys/anna/x", "keys/eva", "keys/eva/1")
    for address in ("/annotate/none", "/r/none/annotate/keys", *(f"/r/made/annotate/{each}" for each in of_run)):
        visitor.get(address, 404)


def test_what_no_page_sends_is_refused(visitor, annotations, keys, subtests):
    bad = [{"label.0": "x" * 501}, {"kind.0": "deep"}, {"which": "bcdfghjk"}]
    bad += [{"mark.0": marks} for marks in ([99], [-1], ["x"], [1, 1])]
    good = {"which": keys.orders["anna"][0], "go": "stay"}
    bodies = [urlencode(good | fields, doseq=True) for fields in bad]
    for body in (*bodies, b"\xff\xfe", b"a=1&" * 6000, b"", b"x" * 300_000):
        with subtests.test(body=body[:100]):
            answer = visitor.client.post(f"{KEYS}/1", content=body, headers=ORIGIN)
            assert answer.status_code in ((413,) if len(body) > 2**18 else (400, 409))
    assert read_records(annotations).history == []


def test_another_site_can_keep_nothing(visitor, annotations, keys):
    fields = urlencode({"which": keys.orders["anna"][0], "go": "done"})
    for origin in (None, "null", "http://evil.example", "https://127.0.0.1:8000", "http://127.0.0.1:9999"):
        headers = {"Content-Type": ORIGIN["Content-Type"]} | ({"Origin": origin} if origin else {})
        assert visitor.client.post(f"{KEYS}/1", content=fields, headers=headers).status_code == 403, origin
    stranger = TestClient(visitor.client.app, base_url="http://127.0.0.1:8000")
    assert stranger.post(f"{KEYS}/1", content=fields, headers=ORIGIN).status_code == 403
    assert read_records(annotations).history == []
    for address in ("/annotate", "/annotate/keys", "/r/made/annotate/keys", KEYS, "/r/made/", "/r/made/m/0/0"):
        assert visitor.client.post(address, headers=ORIGIN).status_code == 405, address  # nor do other pages


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
