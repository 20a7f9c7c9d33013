"""The search over all memories, and the box that leads to a memory."""

import csv
import io
import json
import re

import numpy as np
import pandas as pd

from ffkv_explorer import page_search
from ffkv_explorer.page_search import WORDS
from tests.run.results.conftest import add_behaviours, add_roles

from .conftest import text_of


def test_what_is_typed_is_completed(visitor):
    def ask(text):
        return visitor.client.get("/r/small/complete", params={"q": text}).json()

    assert ask("CHU") == ["church"] and ask(" chu") == ["church"]
    assert ask("L0.") == ["L0.0", "L0.1", "L0.2"] and ask("0/1") == ["L0.1"]
    assert ask("") == ask("zzz") == ask("L9.1") == ask("L" + "9" * 5000 + ".1") == []


def test_the_candidates_of_a_behaviour_are_found_by_its_name(visit, own_small):
    visitor = visit(add_behaviours(own_small))
    assert visitor.client.get("/r/small/complete", params={"q": "AGREE"}).json() == ["behaviour:agreement"]
    assert visitor.client.get("/r/small/complete", params={"q": ""}).json() == []
    answer = visitor.client.get("/r/small/go", params={"q": " behaviour:agreement"})
    assert answer.url.path == "/r/small/memories" and answer.url.params["behaviour"] == "agreement"
    assert "<option selected>agreement</option>" in answer.text and "<option>lists</option>" in answer.text
    assert '<option value="behaviour_effect">' in answer.text
    listed = re.findall(r">(L\d\.\d)</a>", answer.text)
    assert listed == names(visitor, behaviour="agreement") == ["L0.0", "L1.1", "L0.1"]
    assert names(visitor, behaviour="agreement", sort="behaviour_screen", order="ascending")[0] == "L0.1"
    listed = json.loads(visitor.get("/r/small/memories?behaviour=lists&format=json"))["memories"]
    assert [row["behaviour_effect"] for row in listed] == [None, None]  # none was measured
    assert 'href="/r/small/memories?behaviour=agreement">agreement</a>' in visitor.get("/r/small/m/1/1")
    wrong = visitor.get("/r/small/memories?behaviour=agreeing", 400)
    assert "Choose one of: agreement, lists" in text_of(wrong)


def test_the_page_of_a_run_leads_to_its_behaviours(visit, own_small, visitor):
    page = visit(add_behaviours(own_small)).get("/r/small")
    for name in ("agreement", "lists"):
        assert f'href="/r/small/memories?behaviour={name}">{name}</a>' in page
    assert 'id="behaviours"' in page and 'id="behaviours"' not in visitor.get("/r/small")


def test_a_run_without_behaviours_has_no_field_for_them(visitor):
    assert 'id="behaviour"' not in visitor.get("/r/small/memories")
    assert "has no behaviours" in text_of(visitor.get("/r/small/memories?behaviour=agreement", 400))


def test_memories_of_a_role_are_found(visit, own_small):
    visitor = visit(add_roles(own_small))
    assert names(visitor, role="enrichment") == ["L0.0", "L1.0"]
    page = visitor.get("/r/small/memories?output_role=suppression")
    assert "<option selected>suppression</option>" in page and "<h2>1 memory</h2>" in page and ">L1.0</a>" in page
    assert page.count("<option>atypical ") == 5
    assert "Did you mean 'enrichment'?" in text_of(visitor.get("/r/small/memories?role=enrichmend", 400))


def test_a_run_without_roles_has_no_field_for_them(visitor):
    assert 'id="role"' not in visitor.get("/r/small/memories")


def test_each_column_of_a_search_says_what_it_is(visitor):
    page = visitor.get("/r/small/memories?promotes=church")
    heads = re.findall(r'<th scope="col"( title="[^"]+")?', page.partition('class="list"')[2])
    assert len(heads) > 8 and all(heads)
    assert WORDS["demoted_rank"].startswith("for a search by `demotes`")


def test_the_box_leads_to_a_memory_by_any_of_its_names_and_to_a_search_for_a_token(visitor):
    for name in ("L1.1", "1.1", "1/1", "L1D1", " L1.1 "):
        assert visitor.client.get("/r/small/go", params={"q": name}).url.path == "/r/small/m/1/1", name
    answer = visitor.client.get("/r/small/go", params={"q": "church"})
    assert answer.url.path == "/r/small/memories" and answer.url.params["promotes"] == "church"


def names(visitor, **asked):
    answer = visitor.client.get("/r/small/memories", params={**asked, "format": "json"})
    assert answer.status_code == 200, answer.text
    return [row["name"] for row in answer.json()["memories"]]


def test_search_is_that_of_python(visitor):
    run = visitor.shelf.runs["small"].run
    assert names(visitor, promotes="Church") == run.memories(promotes="church", sort="promoted_weight")["name"].tolist()
    assert names(visitor, promotes="#2") == run.memories(promotes=2, sort="promoted_weight")["name"].tolist()
    assert names(visitor, demotes="church") == run.memories(demotes="church")["name"].tolist()
    assert names(visitor, text="the") == run.memories(text="the")["name"].tolist()
    assert names(visitor, text="/th.|é/") == run.memories(text="th.|é", expression=True)["name"].tolist()
    assert names(visitor, layer="1", sort="maximum_coefficient") == ["L1.1", "L1.0"]
    assert names(visitor, sort="maximum_coefficient", order="ascending")[0] == "L0.2"
    assert names(visitor, min_maximum_coefficient="1", max_maximum_coefficient="4") == ["L0.0", "L0.1"]
    assert names(visitor, pattern="ENDS WITH") == ["L0.0", "L1.0"]


WRONG = (
    ({"promotes": "nothing"}, "is not a token of synthetic"),
    ({"sort": "beauty"}, "There is no column 'beauty'"),
    ({"order": "up"}, "There is no order 'up'"),
    ({"min_norm": "5", "max_norm": "1"}, "The range of norm begins at 5 and ends at 1"),
    (
        {"promtes": "church"},
        "There is no condition 'promtes'. Did you mean 'promotes'? Choose one of: promotes, demotes",
    ),
    ({"output_role": "suppression"}, "The run lacks the table roles/by_memory, so no role is known."),
    ({"layer": "7"}, "There is no layer 7"),
    ({"layer": "x"}, "Write a whole number"),
    ({"min_norm": "much"}, "The lower end of norm is 'much'. Write a number"),
    ({"min_norm": "nan"}, "Write a number"),
    ({"min_top_token": "1"}, "holds texts"),
    ({"min_beauty": "1"}, "no column 'beauty'"),
    ({"page": "99"}, "There is no page 99"),
    ({"text": "/(/"}, "is not a regular expression"),
    ({"text": "/" + "a" * 600 + "/"}, "longer than 500 characters"),
)


def test_a_wrong_question_is_answered_on_the_page_with_the_form(visitor, subtests):
    for asked, message in WRONG:
        with subtests.test(asked=asked):
            answer = visitor.client.get("/r/small/memories", params=asked)
            assert answer.status_code == 400 and message in text_of(answer.text) and 'id="search"' in answer.text
            listed = visitor.client.get("/r/small/memories", params={**asked, "format": "json"})
            assert "page" in asked or (listed.status_code == 400 and message in listed.json()["error"])
    listed = visitor.client.get("/r/small/memories", params={"format": "xml"})
    assert listed.status_code == 400 and listed.json()["error"].startswith("There is no format 'xml'")


def test_the_page_keeps_what_was_asked_also_what_is_refused(visitor):
    page = visitor.get("/r/small/memories?promotes=church&min_norm=0.5&sort=norm")
    kept = ('value="church"', 'name="min_norm" value="0.5"', '<option value="norm" selected')
    assert [each for each in kept if each not in page] == []
    page = visitor.client.get("/r/small/memories?min_norm=5&max_norm=1").text
    assert 'name="min_norm" value="5"' in page and 'name="max_norm" value="1"' in page


def test_a_list_for_a_spreadsheet_holds_no_formula_and_all_digits(visitor, monkeypatch):
    answer = visitor.client.get("/r/small/memories?format=csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["name"] for row in rows] == ["L0.0", "L0.1", "L0.2", "L1.0", "L1.1"]

    texts = ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "the", 'a "b", c', "two\nlines"]
    numbers = [0.1, -1.5, 1e-9, 1e22, np.nan, 3.0, 0.0, 2 / 3, -0.25]
    made = {"text": texts, "double": numbers, "float": np.array(numbers, np.float32), "whole": range(9)}
    found = pd.DataFrame(made | {"yes": [True, False, True] * 3})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    writer.writerow(found)
    for row in zip(*(found[name].tolist() for name in found)):
        safe = (f"'{one}" if one in texts[:6] else "" if one != one else one for one in row)
        writer.writerow(safe)
    monkeypatch.setattr(page_search, "_blocks", lambda given: [given[:4], given[4:]])
    assert "".join(page_search._csv(found)) == file.getvalue()


def test_a_list_of_several_blocks_is_whole(visitor, monkeypatch):
    asked = [visitor.get(f"/r/small/memories?promotes=church&format={form}") for form in ("json", "csv")]
    monkeypatch.setattr(page_search, "PER_BLOCK", 2)
    assert [visitor.get(f"/r/small/memories?promotes=church&format={form}") for form in ("json", "csv")] == asked
    assert json.loads(asked[0])["total"] == 4
    assert json.loads(visitor.get("/r/small/memories?text=zzz&format=json"))["memories"] == []


def test_numbers_without_end_are_no_defect(visitor):
    for place in ("go?q=L1.", "memories?promotes=%23", "memories?layer=", "memories?page=", "memories?min_norm="):
        assert visitor.client.get(f"/r/small/{place}{'9' * 5000}").status_code in (200, 400), place
