"""Graphs: a chain that is planted, passes with plain hooks, random weights, and what is written of a graph."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from behaviours.test_positions import Pass
from support import WORDS, detector_checkpoint, word_tokenizer
from transformers import AutoModelForCausalLM

import ffkv
from ffkv.branches.behaviours.encode import Encoded
from ffkv.branches.behaviours.smallest import random_members
from ffkv.branches.behaviours.subject import patch, read_subject, screen
from ffkv.model.checkpoint.load import load
from ffkv.model.head.head_file import load_head
from ffkv.run.graph.choose import choose
from ffkv.run.graph.commands import FORMATS
from ffkv.run.graph.exchange import as_exchange
from ffkv.run.graph.links import largest_edges, measure_edges
from ffkv.run.graph.settings import ANSWER
from ffkv.run.graph.text import plain_told, written

PROMPT = Encoded(np.array([0, 3, 5, 7, 2]), np.array([0, 3, 9, 7, 4]), 6, 8, "", 4)
KINDS = ("gpt2", "llama", "mixtral", "gemma2")  # plain, gated, experts, norm after the layer
TOLERANCE = 2e-4  # logits of tiny models are below 10, their rounding in float32 below 1e-4


def chain_checkpoint(folder):
    """A GPT-2 without attention, of three layers: L0.0 reads a and writes q, L1.0 reads q and writes p, L2.0 reads p and writes b.

    L0.1 reads a and writes o, which nothing reads. L1.1 reads c, which is not there.
    """
    detector_checkpoint(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    config = model.config
    config.n_layer = 3
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        plain = "ln_" in name and name.endswith("weight")
        parameter.data = torch.ones_like(parameter) if plain else torch.zeros_like(parameter)
    model.transformer.wte.weight.data = torch.eye(17)
    links = {0: [("a", "p", 0.4), ("a", "o", 0.1)], 1: [("p", "n", 3.0), ("c", "b", 3.0)], 2: [("n", "b", 3.0)]}
    for layer, memories in links.items():
        mlp = model.transformer.h[layer].mlp
        mlp.c_fc.bias.data[:] = -1.0  # what other words write does not reach it
        for memory, (reads, writes, weight) in enumerate(memories):
            mlp.c_fc.weight.data[WORDS.index(reads), memory] = 1
            mlp.c_proj.weight.data[memory, WORDS.index(writes)] = weight
    model.save_pretrained(folder)
    word_tokenizer(WORDS).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """An open run of the chain."""
    from export.conftest import complete
    from small_runs import write_run

    folder = tmp_path_factory.mktemp("chain")
    return ffkv.open(complete(write_run(folder / "run", chain_checkpoint(folder / "checkpoint"), "auto", "float32")))


@pytest.fixture
def without_patterns(monkeypatch):
    """Runs of tests have no branch of keys."""
    monkeypatch.setattr("ffkv.run.results.memory.Memory.pattern", "ends with “a”")


@pytest.mark.parametrize("options", [{"baseline": "zero"}, {"other": "d c e"}])
def test_a_planted_chain_is_the_graph(chain, without_patterns, options):
    found = ffkv.graph(chain, "d c a", answer="b", wrong="h", share=0.8, device="cpu", **options)
    last = len(found.tokens) - 1
    assert found.nodes["name"].tolist() == [f"L{layer}.0@{last}" for layer in range(3)]
    assert {*zip(found.edges["source"], found.edges["target"])} == {(0, 1), (1, 2), (2, ANSWER)} and len(
        found.edges
    ) == 3
    # Each memory makes all of the next one, and the last one all of the difference.
    whole = found.sets.set_index("choice").loc["all", "difference"]
    without = found.sets.set_index("choice").loc["none", "difference"]
    assert found.edges["effect"].to_numpy() == pytest.approx(whole - without, rel=0.05)  # norms mix a little
    assert found.reached and found.kept == pytest.approx(1, abs=0.05)
    assert (found.sets.query("choice == 'random'")["kept"] < 0.05).all()


def test_what_memories_do_not_raise_has_no_graph(chain, without_patterns):
    found = ffkv.graph(chain, "d c a", answer="h", wrong="b", baseline="zero", device="cpu")
    assert not len(found.nodes) and not len(found.edges) and not found.reached and "do not" in found.note
    assert "do not" in found.to_svg() and found.sets["kept"].isna().all()


@pytest.mark.parametrize("answer", ["b", "h"])
def test_every_format_is_written_of_every_graph(chain, without_patterns, answer):
    """A graph without memories keeps no share, which is no number."""
    wrong = {"b": "h", "h": "b"}[answer]
    found = ffkv.graph(chain, "d c a", answer=answer, wrong=wrong, baseline="zero", device="cpu")
    made = {name: written(found, chain, name) for name in FORMATS}
    assert json.loads(made["json"])["reached"] == found.reached == (answer == "b")
    assert json.loads(made["graph"])["metadata"]["info"]["kept"] == (found.kept if found.reached else None)
    assert made["svg"].startswith("<svg")
    assert plain_told(found) in made["text"] and "\N{NO-BREAK SPACE}" not in made["text"]


def case(kind, proven, baseline="patch"):
    """A subject of a tiny random model, which reads the prompt without its first token."""
    folder = proven(kind)
    loaded = load(folder, "cpu")
    mean = np.linspace(-0.3, 0.3, loaded.anatomy.layer_offset[-1]).astype(np.float32)
    return loaded, mean, read_subject(loaded, load_head(folder, "cpu"), PROMPT, mean, baseline, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_sets_are_what_plain_hooks_measure(kind, proven):
    loaded, _, subject = case(kind, proven)
    clean, other = (Pass(loaded, kind, ids) for ids in (PROMPT.clean, PROMPT.patch))
    generator, offset = np.random.default_rng(0), loaded.anatomy.layer_offset
    sets = [np.sort(generator.choice(subject.m.numel(), 30, replace=False)) for _ in range(2)]
    mask = torch.zeros(2, subject.m.numel(), dtype=torch.bool)
    for row, places in zip(mask, sets):
        row[places] = True

    def changed(patched, layer, m, s):
        own = patched.reshape(subject.m.shape)[:, offset[layer] : offset[layer + 1]]
        full = torch.cat([torch.zeros_like(own[:1]), own])  # the first token keeps its coefficients
        return (s * (other.m[layer] - m) * full) @ clean.v[layer]

    assert subject.difference == pytest.approx(clean.difference(PROMPT), abs=TOLERANCE)
    for but, masks in ((False, mask), (True, ~mask)):
        wanted = [Pass(loaded, kind, PROMPT.clean, partial(changed, each)).difference(PROMPT) for each in masks]
        assert patch(subject, sets, but)[0] == pytest.approx(wanted, abs=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_what_plain_hooks_measure(kind, proven):
    """One place is patched, two later ones are held: their coefficients before that, and the logit difference."""
    loaded, _, subject = case(kind, proven)
    clean, other = (Pass(loaded, kind, ids) for ids in (PROMPT.clean, PROMPT.patch))
    width, offset = subject.m.shape[1], loaded.anatomy.layer_offset
    moved = (subject.m - subject.base).abs()
    token = 2  # behind the token that differs
    memories = [int(moved[token, offset[layer] : offset[layer + 1]].argmax()) for layer in range(2)]
    places = np.array(
        [
            1 * width + int(moved[1, : offset[1]].argmax()),
            *(token * width + offset[n] + m for n, m in enumerate(memories)),
        ]
    )
    seen = {}

    def changed(layer, m, s):
        wanted = m.clone()
        for place in places:
            at, flat = 1 + place // width, place % width
            if offset[layer] <= flat < offset[layer + 1]:
                memory = flat - offset[layer]
                seen[place] = float(m[at, memory])
                wanted[at, memory] = (other if place == places[0] else clean).m[layer][at, memory]
        return (s * (wanted - m)) @ clean.v[layer]

    run = Pass(loaded, kind, PROMPT.clean, changed)
    effects = np.array([0.5, 1.0, 2.0])
    edges = measure_edges(subject, places, effects).set_index(["source", "target"])
    assert edges.loc[(0, ANSWER), "effect"] == pytest.approx(subject.difference - run.difference(PROMPT), abs=TOLERANCE)
    falls = (subject.m - subject.base).ravel()[places[2]].item()
    change = subject.m.ravel()[places[2]].item() - seen[places[2]]
    assert edges.loc[(0, 2), "change"] == pytest.approx(change, abs=TOLERANCE)
    assert edges.loc[(0, 2), "effect"] == pytest.approx(change / falls * 2.0, abs=TOLERANCE * 2 / abs(falls))
    assert (1, 0) not in edges.index and (0, 1) not in edges.index  # of a later token, of the same layer


@pytest.mark.parametrize("kind", KINDS)
def test_the_screen_is_the_slope_of_what_runs_measure(kind, proven):
    """All but a third of the places are patched. A step of 2 % towards its own coefficient rounds to some 1e-3 of a logit."""
    _, _, subject = case(kind, proven, "mean")
    kept = np.arange(0, subject.m.numel(), 3)
    weight = torch.zeros(subject.m.numel())
    weight[kept] = 1
    rises, step = screen(subject, weight.reshape(subject.m.shape)), 0.02
    (before,), _ = patch(subject, [kept], but=True)
    for place in np.setdiff1d(np.argsort(-np.abs(rises))[:8], kept):
        _, seen = patch(
            subject, [np.union1d(kept, [place])], but=True, hold=np.array([place])
        )  # its own coefficient there
        base = subject.base.clone()
        base.ravel()[place] += step * (seen[0, 0] - base.ravel()[place].item())
        (after,), _ = patch(subject._replace(base=base), [kept], but=True)
        assert (after - before) / step == pytest.approx(rises[place], abs=0.1 * float(np.abs(rises).max()))


@pytest.mark.parametrize("kind", KINDS)
def test_of_random_weights_a_graph_is_minimal_or_says_that_none_is_found(kind, proven):
    _, _, subject = case(kind, proven, "mean")
    (without,), _ = patch(subject, [np.arange(subject.m.numel())])
    if subject.difference < without:  # the other way round, so that there is something to explain
        prompt = PROMPT._replace(answer=PROMPT.wrong, wrong=PROMPT.answer)
        subject, without = subject._replace(prompt=prompt, difference=-subject.difference), -without

    def kept_by(sets):
        return (patch(subject, sets, but=True)[0] - without) / (subject.difference - without)

    chosen = choose(subject, 0.6, 40, kept_by)
    assert kept_by([chosen.members])[0] == pytest.approx(chosen.kept, abs=1e-3)
    assert chosen.reached == (chosen.kept >= 0.6)
    if chosen.reached:  # no member can be left out
        assert (kept_by([np.delete(chosen.members, n) for n in range(len(chosen.members))]) < 0.6 + 1e-3).all()
    none = choose(subject, 1.0, 1, lambda sets: np.full(len(sets), -1.0))
    assert not none.reached and not len(none.members)


def test_random_places_are_of_the_same_layers_and_tokens(proven):
    _, _, subject = case("gpt2", proven, "mean")
    width = subject.m.shape[1]
    places = np.array([3, 5, width + 1, 2 * width - 1])
    moves, offset = (subject.m != subject.base).numpy(), np.asarray(subject.loaded.anatomy.layer_offset)
    drawn = random_members(places, moves, offset, np.random.default_rng(1))
    assert len({*drawn.tolist()}) == 4 and not {*drawn.tolist()} & {*places.tolist()}
    assert sorted(zip(drawn // width, subject.layer_of(drawn))) == sorted(
        zip(places // width, subject.layer_of(places))
    )


def test_the_fewest_edges_hold_a_share():
    import pandas as pd

    edges = pd.DataFrame({"source": range(4), "target": ANSWER, "change": 0.0, "effect": [1.0, -5.0, 0.5, 3.5]})
    assert largest_edges(edges, 0.5)["source"].tolist() == [1]
    assert largest_edges(edges, 0.51)["source"].tolist() == [1, 3]
    assert len(largest_edges(edges, 1.0)) == 4 and not len(largest_edges(edges.assign(effect=0.0), 1.0))


def test_formats(chain, without_patterns):
    found = ffkv.graph(chain, "d c a", answer="b", wrong="h", baseline="zero", device="cpu")
    network = found.to_networkx()
    assert network.number_of_edges() == len(found.edges) and network.has_edge(found.nodes["name"].iloc[-1], "answer")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["nodes"][0]["name"] == found.nodes["name"][0]
    svg = found.to_svg()
    from xml.etree import ElementTree

    element = ElementTree.fromstring(svg)
    assert len(element.findall(".//{*}path")) == len(found.edges) and len(element.findall(".//{*}g")) == len(
        found.nodes
    )
    assert "prefers-color-scheme:dark" in svg and "svg" in found._repr_html_()
    content = as_exchange(found, chain)
    # The fields of circuit_tracer/frontend/graph_models.py, 0.5.0; `info` is of Neuronpedia's schema.
    assert {*content} == {"metadata", "qParams", "nodes", "links"}
    assert {"slug", "scan", "transcoder_list", "prompt_tokens", "prompt", "node_threshold", "schema_version"} <= {
        *content["metadata"]
    }
    names = [node["node_id"] for node in content["nodes"]]
    assert len({*names}) == len(names) == len(found.tokens) + len(found.nodes) + 1
    assert {end for link in content["links"] for end in (link["source"], link["target"])} <= {*names}
    kinds = [node["feature_type"] for node in content["nodes"]]
    assert kinds == ["embedding"] * len(found.tokens) + ["cross layer transcoder"] * 3 + ["logit"]
    assert content["nodes"][-1]["layer"] == "4" and content["nodes"][-1]["is_target_logit"]
    influence = sorted(node["influence"] for node in content["nodes"] if node["influence"] is not None)
    assert influence[-1] == pytest.approx(1)


def test_words_that_mean_something_in_xml_are_escaped(chain, without_patterns, monkeypatch):
    monkeypatch.setattr("ffkv.run.results.memory.Memory.pattern", "ends with <script>&")
    found = ffkv.graph(chain, "d c a", answer="b", wrong="h", baseline="zero", device="cpu")
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
