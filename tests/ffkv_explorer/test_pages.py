"""What the pages show, by the small run whose every number is known."""

import base64
import hashlib
import inspect
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from markupsafe import escape
from starlette.testclient import TestClient

from ffkv.base.errors import UserError
from ffkv.base.terminal import plain
from ffkv.run.report.wording import make_environment
from ffkv.run.results.memory_columns import example_columns
from ffkv_explorer import application
from ffkv_explorer.application import create_application
from ffkv_explorer.commands import explore
from ffkv_explorer.page_memory import strengths
from ffkv_explorer.pages import STEPS, level, step
from ffkv_explorer.security import Guard
from tests.run.results.conftest import HOSTILE, add_translation, write_sentences

from .conftest import coefficients, text_of


def test_the_first_page_lists_the_runs(visitor):
    assert "small synthetic Toy 2 5" in text_of(visitor.get("/"))


@pytest.mark.parametrize(("pages", "more"), [("PAGES", set()), ("KEEPING", {"body", "kind"})])
def test_a_page_asks_for_nothing_that_no_page_of_it_gets(pages, more, subtests):
    """A misspelt parameter would be left out when somebody asks for the page. One with a default is given by some of its addresses."""
    for path, page in getattr(application, pages).items():
        parts, others = ({*re.findall(r"{(\w+)", each)} for each in (path, "".join(application.PAGES)))
        known = {"shelf", "query", *more, *parts, *["held"] * ("run" in parts)}
        with subtests.test(path=path):
            asked = inspect.signature(page).parameters.values()
            assert [e.name for e in asked if e.name not in (known if e.default is e.empty else known | others)] == []


def test_a_run_is_shown_layer_by_layer(visitor):
    text = text_of(visitor.get("/r/small/"))
    assert "agreement" in text and "0 gated 3 50 % 0 % 1" in text and "1 gated 2 25 % 0 % 0" in text


def test_a_memory_shows_its_trigger_examples_its_value_and_in_the_foot_the_data(visitor):
    text, hashes = text_of(visitor.get("/r/small/m/0/0")), visitor.shelf.runs["small"].hashes
    assert "4 + + é the church" in text
    shown = ("L0.0", "Negative trigger examples", "Top tokens", "Bottom tokens", "precision", "Histogram")
    assert [each for each in shown if each not in text] == []
    assert f"model {'a' * 8} , corpus {hashes['corpus']} , settings {hashes['settings']}" in text


def test_the_page_says_whether_patterns_were_sought_and_seeks_them_on_request(visit, own_small):
    visitor = visit(own_small)  # nobody has sought any there
    sampled, other = (visitor.get(f"/r/small/m/0/{memory}") for memory in (0, 1))
    assert "Not analysed" not in sampled and "Seek patterns now" not in sampled
    assert "Not analysed: the run sought patterns in 100 keys per layer" in text_of(other)
    (address,) = re.findall(r'href="([^"]*)"[^>]*>Seek patterns now', other)
    assert "They were sought on request" in text_of(visitor.get(address.replace("&amp;", "&")))  # it has one example
    assert "They were sought on request" in text_of(visitor.get("/r/small/m/0/1"))  # the answer is kept
    again = visit(own_small)  # also when the explorer has ended
    assert "They were sought on request" in text_of(again.get("/r/small/m/0/1"))
    assert "Seek patterns now" in again.get("/r/small/m/1/1")


def test_patterns_that_cannot_be_kept_are_shown_all_the_same(visit, own_small):
    (own_small.parent / ".small.sought").write_text("in the way of the folder")
    visitor = visit(own_small)
    page = text_of(visitor.get("/r/small/m/0/1?patterns=1"))
    assert "They were sought on request" in page and "They are not kept: " in page and "cannot be written" in page
    assert "Not analysed" in text_of(visitor.get("/r/small/m/0/1"))


def test_another_memory_of_the_same_run_can_stand_beside_a_memory(visitor):
    page = visitor.get("/r/small/m/0/0")
    form = page.partition('<section id="compare">')[2].partition("</form>")[0]
    hidden = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    assert hidden == {"a": "small", "b": "small", "memory": "L0.0"}
    beside = visitor.client.get("/compare", params={**hidden, "memory_b": "L0.1"}).text
    assert "L0.0 of small" in text_of(beside) and "L0.1 of small" in text_of(beside)
    assert 'class="token both"' in beside


@pytest.mark.parametrize(
    ("names", "shown", "source"),
    [
        (["package:gensim/wiki.bz2:57", "package:gensim/wiki.bz2:125"], "57 , sentence 1", "package:gensim/wiki.bz2"),
        (["data/a.txt:1", "data/b.txt:2"], "data/a.txt:1 , sentence 1", ""),
        (["topic assert", "topic atom"], "topic assert , sentence 1", ""),
    ],
)
def test_a_trigger_example_tells_its_place_and_not_the_same_path_in_each_row(
    visitor, monkeypatch, names, shown, source
):
    def described(*given, **others):
        columns = example_columns(*given, **others)
        return {**columns, "document": (names * 5)[: len(columns["rank"])]}

    monkeypatch.setattr("ffkv.run.report.cards.example_columns", described)
    page = visitor.get("/r/small/m/0/0").partition('class="triggers"')[2].partition("</section>")[0]
    assert text_of(page).count(shown) >= 1
    assert text_of(page).count(source or "From: ") == bool(source)


def test_a_trigger_example_tells_the_name_of_its_document_and_its_place_on_hover(visit, own_small):
    named = f"<b>{HOSTILE}{'x' * 300}"
    (own_small / "corpus/train.h5").unlink()
    write_sentences(own_small / "corpus/train.h5", "train", ("", named))
    page = visit(own_small).get("/r/small/m/0/0")
    assert f'title="{escape(plain(named))}: two.txt"' in page and page.count("x" * 300) == page.count("x…</bdi>") == 2
    assert 'title="one.txt"' in page and "one.txt , sentence 0" in text_of(page)
    assert page.count("&lt;b&gt;") == 4 and not re.search("<script>alert|\u202e|\x07", page)


def test_answers_are_compressed_for_whom_takes_it(visitor):
    page = visitor.client.get("/r/small/m/0/0", headers={"Accept-Encoding": "gzip"})
    assert page.headers["content-encoding"] == "gzip" and int(page.headers["content-length"]) < len(page.content) / 2
    plain = visitor.client.get("/r/small/m/0/0", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.content == page.content


def test_a_dead_memory_has_a_page(visitor):
    text = text_of(visitor.get("/r/small/m/0/2"))
    assert "The key has no trigger example." in text
    assert "0 of 4 sampled prefixes of the validation split have a coefficient other than 0" in text


def test_texts_of_all_strengths_are_those_of_the_sample(visitor):
    held = visitor.shelf.runs["small"]
    for layer, index in ((0, 0), (0, 1), (1, 0), (1, 1)):
        found = strengths(held, held.run.memory(layer, index))
        m = coefficients()[:, 3 * layer + index]
        shown = [row.coefficient for row in found["quantiles"]]
        assert shown[0] == m.max() and shown[-1] == m.min()
        assert shown == sorted(shown, reverse=True)
        assert {row.coefficient for row in found["random"]} <= {*m.tolist()}
        assert (found["prefixes"], found["nonzero"]) == (4, 4)
    assert strengths(held, held.run.memory(1, 1))["random"] == found["random"]


def test_what_does_not_exist_is_said(visitor, subtests):
    places = ["m/2/0", "m/0/3", "m/-1/0", "m/0/x", f"m/0/{'9' * 40}", "m/0", "go?q=L9.9", "../other/", "nothing"]
    places += [f"memories/{name}" for name in ("L9.9.html", "x.html", "%2e%2e")]
    for place in places:
        with subtests.test(place=place):
            assert "There is no" in text_of(visitor.get(f"/r/small/{place}", 404))
    assert "The layer has memories 0 to 2." in text_of(visitor.get("/r/small/m/0/3", 404))


@pytest.fixture
def reports(monkeypatch, tmp_path):
    """The folder of the report, with a drawing."""
    monkeypatch.setattr("ffkv_explorer.page_run.report_file", lambda held: tmp_path / "reports/index.html")
    (tmp_path / "reports/figures").mkdir(parents=True)
    (tmp_path / "reports/figures/figure_3.svg").write_text("<svg/>")
    return tmp_path / "reports"


def test_drawings_beside_the_report_are_sent_and_nothing_else(visitor, reports):
    for name in ("figures/other.svg", "index.html"):
        (reports / name).write_text("<svg/>")
    answer = visitor.client.get("/r/small/figures/figure_3.svg")
    assert (answer.text, answer.headers["content-type"]) == ("<svg/>", "image/svg+xml")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert "script" not in answer.headers["content-security-policy"]
    for name in ("other.svg", "figure_5.svg", "figure_3", "%2e%2e%2findex.html"):
        assert "There is no" in text_of(visitor.get(f"/r/small/figures/{name}", 404))


def test_the_script_of_the_report_runs_in_the_explorer_and_nothing_else_does(visitor, reports):
    frame = make_environment(("ffkv.run.report", ".")).get_template("frame.html")
    (reports / "index.html").write_text(frame.render())
    answer = visitor.client.get("/r/small/report")
    (script,) = re.findall("<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    directives = answer.headers["content-security-policy"].split("; ")
    assert [each for each in directives if "script" in each] == [f"script-src 'sha256-{digest}'"]
    assert "default-src 'none'" in directives


def test_a_page_that_is_not_there_has_the_links_of_all_pages(visitor):
    guard = Guard()
    client = TestClient(create_application(visitor.shelf, guard), base_url="http://127.0.0.1:8000")
    for answer, code in ((client.get(f"/?token={guard.token}"), 200), (client.get(f"{guard.base}/no/such/page"), 404)):
        assert answer.status_code == code
        assert re.findall(r'href="([^"]*explorer\.css)"', answer.text) == [f"{guard.base}/static/explorer.css"]


def test_links_beside_a_report_that_lead_out_are_not_followed(visitor, reports, tmp_path):
    (tmp_path / "secret").write_text("a secret")
    (reports / "figures/figure_4.svg").symlink_to("figure_3.svg")
    for name in ("index.html", "figures/figure_5.svg"):
        (reports / name).symlink_to(tmp_path / "secret")
    assert visitor.client.get("/r/small/figures/figure_4.svg").text == "<svg/>"
    for address in ("report", "figures/figure_5.svg"):
        page = visitor.get(f"/r/small/{address}", 404)
        assert "which is not in the folder of the report" in text_of(page) and "a secret" not in page


def test_a_link_to_other_data_warns(visitor):
    held = visitor.shelf.runs["small"]
    assert "L0.0" in visitor.get(f"/r/small/m/0/0?data={held.data}")
    page = visitor.get("/r/small/m/0/0?data=1-2-3", 409)
    assert "This link is about other data" in page and 'href="/r/small/m/0/0"' in page
    assert "Trigger examples" not in page


def test_neighbours_and_exported_pages_lead_to_live_ones(visitor):
    assert visitor.client.get("/r/small/memories/L1.1.html").url.path == "/r/small/m/1/1"
    page = visitor.get("/r/small/m/0/1")
    for address in ("/r/small/m/0/0", "/r/small/m/0/2", "/r/small/m/1/1"):
        assert f'href="{address}"' in page
    assert 'href="/r/small/m/1/2"' not in visitor.get("/r/small/m/0/2")


def test_a_memory_as_json(visitor):
    found = json.loads(visitor.get("/r/small/m/0/0?format=json"))
    memory = visitor.shelf.runs["small"].run.memory(0, 0)
    assert found["name"] == "L0.0" and found["data"] == visitor.shelf.runs["small"].data
    assert [row["coefficient"] for row in found["triggers"]] == memory.triggers["coefficient"].tolist()
    assert [row["id"] for row in found["promotes"]] == memory.promotes(3)["id"].tolist()
    assert found["statistics"]["firing_rate"] == pytest.approx(memory.statistics["firing_rate"])


# The corpus is hostile


def test_texts_of_the_corpus_stay_texts_and_the_hostile_token_is_spelled_out(visitor):
    places = ("", "m/1/0", "m/0/0", "memories", "m/1/0/similar", "memories?promotes=%235")
    for address in ("/compare", *(f"/r/small/{place}" for place in places)):
        page = visitor.get(address)
        assert not any(each in page for each in ("<script>alert", "\u202e", "\x07")), address
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "\\u202e" in page


def test_what_the_address_says_stays_text(visitor):
    hostile = f'"></script><script>alert(1)</script>{HOSTILE}'
    asked = [("memories", name) for name in ("promotes", "text", "pattern", "sort", "layer", "min_norm", "page")]
    for place, name in [*asked, ("m/0/0", "data")]:
        assert "<script>alert" not in visitor.client.get(f"/r/small/{place}", params={name: hostile}).text, name


def test_a_run_of_a_hostile_name_has_its_page(small, tmp_path, visit):
    visitor = visit(shutil.copytree(small, tmp_path / "results" / 'a b<script>"&'))
    page = visitor.get("/")
    address = page.split('<th scope="row"><a href="')[1].split('"')[0]
    assert "L0.0" in visitor.get(address + "m/0/0")
    assert "<script>&" not in page


# Damaged runs


@pytest.mark.parametrize(
    "name, address",
    [("triggers.h5", "m/0/0"), ("values/by_memory/0.parquet", "memories"), ("sampled_prefixes.h5", "m/0/0"),
     ("values.h5", "m/0/0/similar"), ("values/figure_4_agreement.csv", "")],
)  # fmt: skip
@pytest.mark.parametrize("damage", ["deleted", "changed"])
def test_a_damaged_run_says_what_is_damaged(own_small, visit, capsys, name, address, damage):
    visitor = visit(own_small)
    if damage == "deleted":
        (own_small / name).unlink()
    else:
        with (own_small / name).open("r+b") as file:
            file.seek(8)
            file.write(b"\0" * 64)
    text = text_of(visitor.get(f"/r/small/{address}", 500))
    assert Path(name).name.removesuffix(".csv") in text and "Traceback" not in text
    assert visitor.guard.token not in "".join(capsys.readouterr())
    visitor.get("/")


def test_a_defect_is_a_page_and_says_nothing_of_the_question(visitor, monkeypatch, capsys):
    monkeypatch.setattr("ffkv_explorer.page_run.find_comparisons", lambda shelf: 1 / 0)
    text = text_of(visitor.get("/?secret=question", 500))
    assert "This is a defect of ffkv" in text
    assert "question" not in "".join(capsys.readouterr())


def test_the_scale_has_white_at_zero_and_grows_with_the_value():
    above = [f"p{number}" for number in range(1, STEPS + 1)]
    below = [f"n{number}" for number in range(STEPS, 0, -1)]
    assert [step(value, 1) for value in np.linspace(-1, 1, 17)] == [*below, "zero", *above]
    assert step(5, 1) == "p8" and step(0.0, 0.0) == "zero" and step(np.nan, 1) == "zero" and step(1e-9, 1) == "p1"
    assert [level(share) for share in (0, 0.5, 1, np.nan)] == ["q0", "q4", "q8", "q0"]


PLACES = ["", "?map=agreement", "memories", "memories?promotes=church", "m/1/0", "m/1/0/similar"]
PLACES += ["trace", "collections", "go?q=L1.0"]


@pytest.fixture
def reading(visit, small, tmp_path):
    """An explorer of the small run, which reads values translated, too, and of the run without that."""
    return visit(add_translation(shutil.copytree(small, tmp_path / "results/both")), small)


def test_a_value_is_shown_in_either_reading(reading):
    shown = {way: reading.get(f"/r/both/m/1/0{way}") for way in ("", "?reading=translated")}
    # The tokens of L1.0: HOSTILE, " the", " church"; translated in the opposite order.
    tokens = {way: re.findall("promotes=%23([0-9])", page)[:3] for way, page in shown.items()}
    assert tokens == {"": ["5", "0", "1"], "?reading=translated": ["1", "0", "5"]}
    for way, page in shown.items():
        assert 'href="/r/both/m/1/0#value"' in page and 'href="/r/both/m/1/0?reading=translated#value"' in page
        assert ("Each layer&#39;s map to the last layer precedes the head" in page.replace("'", "&#39;")) == bool(way)
    found = json.loads(reading.get("/r/both/m/1/0?reading=translated&format=json"))
    assert found["reading"] == "translated" and [row["id"] for row in found["promotes"]] == [1, 0, 5]
    assert found["statistics"]["rank"] == 2 and ".read_as('translated').memory(" in text_of(
        shown["?reading=translated"]
    )
    rows = json.loads(reading.get("/r/both/memories?reading=translated&layer=1&format=json"))
    assert [row["top_token"] for row in rows["memories"]] == [" church", " the"] and rows["reading"] == "translated"


@pytest.mark.parametrize("place", PLACES)
def test_links_of_a_translated_page_keep_the_reading(reading, place):
    page = reading.get(f"/r/both/{place}{'&' if '?' in place else '?'}reading=translated")
    switch = re.findall(r'<a href="[^"]*"[^>]*>as the head reads them</a>', page)
    page = page.replace(*switch, "") if switch else page
    assert len(switch) == (place not in ("m/1/0/similar", "trace", "collections")) and "reading=" not in str(switch)
    links = re.findall(r'(?:href|action|src|data-complete)="(/r/both/[^"]*)', page)
    lost = {link for link in links if "reading=translated" not in link}
    assert len(links) > 5 and lost <= {"/r/both/claims.svg"}
    cells = re.findall(r'href="((?:memories|m/)[^"]*)"', page)  # of the map
    assert bool(cells) == (place in ("", "?map=agreement")) and all("reading=translated" in link for link in cells)
    forms = re.findall(r'<form (?!method)[^>]*action="/r/both/.*?</form>', page, re.DOTALL)
    assert forms and all('name="reading" value="translated"' in form for form in forms)


def test_what_is_kept_leads_back_in_the_same_reading(reading):
    sent = {"memory": "L1.0", "back": "L1.0", "collection": "starred", "action": "add"}
    headers = {"Origin": "http://127.0.0.1:8000"}
    answer = reading.client.post("/r/both/collections?reading=translated", data=sent, headers=headers)
    assert str(answer.url).endswith("/r/both/m/1/0?reading=translated#lists")


def test_a_run_without_the_reading_has_no_switch_and_says_what_to_set(reading):
    assert "reading=" not in reading.get("/r/small/m/1/0") + reading.get("/r/small/memories") + reading.get("/r/small/")
    told = text_of(reading.get("/r/small/m/1/0?reading=translated", 404))
    assert "Set values.readout to both, see docs/translation.md, and run the workflow again" in told
    assert "Choose one of: head, translated, jacobian" in text_of(reading.get("/r/both/m/1/0?reading=x", 404))


# Pages as files: they open from disk, and refer to nothing outside


def export(small, folder, *names) -> list[str]:
    words = ["--export", str(folder), "--no-colours", str(small), *names]
    done = CliRunner().invoke(explore, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output == f"{folder / 'index.html'}: open it in a browser.\n"
    return sorted(path.name for path in folder.iterdir())


def test_a_run_and_the_named_memories_are_written(small, tmp_path):
    assert export(small, tmp_path / "pages", "L0.0", "1/1", "L0.0") == ["L0.0.html", "L1.1.html", "index.html"]
    text = text_of((tmp_path / "pages/L0.0.html").read_text())
    assert "Trigger examples" in text and "Similar memories" in text and "By value" in text


def test_links_lead_to_files_that_are_there(small, tmp_path):
    pages = [tmp_path / name for name in export(small, tmp_path, "L0.0", "L0.1", "L1.1")]
    linked = set()
    for page in pages:
        html = page.read_text()
        for address in re.findall(r'(?:href|src|action)="([^"]*)"', html):
            assert address.startswith("#") or (tmp_path / address).is_file(), (page, address)
            linked.add(address)
        assert "<form" not in html.replace('<form method="dialog">', "") and "<script" not in html
        assert "default-src 'none'" in html and "token=" not in html
    assert {"L0.0.html", "L0.1.html", "L1.1.html", "index.html"} <= linked


def test_without_names_the_memories_are_those_of_a_report(small, tmp_path):
    # L0.2 has no trigger example, so no report shows it.
    assert export(small, tmp_path) == ["L0.0.html", "L0.1.html", "L1.0.html", "L1.1.html", "index.html"]


def test_an_unknown_memory_is_refused_and_nothing_is_written(small, tmp_path):
    for name, message in (("L9.0", "There is no layer 9"), ("x", "is not a memory")):
        with pytest.raises(UserError, match=message):
            export(small, tmp_path / "no", name)
    assert not (tmp_path / "no").exists()
