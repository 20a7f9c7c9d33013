"""The graph of a behaviour: a planted chain, edges by plain hooks, prompts drawn again by brute force, answers without a reason."""

import itertools
import json
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from behaviours.conftest import make, write_prompts
from behaviours.test_positions import BATCH_TOKENS, KINDS, PROMPTS, TOLERANCE, Case, Pass
from click.testing import CliRunner
from graph.test_graph import chain_checkpoint
from intervention.conftest import write_inputs
from report.conftest import write_results

import ffkv
from ffkv.base.settings import Behaviour
from ffkv.branches.behaviours import graph, words
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.graph import ANSWER, Half, choose_graph, make_graph, measure_links, read_half, read_rises
from ffkv.model.checkpoint.load import load
from ffkv.model.effects.running import Running
from ffkv.model.head.head_file import load_head
from ffkv.run.graph import commands

PAIRS = [
    {"clean_prefix": f"{one} {other} a", "patch_prefix": f"{one} {other} e", "clean_answer": " b", "patch_answer": " h"}
    for one, other in itertools.product("dfgi", "dfi")
]
FEW = {
    "candidates": 2,
    "controls": 1,
    "directions": 0,
    "sets": [1],
    "random_sets": 2,
    "effect_prompts": 2,
    "flips": 100,
}


@pytest.fixture(scope="module")
def chain_inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    sentences = [f"{one} {other} {third}" for one in "abcdefgh" for other in "abcdefgh" for third in "abce"]
    return write_inputs(folder / "run", chain_checkpoint(folder / "checkpoint"), sentences)


@pytest.mark.parametrize("positions", ["last", "all"])
def test_a_planted_chain_is_the_graph(chain_inputs, tmp_path, positions):
    prompts = str(write_prompts(tmp_path / "pairs.jsonl", PAIRS))
    its = {"graph_prompts": 6, "graph_resamples": 3, "positions": positions, "prompts": prompts, **FEW}
    made = make(tmp_path, chain_inputs, **its).summaries
    nodes, edges = made["behaviour_graph_nodes"], made["behaviour_graph_edges"]
    assert [*zip(nodes["layer"], nodes["memory"])] == [(0, 0), (1, 0), (2, 0)]
    assert (nodes["stability"] == 1).all()
    shown = edges[edges["shown"]]
    assert {*zip(shown["source"], shown["target"])} == {(0, 1), (1, 2), (2, ANSWER)}
    assert (shown["stability"] == 1).all()
    sets = made["behaviour_graph_sets"].set_index("choice")
    whole = sets.loc["all", "difference"] - sets.loc["none", "difference"]
    # Each memory makes all of the next one, and the last one all of the difference. Norms mix a little.
    assert shown["effect"].to_numpy() == pytest.approx(whole, rel=0.05)
    assert nodes["effect"].to_numpy() == pytest.approx(whole, rel=0.05)
    assert nodes["loss"].to_numpy() == pytest.approx(1, abs=0.05)
    assert shown["share"].dropna().to_numpy() == pytest.approx(1, abs=0.05)
    found = sets.loc[words.GRAPH]
    assert found["kept"] == pytest.approx(1, abs=0.05) and found["chosen"] >= 0.8
    assert found["low"] <= found["kept"] <= found["high"]
    assert (sets.loc[[words.RESAMPLED], "jaccard"] == 1).all() and (sets.loc[[words.RANDOM], "kept"] < 0.05).all()
    paths = made["behaviour_graph_paths"].set_index(["source", "target"])
    assert paths.loc[(0, 1), "direct"] > 0 and paths.loc[(0, 1), "total"] == pytest.approx(paths.loc[(0, 1), "direct"])
    # Layer 2 reads nothing of what L0.0 writes but through the norm, and all of it through L1.0.
    assert abs(paths.loc[(0, 2), "direct"]) < 0.2 * paths.loc[(0, 2), "total"]


def test_what_no_memory_raises_or_nobody_asks_for_has_no_graph(chain_inputs, tmp_path):
    rows = [{**row, "clean_answer": row["patch_answer"], "patch_answer": row["clean_answer"]} for row in PAIRS]
    prompts = str(write_prompts(tmp_path / "pairs.jsonl", rows))
    made = make(tmp_path / "0", chain_inputs, prompts=prompts, minimum_accuracy=0, **FEW).summaries
    assert not any(len(made[name]) for name in made if name.startswith("behaviour_graph"))
    its = {"graph_prompts": 3, "graph_resamples": 2, "minimum_accuracy": 0, "prompts": prompts, **FEW}
    made = make(tmp_path / "1", chain_inputs, **its).summaries
    sets = made["behaviour_graph_sets"].set_index("choice")
    assert sets.loc["all", "difference"] < sets.loc["none", "difference"] and sets["kept"].isna().all()
    assert not len(made["behaviour_graph_nodes"]) and not len(made["behaviour_graph_edges"])


@pytest.fixture(scope="module")
def half_of(proven):
    """From a kind of tiny random model, and whether memories are patched at all tokens, to its case and its prompts."""

    def get(kind, everywhere):
        folder = proven(kind)
        loaded = load(folder, "cpu")
        case = Case(kind, loaded, load_head(folder, "cpu"))
        running = case.running._replace(keeps=not everywhere)
        prompts = [each if everywhere else each._replace(tokens=1) for each in PROMPTS]
        return case, running, read_half(running, prompts, np.zeros(loaded.anatomy.layer_offset[-1]), "patch")

    return get


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sets_and_edges_are_what_plain_hooks_measure(kind, everywhere, half_of):
    """A memory is patched and two of the next layer are held, at all tokens or at the last one."""
    case, _, half = half_of(kind, everywhere)
    memories, offset = case.flat[[0, 2, 3]], case.offset
    links, sets = measure_links(half, memories), half.differences([memories], but=False)
    for n, prompt in enumerate(PROMPTS):
        clean, other = case.clean[n], case.patch[n]
        at = slice(1, None) if everywhere else slice(-1, None)
        seen = {}

        def changed(layer, m, s, patched, held=(), clean=clean, other=other, at=at, seen=seen):
            wanted = m.clone()
            for flat in (*held, *patched):
                if offset[layer] <= flat < offset[layer + 1]:
                    memory = flat - offset[layer]
                    seen[flat] = m[at, memory].clone()
                    wanted[at, memory] = (other if flat in patched else clean).m[layer][at, memory]
            return (s * (wanted - m)) @ clean.v[layer]

        run = Pass(case.loaded, kind, prompt.clean, partial(changed, patched=memories[:1], held=memories[1:]))
        before = clean.difference(prompt)
        assert links.answer[n, 0] == pytest.approx(before - run.difference(prompt), abs=TOLERANCE)
        for target, flat in enumerate(memories[1:].tolist(), 1):
            place = at, flat - offset[1]
            falls = clean.m[1][place] - other.m[1][place]
            change = clean.m[1][place] - seen[flat]
            assert links.change[n, 0, target] == pytest.approx(change.sum().item(), abs=TOLERANCE)
            assert links.along[n, 0, target] == pytest.approx((change * falls).sum().item(), abs=TOLERANCE)
            assert links.square[n, target] == pytest.approx(falls.square().sum().item(), abs=TOLERANCE)
        together = Pass(case.loaded, kind, prompt.clean, partial(changed, patched=memories))
        assert sets[n, 0] == pytest.approx(together.difference(prompt), abs=TOLERANCE)


def test_prompts_that_count_twice_are_prompts_that_are_there_twice(half_of, monkeypatch):
    """The choice with weights, against the choice from a list in which prompts are repeated. No set is run twice."""
    _, _, half = half_of("llama", True)
    runs = []
    monkeypatch.setattr(
        graph,
        "patch",
        lambda subject, *args, _patch=graph.patch, **named: (
            runs.extend((id(subject), set_.tobytes(), *args[1:]) for set_ in args[0]),
            _patch(subject, *args, **named),
        )[1],
    )
    rises, found = read_rises(half), []
    for weights in ([2, 1], [0, 3], [1, 1]):
        weighted = choose_graph(half, rises, np.array(weights), 0.6, 30)
        repeated = Half([half.subjects[n] for n in np.repeat([0, 1], weights)])
        plain = choose_graph(repeated, read_rises(repeated), np.ones(len(repeated.subjects)), 0.6, 30)
        assert weighted.members.tolist() == plain.members.tolist() and weighted.reached == plain.reached
        found.append(weighted)
    assert any(len(each.members) for each in found)
    runs.clear()
    choose_graph(half, rises, np.array([2, 1]), 0.6, 30)
    assert not runs


def test_the_share_of_a_target_and_its_intervals_by_hand(monkeypatch):
    """Two prompts, a memory before another one: the share is the slope through the origin, over all prompts."""
    links = graph.Links(
        change=np.array([[[0, 1.0], [0, 0]], [[0, -2.0], [0, 0]]]),
        along=np.array([[[0, 2.0], [0, 0]], [[0, 8.0], [0, 0]]]),  # falls of 2 and -4
        square=np.array([[1, 4.0], [1, 16.0]]),
        answer=np.array([[1.0, 0.5], [3.0, 0.5]]),
    )
    effects = np.array([[2.0, 3.0], [4.0, 1.0]])
    monkeypatch.setattr(graph, "_effects", lambda half, memories: effects)
    nodes, weights = pd.DataFrame({"layer": [0, 1]}), np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    found = graph._edges(links, nodes, None, np.arange(2), weights, 0.6).set_index(["source", "target"])
    between, last = found.loc[(0, 1)], found.loc[(0, ANSWER)]
    assert between["share"] == 0.5 and between["change"] == -0.5 and between["effect"] == 0.5 * 2
    assert last["effect"] == 2 and np.isnan(last["share"])
    # The prompts alone give edges of 1.5, 1 and 0.5, then of 0.5, 3 and 0.5 logits: 0.6 of the sum takes two, or one.
    assert found["shown"].to_dict() == {(0, ANSWER): True, (0, 1): True, (1, ANSWER): False}
    assert found["stability"].to_dict() == pytest.approx({(0, ANSWER): 1, (0, 1): 1 / 3, (1, ANSWER): 0})
    assert between["low"] == pytest.approx(0.5) and between["high"] == pytest.approx(1.45)


def test_of_answers_without_a_reason_nothing_holds_on_other_prompts(proven):
    """Two random tokens: on the prompts that choose, the answer is the one that memories raise. On others they push to either side."""
    folder = proven("gpt2")
    loaded, head = load(folder, "cpu"), load_head(folder, "cpu")
    running, random = Running(loaded, head, True, [], BATCH_TOKENS), np.random.default_rng(3)
    rows = np.array([random.permutation(np.arange(1, 60))[:6] for _ in range(32)])
    prompts = [Encoded(row[:4], row[:0], *row[4:].tolist(), "") for row in rows]
    read = partial(read_half, running, mean=np.zeros(loaded.anatomy.layer_offset[-1]), baseline="zero")
    first = read(prompts=prompts[:16])
    turned = [
        each if raised else each._replace(answer=each.wrong, wrong=each.answer)
        for each, raised in zip(prompts, first.whole > first.without, strict=False)
    ]
    choosing = read(prompts=turned)
    settings = Behaviour(prompts="p", graph_prompts=16, graph_resamples=2, graph_maximum=30, graph_share=0.6)
    made = make_graph(running, choosing, read(prompts=prompts[16:]), settings, 0, "random")
    sets, nodes = made["graph_sets"].set_index("choice"), made["graph_nodes"]
    assert sets.loc[words.GRAPH, "reached"].item() and len(nodes) > 2
    there = sets.loc[words.GRAPH, "chosen"].item() * (choosing.whole - choosing.without).mean()
    here = sets.loc[words.GRAPH, "difference"].item() - sets.loc[words.NONE, "difference"].item()
    assert abs(here) < there / 2
    assert (nodes["low"] > 0).mean() < 0.3


@pytest.fixture
def made_up(tmp_path):
    """A made-up run whose behaviour has a graph."""
    return write_results(tmp_path / "demo", layers=2)


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
    with pytest.raises(ffkv.UserError, match=r"no behaviour 'none'.*agreement"):
        ffkv.behaviour_graph(run, "none")


@pytest.mark.parametrize("format_name", ["text", "json", "svg"])
def test_the_command_writes_the_graph_of_a_behaviour(made_up, format_name):
    made = CliRunner().invoke(commands.graph, [str(made_up), "--behaviour", "agreement", "--format", format_name])
    assert made.exit_code == 0 and "L1.2" in made.output, made.output
    if format_name == "text":
        assert "agreement: the logit difference is 3, and 3 when all memories are patched." in made.output


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
