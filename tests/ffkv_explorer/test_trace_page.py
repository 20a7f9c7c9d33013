"""Traces on a finished tiny run, whose model is loaded."""

import json
import re
import shlex
from dataclasses import replace
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

import ffkv
from ffkv.run.results.indexes import pushed_tokens
from ffkv.run.results.text import number, percent, token
from ffkv_explorer.page_trace import LONGEST

from .conftest import text_of

pytestmark = pytest.mark.workflow
PROMPT = "Return the name of the"


@pytest.fixture(scope="module")
def visitor(tiny_visitor):
    return tiny_visitor


@pytest.fixture(scope="module")
def run(visitor):
    return visitor.shelf.runs["tiny"].run


def ask(visitor, status=200, **asked):
    answer = visitor.client.get("/r/tiny/trace", params=asked)
    assert answer.status_code == status, text_of(answer.text)[:3000]
    return answer.text


def test_the_page_shows_the_numbers_of_python(visitor, run):
    found = ffkv.trace(run, PROMPT)
    asked = json.loads(ask(visitor, prompt=PROMPT, format="json"))
    assert asked == json.loads(found.to_json())
    page = ask(visitor, prompt=PROMPT)
    assert (
        page.count('class="sum"') == 1 and 'layer=0#layer-0" data-swap="layer-0"' in page
    )  # one layer, and a way to each
    assert ask(visitor, prompt=PROMPT, layer="0").count('class="sum"') == 1
    text = text_of(ask(visitor, prompt=PROMPT, layer="all"))
    assert "The parts add up" in text
    sums = [float(share) for share in re.findall(r"all parts ([0-9.]+)", text)]
    assert sums == pytest.approx([1] * len(sums), abs=1.1e-4) and sums  # rounded to four digits
    for name in found.contributions["name"]:
        assert name in text


def test_edges_are_measured_when_they_are_asked_for(visitor, run):
    assert "Measure the edges between the 30 strongest memories" in text_of(ask(visitor, prompt=PROMPT))
    found = ffkv.trace(run, PROMPT, edges=30)
    strongest = found.strongest_edges(1).iloc[0]
    section = text_of(ask(visitor, prompt=PROMPT, edges="30").partition('id="edges"')[2].partition("</details>")[0])
    assert f"{strongest['source']} {strongest['target']} {strongest['factor']}" in section
    assert f"up to a relative deviation of {number(found.parts['deviation'].max())}." in section


def test_the_prediction_changes_when_a_memory_is_off(visitor, run):
    name = ffkv.trace(run, PROMPT).contributions["name"].iloc[0]
    page = ask(visitor, prompt=PROMPT, off=name)
    text = text_of(page)
    assert "Prediction before and after" in text and f"{name} switched off" in text
    found = ffkv.trace(run, PROMPT, off=[name])
    assert found.effect["change"].abs().max() > 0
    assert f'href="/r/tiny/trace?prompt={PROMPT.replace(" ", "+")}#prediction"' in page  # the way back


def test_off_and_scale_can_be_added_and_taken_back(visitor):
    page = ask(visitor, prompt=PROMPT, off="L0.1", scale="L1.2:0.5")
    links = re.findall(r'href="([^"]*)#prediction"', page)
    assert any("off=L0.1%2CL" in link and "scale=L1.2%3A0.5" in link for link in links)
    assert any(link.endswith("scale=L1.2%3A0.5") for link in links)  # L0.1 back
    assert any("scale=L1.2%3A0.5%2CL" in link for link in links)  # another one doubled
    assert "L1.2 times 0.5000" in text_of(page)


def test_a_wrong_question_is_answered_beside_the_form(visitor, subtests):
    for asked, message in (
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt": "x" * (LONGEST + 1)}, "The prompt has 20,001 characters. At most 20,000 are read"),
        ({"prompt": "word " * 400}, "reads at most 64"),
        ({"position": "first"}, "Write a whole number"),
        ({"position": "99"}, "There is no position 99"),
        ({"off": "L9.1"}, "There is no layer 9"),
        ({"scale": "L0.1"}, "L0.1"),
        ({"scale": "L0.1:nan"}, "nan"),
        ({"word": "no such token"}, "no such token"),
        ({"word": "#99999"}, "There is no token 99999"),
        ({"layer": "2"}, "There is no layer '2'. Choose one of: all, 0, 1."),
        ({"point": "heart"}, "There is no point 'heart'"),
        ({"off": "L0.1", "when": "never"}, "There is no when 'never'. Choose one of: after, before"),
        ({"edges": "31"}, "edges is 31. The explorer connects at most 30"),
        ({"graph": "1", "position": "0"}, "the last position"),
        ({"graph": "1", "other": "Return"}, "same number of tokens"),
    ):
        with subtests.test(asked=asked):
            status = 400 if asked.get("prompt", PROMPT) else 200  # nothing is a question, too
            page = ask(visitor, status, **{"prompt": PROMPT, **asked})
            assert message in text_of(page) and 'id="prompt"' in page
            if status == 400:
                assert message in json.loads(ask(visitor, 400, **{"prompt": PROMPT, **asked}, format="json"))["error"]


def written(page):
    """The texts of the page, and their headings."""
    found = re.findall(r'<h3>([^<]*)</h3>\s*<p class="text written">(.*?)</p>', page, re.DOTALL)
    return [(heading, unescape(re.sub("<[^>]*>", "", text))) for heading, text in found]


@pytest.mark.parametrize("asked", [{}, {"temperature": 1.5, "seed": 3}])
def test_the_model_goes_on_untouched_and_changed_as_python_says(visitor, run, asked):
    off = ",".join(ffkv.trace(run, PROMPT).strongest()["name"])
    expected = ffkv.generate(run, PROMPT, off=off, tokens=8, **asked)
    assert expected["text"].nunique() == 2
    question = {"prompt": PROMPT, "off": off, "tokens": "8", **asked}
    page = ask(visitor, **question)
    untouched, changed = written(page)
    assert untouched == ("Untouched", expected["text"][0])
    assert changed[0].startswith("With L") and " x 0" in changed[0] and changed[1] == expected["text"][1]
    assert "Both texts are the same" not in page and page.count("8 tokens") == 2
    assert json.loads(ask(visitor, **question, format="json"))["texts"] == expected.to_dict("records")
    with visitor.shelf.model:  # both are kept
        assert written(ask(visitor, **question, point="residual")) == [untouched, changed]


def test_without_a_change_one_text_is_written_and_without_a_question_none(visitor):
    assert [heading for heading, _ in written(ask(visitor, prompt=PROMPT, tokens="3"))] == ["Untouched"]
    page = ask(visitor, prompt=PROMPT, off="L0.1")
    assert written(page) == [] and 'name="tokens" value="40"' in page
    form = page.partition('id="continuation"')[2].partition("</form>")[0]
    assert re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form) == [("prompt", PROMPT), ("off", "L0.1")]
    assert "texts" not in json.loads(ask(visitor, prompt=PROMPT, format="json"))


def test_what_cannot_be_written_is_told_beside_its_form_and_the_trace_stays(visitor, subtests):
    for asked, message in (
        ({"tokens": "many"}, "tokens is 'many'. Write a whole number"),
        ({"tokens": "0"}, "tokens is 0: must be at least 1"),
        ({"tokens": "201"}, "tokens is 201. The explorer writes at most 200; `ffkv generate` writes more."),
        ({"tokens": "60"}, "With 60 more it does not fit"),
        ({"tokens": "3", "temperature": "hot"}, "temperature is 'hot'. Write a number"),
        ({"tokens": "3", "temperature": "-1"}, "temperature is -1"),
        ({"tokens": "3", "temperature": "inf"}, "temperature is inf"),
        ({"tokens": "3", "seed": "-1"}, "seed is -1"),
    ):
        with subtests.test(asked=asked):
            page = ask(visitor, 400, prompt=PROMPT, **asked)
            assert message in text_of(page.partition('id="continuation"')[2]) and page.count('role="alert"') == 1
            assert 'id="final"' in page and f'name="tokens" value="{asked["tokens"]}"' in page
            assert message in json.loads(ask(visitor, 400, prompt=PROMPT, **asked, format="json"))["error"]


def test_a_slip_in_the_address_of_a_trace_is_told(visitor):
    page = text_of(ask(visitor, 400, prompt=PROMPT, of="L0.1"))
    assert "There is no condition 'of'. Did you mean 'off'?" in page


def test_what_the_model_writes_stays_text(visitor, monkeypatch):
    hostile = pd.DataFrame({"changes": [""], "text": ["a</p><script>alert(1)</script>\n\u202eb"], "tokens": [1]})
    monkeypatch.setattr("ffkv.run.trace.generate.generate", lambda *_, **__: hostile)
    page = ask(visitor, prompt=PROMPT, tokens="7", seed="78")
    assert "<script>alert" not in page and "\u202e" not in page
    ((_, text),) = written(page)
    assert text == "a</p><script>alert(1)</script>\n\\u202eb"


def test_a_hostile_prompt_stays_text_and_line_ends_are_those_of_text(visitor):
    assert "<script>alert" not in ask(visitor, prompt="</textarea></title><script>alert(1)</script>\u202e")
    assert json.loads(ask(visitor, prompt="a\r\nb", format="json"))["text"] == "a\nb"


def test_while_one_trace_is_computed_the_next_is_told_so_and_a_kept_one_is_shown(visitor):
    ask(visitor, prompt=PROMPT)
    with visitor.shelf.model:
        ask(visitor, prompt=PROMPT, point="residual")
        page = ask(visitor, 429, prompt=PROMPT, tokens="5", seed="77")  # no text is written, and the trace stays
        assert "computes one at a time" in text_of(page) and 'id="final"' in page
        answer = visitor.client.get("/r/tiny/trace", params={"prompt": f"{PROMPT} file"})
    assert answer.status_code == 429 and answer.headers["retry-after"] == "5"
    assert "computes one at a time" in text_of(answer.text)
    ask(visitor, prompt=PROMPT)


def test_the_strongest_memories_of_all_layers_come_first_and_can_be_switched_off_together(visitor, run):
    logits = ffkv.trace(run, PROMPT).contributions.set_index("name")["logit"]
    expected = logits.abs().sort_values(ascending=False, kind="stable").index[:10].tolist()
    page = ask(visitor, prompt=PROMPT)
    boxes = re.findall(r'type="checkbox" name="off" value="([^"]*)"', page)
    assert boxes == expected == ffkv.trace(run, PROMPT).strongest()["name"].tolist()
    assert page.index('id="strongest"') < page.index('id="map"')
    together = ffkv.trace(run, PROMPT, off=expected)
    (link,) = re.findall(r'href="([^"]*)#prediction">Switch these 10 off', page)
    asked = visitor.client.get(link.replace("&amp;", "&") + "&format=json").json()
    assert asked["changes"] == together.changes == dict.fromkeys(expected, 0.0)
    ticked = json.loads(ask(visitor, prompt=PROMPT, off=["", *expected[:2]], format="json"))
    assert ticked["changes"] == dict.fromkeys(expected[:2], 0.0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_memory_is_shown_with_the_token_that_its_coefficient_pushes_towards(visitor, run, monkeypatch, sign):
    """Where it is negative, this is the bottom token, without a probability. A memory that is off pushes nothing.

    No coefficient of the model is negative, so its trace is made up."""
    prompt, trace = f"The function returns {sign}", ffkv.trace
    own = trace(run, prompt).contributions.query("coefficient > 0")["name"].iloc[0]
    found = trace(run, prompt, off=own).changed
    table = found.contributions.assign(coefficient=sign * found.contributions["coefficient"])
    made_up = replace(found, contributions=table.assign(**pushed_tokens(run.files, table)))
    monkeypatch.setattr(ffkv, "trace", lambda *_, **options: replace(trace(run, prompt, off=own), changed=made_up))
    page = ask(visitor, prompt=prompt, off=own, layer="all")
    assert "pushes towards" in page and ">promotes<" not in page
    rows = [(name, text_of(row)) for row in page.split("<tr")[1:] for name in re.findall(r"/m/([0-9]+/[0-9]+)", row)]
    for row in made_up.contributions.itertuples():
        texts = [text for name, text in rows if name == f"{row.layer}/{row.memory}"]
        end = percent(row.top_probability) if sign > 0 else "bottom of the value"
        shown = text_of(f"{token(row.pushes)} {end} off ×2") if row.name != own else "– back"
        assert texts and all(f" {shown}" in text for text in texts), (row.name, shown, texts)


@pytest.mark.parametrize(("asked", "when", "other"), [({}, "after", "before"), ({"when": "before"}, "before", "after")])
def test_after_a_change_each_table_says_of_what_it_is_and_leads_to_the_other(visitor, run, asked, when, other):
    name = ffkv.trace(run, PROMPT).strongest(1)["name"][0]
    page = ask(visitor, prompt=PROMPT, off=name, **asked)
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    headings.remove("Graph of this prediction")  # of the unchanged model
    assert len(headings) == 6 and headings[0] == "Prediction before and after"
    assert all(heading.endswith(f", {when} the changes") for heading in headings[1:])
    links = re.findall(rf'href="([^"]*)">Show {other} the changes', page)
    anchors = ["strongest", "map", "layers", "memories", "sums"]
    assert [link.partition("#")[2] for link in links] == anchors
    assert all(f"when={other}&" in link.replace("#", "&") for link in links)
    trace = ffkv.trace(run, PROMPT, off=[name])
    shown = trace.changed if when == "after" else trace
    assert re.findall(r'type="checkbox" name="off" value="([^"]*)"', page) == shown.strongest()["name"].tolist()
    text = text_of(page)
    for row in shown.layers.itertuples():
        assert f" {number(row.norm_output)} {number(row.active)} " in text
    tops = [each.predictions.query("point == 'output' and rank == 0") for each in (trace, trace.changed)]
    assert page.count(" moved") == (tops[0]["token_id"] != tops[1]["token_id"]).sum()
    assert f"The largest relative deviation is {number(shown.deviation)}" in text


def test_without_a_change_nothing_is_before_or_after(visitor):
    assert "the changes" not in ask(visitor, prompt=PROMPT, when="before")


@pytest.fixture
def own(own_tiny, monkeypatch) -> Path:
    """The folder of the tiny run, with room for annotations beside it that nobody else sees."""
    monkeypatch.chdir(own_tiny)
    return own_tiny / "results/tiny"


def history_of(page):
    section = page.partition('id="history"')[2]
    return [unescape(link) for link in re.findall(r'<th scope="row"><a href="([^"]*)"', section)]


def test_the_page_leads_back_to_the_last_traces(own, visit):
    visitor = visit(own)
    assert history_of(ask(visitor)) == []
    for asked in ({"prompt": PROMPT}, {"prompt": PROMPT}, {"prompt": PROMPT, "off": "L0.1"}, {"prompt": "a<i>"}):
        ask(visitor, **asked)
    ask(visitor, prompt=PROMPT, format="json")  # no page, so nobody wants to go back to it
    ask(visitor, 400, prompt=PROMPT, off="L9.1")
    page = ask(visit(own))  # another explorer
    plus = PROMPT.replace(" ", "+")
    expected = ["prompt=a%3Ci%3E", f"prompt={plus}&off=L0.1", f"prompt={plus}"]
    assert history_of(page) == [f"/r/tiny/trace?{each}" for each in expected]
    assert "<i>" not in page.partition('id="history"')[2]
    assert "L0.1" in text_of(visitor.get(history_of(page)[1]))
    assert history_of(ask(visitor))[0].endswith("off=L0.1")  # it is the last one now
    (file,) = (own.parent.parent / "annotations/tiny/traces").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_history_is_cleared_and_can_be_turned_off(own, visit):
    visitor, traces = visit(own), own.parent.parent / "annotations/tiny/traces"
    ask(visitor, prompt=PROMPT)
    assert len([*traces.iterdir()]) == 1
    answer = visitor.client.post("/r/tiny/traces", headers={"Origin": "http://127.0.0.1:8000"})
    assert answer.url.path == "/r/tiny/trace" and history_of(answer.text) == [] and not [*traces.iterdir()]
    visitor.shelf.history = False
    assert 'id="history"' not in ask(visitor, prompt=PROMPT) and not [*traces.iterdir()]


def test_where_nothing_can_be_written_the_trace_is_shown_and_the_page_says_so(own, visit):
    (own.parent.parent / "annotations").write_text("a file in the place of the folder")
    text = text_of(ask(visit(own), prompt=PROMPT))
    assert "The parts add up" in text and "The history of traces cannot be kept" in text


def test_a_list_is_switched_off_by_its_name(own, visit):
    visitor = visit(own)
    run = visitor.shelf.runs["tiny"].run
    ffkv.collect(run, "pair", ["L0.1", "L1.2"])
    asked = json.loads(ask(visitor, prompt=PROMPT, off="@pair", format="json"))
    assert asked["changes"] == {"L0.1": 0.0, "L1.2": 0.0} == ffkv.trace(run, PROMPT, off="@pair").changes
    assert ffkv.coefficients(run, [PROMPT], "@pair").columns.tolist() == ["L0.1", "L1.2"]


def test_the_graph_of_a_prediction(visitor, tiny):
    page = ask(visitor, prompt=PROMPT)
    assert 'name="graph" value="1"' in page and "<svg xmlns" not in page
    page = ask(visitor, prompt=PROMPT, graph="1", baseline="mean")
    made = ffkv.graph(ffkv.open(tiny / "results/tiny"), PROMPT, device="cpu")
    assert " ".join(made.told.split()) in text_of(page)
    drawing = page[page.index('class="graph"') :]
    drawing = drawing[: drawing.index("</svg>")]
    assert drawing.count("<a href=") == drawing.count('class="node"') == len(made.nodes)
    assert "<style" not in drawing and "style=" not in drawing  # the policy of the pages forbids both
    for row in made.nodes.itertuples():
        assert f"/m/{row.layer}/{row.memory}" in drawing
    found = json.loads(ask(visitor, prompt=PROMPT, graph="1", baseline="mean", format="json"))
    assert len(found["graph"]["nodes"]) == len(made.nodes)
    assert "of the logit difference" in text_of(ask(visitor, prompt="The function returns", graph="1"))  # no memories


def test_the_page_of_a_graph_says_how_another_viewer_opens_it(visitor, tiny):
    page = ask(visitor, prompt="The function returns", graph="1", wrong="in")
    assert 'src="/static/graph.js"' in page and 'id="graph-tools" hidden' in page
    assert "circuit-tracer start-server --graph_file_dir graphs" in page
    words = shlex.split(re.search(r"(ffkv graph .*?)\n", unescape(page))[1])
    made = ffkv.trace(visitor.shelf.runs["tiny"].run, "The function returns")
    assert words[2:4] == [str(tiny / "results/tiny"), "The function returns"]
    assert words[4:] == [f"--answer={made.token}", "--wrong=in", "--format=graph", "--output=graphs/prompt.json"]


def test_a_translated_trace_is_that_of_python(visitor, run):
    asked = {"prompt": PROMPT, "reading": "translated"}
    found = json.loads(ask(visitor, **asked, format="json"))
    assert found == json.loads(ffkv.trace(run.translated, PROMPT).to_json()) and found["reading"] == "translated"
    by_head = json.loads(ffkv.trace(run, PROMPT).to_json())
    assert found["predictions"] != by_head["predictions"] and found["final"] == by_head["final"]
    page = ask(visitor, **asked)
    links = re.findall(r'href="(/r/tiny/(?:trace|m/)[^"]*)"', page)
    other = [link for link in links if "reading=translated" not in link]
    asked = f"prompt={PROMPT.replace(' ', '+')}"
    assert other == [f"/r/tiny/trace?{asked}", f"/r/tiny/trace?reading=jacobian&amp;{asked}"]  # the switch
    forms = re.findall(r'<form action="/r/tiny/trace.*?</form>', page, re.DOTALL)
    assert len(forms) == 4 and all(form.count('name="reading" value="translated"') == 1 for form in forms)


def test_an_address_without_a_prompt_is_refused_if_it_asks_for_what_is_not_there(visitor):
    answer = visitor.client.get("/r/tiny/trace?prompts=The")
    assert answer.status_code == 400 and "Did you mean &#39;prompt&#39;?" in answer.text and "<form" in answer.text
