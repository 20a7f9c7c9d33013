"""What is written of graphs: formats, what viewers show of them, the command, and refusals."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from markupsafe import escape
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

import ffkv
from ffkv.cli import ffkv as ffkv_command
from ffkv.run import commands
from ffkv.run.commands import OWN_GRAPHS
from ffkv.run.graph.drawing import draw, label
from ffkv.run.graph.result import named, plain_told, written
from ffkv.run.results import indexes


def asked(chain, **options):
    """The graph of a prompt of the chain: of the answer that it makes."""
    return ffkv.graph(chain, "d c a", **{"answer": "b", "wrong": "h", "baseline": "zero", "device": "cpu", **options})


@pytest.mark.parametrize("answer", ["b", "h"])
def test_every_format_is_written_of_every_graph(chain, without_patterns, answer):
    """A graph without memories keeps no share, which is no number."""
    wrong = {"b": "h", "h": "b"}[answer]
    found = asked(chain, answer=answer, wrong=wrong)
    made = {name: written(found, name) for name in OWN_GRAPHS}
    assert json.loads(made["json"])["reached"] == found.reached == (answer == "b")
    assert made["svg"].startswith("<svg")
    assert plain_told(found) in made["text"] and "\N{NO-BREAK SPACE}" not in made["text"]
    rows = [line.split()[:2] for line in made["text"].partition("pushes\n")[2].splitlines()[: len(found.nodes)]]
    assert rows == [
        [name, "dca"[at - 1]] for name, at in zip(found.nodes["name"], found.nodes["position"])
    ]  # behind BOS


def test_formats(chain, without_patterns):
    found = asked(chain)
    network = found.to_networkx()
    assert network.number_of_edges() == len(found.edges) and network.has_edge(found.nodes["name"].iloc[-1], "answer")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["nodes"][0]["name"] == found.nodes["name"][0]
    svg = found.to_svg()
    element = ElementTree.fromstring(svg)
    assert len(element.findall(".//{*}path")) == len(found.edges) and len(element.findall(".//{*}g")) == len(
        found.nodes
    )
    assert "prefers-color-scheme:dark" in svg and "svg" in found._repr_html_()


def test_a_negative_coefficient_pushes_towards_the_bottom_and_has_no_pattern(chain, without_patterns):
    """L1.0 writes n alone: n is the top of its value, and the lowest id of the others is the bottom. L0.0 is another one.

    The pattern of L0.0 and L1.0 is of trigger examples, on which their coefficients are positive."""
    values = indexes.values_by_memory(chain.files)
    (bottom,) = values.query("layer == 1 and memory == 0")["bottom_token"]
    found, bottom = asked(chain), chain.vocabulary[bottom]
    assert found.nodes["pushes"].tolist() == ["p", "n", "b"] and bottom != "n"
    assert (found.nodes["pattern"] == "ends with “a”").all()
    changed = found.nodes.drop(columns=["name", "pattern", "pushes"]).assign(coefficient=[2.0, -3.0, 0.0])
    nodes = named(chain, changed)
    assert nodes["pushes"].tolist() == ["p", bottom, ""]
    assert nodes["pattern"].tolist() == ["ends with “a”", "", ""]
    at = nodes["position"].iloc[0]
    labels = ["ends with “a” → p", f"L1.0@{at} (m < 0) → {bottom}", f"L2.0@{at} (m = 0)"]
    assert [label(row) for row in nodes.itertuples()] == labels
    found = replace(found, nodes=nodes)
    shown = written(found, "svg")
    for own in labels:
        assert str(escape(own)) in shown
    assert found.to_networkx().nodes[f"L1.0@{at}"]["pushes"] == bottom
    assert "pushes" in written(found, "text") and "pushes towards" in found._repr_html_()
    # Of a behaviour, no token has the coefficient: its sign is that of a difference, and the pattern is of the memory.
    nodes = named(chain, changed.drop(columns="position").assign(coefficient=[2.0, -3.0, np.nan]))
    labels = ["ends with “a” → p", f"ends with “a” (m lower) → {bottom}", "ends with “a”"]
    assert [label(row) for row in nodes.itertuples()] == labels  # an earlier ffkv did not write the last one's


def test_errors_of_dictionaries_are_nodes_of_their_own(chain, without_patterns):
    found = asked(chain)
    assert found.errors.empty and "dictionaries" not in found.told
    at = int(found.tokens["position"].iloc[-1])
    errors = pd.DataFrame(
        {"name": ["L2.error@1", f"L1.error@{at}"], "layer": [2, 1], "position": [1, at], "effect": [-0.5, 0.25]}
    )
    found = replace(found, errors=errors)
    end = "No set patches what dictionaries leave of their layers. Patched at one token of one layer at a time, these errors have effects"
    for each in (found, replace(found, note="There is nothing to keep.")):
        assert each.told.endswith(f". {end} that add up to −0.2500 logits.") and "  " not in each.told
    assert found.to_networkx().nodes["L2.error@1"]["effect"] == -0.5
    drawn = draw(found, alone=True, address=lambda layer, memory: f"{layer}.{memory}")
    assert drawn.count("data-node=") == len(found.nodes) + 2 and ".-1" not in drawn
    assert "L2.error@1: error of the dictionary. Effect -0.5000 logits." in drawn.replace("−", "-")
    assert "L2.error@1" in written(found, "text")
    unknown = replace(found, errors=errors.assign(effect=np.nan))
    assert "What these errors do is not known" in unknown.told and "nan" not in unknown.to_svg()


SET = {"graph": 2.0, "none": -4.0, "all": 4.0, "random": -4.0}


@pytest.mark.parametrize(
    ("effects", "said"),
    [
        (
            [0.25, -0.25, 0.0625],
            "add up to 0.06250 logits. Alone they do next to nothing: the set restores what patching",
        ),
        ([0.25, -0.25, 0.125], "add up to 0.1250 logits."),  # sizes: 0.625 of 6 logits, more than a tenth
        (
            [3.0],
            "1 memory at a token keeps 75\xa0% of this rise; random sets of this size 0\xa0% (0\xa0% to 0\xa0%). Patched alone, it",
        ),
    ],
)
def test_the_sentence_says_both_ends_and_what_places_do_alone(chain, without_patterns, effects, said):
    """The set keeps 2 - -4 = 6 of 8 logits. Effects of 0.5625 logits in size are less than a tenth of that."""
    found = asked(chain)
    sets = pd.DataFrame({"choice": [*SET], "difference": [*SET.values()], "kept": [0.75, 0.0, 1.0, 0.0]})
    nodes = found.nodes.head(len(effects)).assign(effect=effects)
    found = replace(found, nodes=nodes, edges=found.edges.head(0), sets=sets, kept=0.75)
    assert found.told.startswith(
        "The logit difference is 4, and −4 when all memories are patched. All memories together"
    )
    assert "raise it by 8 logits." in found.told and said in found.told and "  " not in found.told
    assert found.restores == ("next to nothing" in found.told) == ("next to nothing" in said)
    for text in (plain_told(found).replace("\N{MINUS SIGN}", "-"), repr(found), found._repr_html_(), found.to_svg()):
        assert "is 4, and" in text and "when all memories are patched" in text


@pytest.mark.parametrize("answer", ["␣responsibility", "W" * 60, "漢" * 20])
def test_the_label_of_the_answer_is_whole_and_inside(chain, without_patterns, answer):
    found = replace(asked(chain), answer=answer.replace("␣", " "), wrong=" ")
    element = ElementTree.fromstring(found.to_svg())
    label = next(each for each in element.findall(".//{*}text") if "rather than" in "".join(each.itertext()))
    text = "".join(label.itertext())
    assert text == f"{answer} rather than ␣"
    # DejaVu Sans, which is wider than most; it has no signs of East Asia, and these are as wide as high.
    drawn = TextPath(
        (0, 0),
        text.replace("漢", "█").replace("␣", "_"),
        size=float(label.get("font-size")),
        prop=FontProperties("DejaVu Sans"),
    )
    assert float(label.get("x")) + drawn.get_extents().width <= float(element.get("width"))


def test_the_reason_why_there_is_no_graph_is_inside_its_drawing(chain, without_patterns):
    found = asked(chain, answer="h", wrong="b")
    element = ElementTree.fromstring(found.to_svg())
    label = next(each for each in element.findall(".//{*}text") if each.text == found.note)
    drawn = TextPath((0, 0), found.note, size=12, prop=FontProperties("DejaVu Sans"))
    assert float(label.get("x")) + drawn.get_extents().width <= float(element.get("width"))
    assert found.told.startswith("The logit difference is ") and found.told.endswith(found.note)


UNSEEN = "d\u00a0\u00ad\u007f\u0085\U000e0041\ud83d a"


@pytest.mark.parametrize("format_name", ["json", "graph"])
def test_what_programs_read_is_printed_as_it_is(chain, without_patterns, monkeypatch, format_name):
    found = asked(chain)
    found = replace(found, text=UNSEEN, answer=UNSEEN)
    monkeypatch.setattr("ffkv.run.graph.of_prompt.graph", lambda *arguments, **options: found)
    command = ["graph", str(chain.folder), "d c a", "--format", format_name]
    done = CliRunner().invoke(ffkv_command, command, catch_exceptions=False)
    content = json.loads(done.output)
    assert (content["metadata"]["prompt"] if format_name == "graph" else content["text"]) == UNSEEN
    assert done.output.strip().isprintable()  # a terminal obeys nothing of it


def test_words_that_mean_something_in_xml_are_escaped(chain, without_patterns, monkeypatch):
    monkeypatch.setattr("ffkv.run.results.memory.Memory.pattern", "ends with <script>&")
    found = asked(chain)
    assert "<script>" not in found.to_svg() and "&lt;script&gt;" in found.to_svg()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"other": "d c"}, "same number of tokens"),
        ({"answer": "b", "wrong": "b"}, "same token"),
        ({"answer": "zebra"}, "is not a token"),
        ({"share": 0}, "share"),
    ],
)
def test_refusals(chain, options, message):
    with pytest.raises(ffkv.UserError, match=message):
        ffkv.graph(chain, "d c a", device="cpu", **options)


def test_the_graph_of_a_run_is_read_and_drawn(made_up):
    run = ffkv.open(made_up)
    found = ffkv.behaviour_graph(run, "agreement")
    assert found.nodes["name"].tolist() == ["L0.0", "L0.1", "L1.2", "L1.3"] and found.reached
    network = found.to_networkx()
    assert network["L0.0"]["L1.2"]["stability"] == 1 and network["L1.2"]["answer"]["effect"] == 1.2
    assert network.number_of_edges() == 4  # the fifth is not shown
    element = ElementTree.fromstring(found.to_svg())
    lines, marks = element.findall(".//{*}path"), element.findall(".//{*}g/{*}circle")
    assert [line.get("stroke-dasharray") for line in lines] == [None, "4 3", None, None]  # the largest is drawn last
    assert [float(mark.get("fill-opacity")) for mark in marks] == [1, 0.75, 1, 0.2]
    places = [(mark.get("cx"), mark.get("cy")) for mark in marks]
    assert places[0][1] == places[1][1] != places[2][1] == places[3][1] and len({*places}) == 4
    assert "share 75" in found.told and json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert "<svg" in found._repr_html_()
    with pytest.raises(ffkv.UserError, match=r"no behaviour in .* called 'none'\. Choose one of: agreement"):
        ffkv.behaviour_graph(run, "none")


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        (["low", "high"], "keep 80\xa0% (too few groups of prompts for an interval) of this rise, and 81\xa0% on"),
        (["kept", "low", "high"], "keep 81\xa0% of the rise on the prompts that chose them. On the others"),
    ],
)
def test_what_is_not_known_of_a_graph_is_said(made_up, unknown, said):
    run = ffkv.open(made_up)
    tables = {
        f"behaviour_graph_{kind}": run.table(f"behaviour_graph_{kind}") for kind in ("sets", "nodes", "edges", "paths")
    }
    tables["behaviour_graph_sets"] = tables["behaviour_graph_sets"].assign(**dict.fromkeys(unknown, np.nan))
    assert said in ffkv.behaviour_graph(run, "agreement", tables).told


@pytest.mark.parametrize("format_name", ["text", "json", "svg"])
def test_the_command_writes_the_graph_of_a_behaviour(made_up, format_name):
    made = CliRunner().invoke(commands.graph, [str(made_up), "--behaviour", "agreement", "--format", format_name])
    assert made.exit_code == 0 and "L1.2" in made.output, made.output
    if format_name == "text":
        told = "agreement\nOn the prompts that did not choose the graph, the mean logit difference is 3, and 3 when all memories"
        assert told in made.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--behaviour", "agreement", "--format", "graph"], "of one prompt alone"),
        (["--behaviour", "agreement", "--share", "0.5"], "settings of the run"),
        (["a prompt", "--behaviour", "agreement"], "Write a prompt, or name"),
        ([], "Write a prompt, or name"),
    ],
)
def test_what_the_command_refuses(made_up, options, message):
    made = CliRunner().invoke(commands.graph, [str(made_up), *options])
    assert message in str(made.exception)
