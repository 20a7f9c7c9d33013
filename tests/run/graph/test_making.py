"""How graphs are made: chains that are planted, passes with plain hooks, and what the choice of members promises."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import ffkv
from benchmarks.pretended_card import PretendedCard, as_device
from ffkv.base.intervals import mean_interval
from ffkv.branches.behaviours import choosing, graph, words
from ffkv.branches.behaviours.choosing import Subjects, choose_graphs
from ffkv.branches.behaviours.graph import fewest, make_graph, measure_links
from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.behaviours.subjects import Copy, patch, read_prompts, screen
from ffkv.branches.behaviours.words import ANSWER
from ffkv.branches.settings import Behaviour
from ffkv.model.checkpoint.load import load
from ffkv.model.effects.rerun import Running
from ffkv.model.head.head_file import load_head
from ffkv.run.graph.of_prompt import _grow
from tests.branches.behaviours.conftest import make
from tests.branches.behaviours.test_positions import BATCH_TOKENS, KINDS, PROMPTS, TOLERANCE, Case, Pass
from tests.run.graph.conftest import FEW, PAIRS

PROMPT = PROMPTS[0]


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


@pytest.mark.parametrize("baseline", ["patch", "zero"])
def test_coefficients_of_a_behaviour_are_above_what_its_memories_are_patched_to(chain_inputs, tmp_path, baseline):
    """By plain hooks, on the second half. L0.0 fires as much on the other prompts, which tells the two baselines apart."""
    rows = [
        {**row, "patch_prefix": f"a {row['clean_prefix'].split()[1]} e", "group": str(n)} for n, row in enumerate(PAIRS)
    ]
    its = {"graph_prompts": 3, "graph_resamples": 2, "positions": "all", "baseline": baseline, **FEW}
    made = make(tmp_path, chain_inputs, prompts=rows, **its)
    model, seen = AutoModelForCausalLM.from_pretrained(chain_inputs["model"].parents[1] / "checkpoint"), []
    for block in model.transformer.h:
        block.mlp.c_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0][0].detach()))
    moves = []
    for row in made.prompts.query("part == 'estimate'").nsmallest(3, "order").itertuples():
        seen.clear()
        _ = [model(torch.tensor(ids)[None]) for ids in (row.clean, row.patch)]
        m = torch.stack(seen).reshape(2, 3, len(row.clean), -1)[:, :, 1:].sum(2)  # [prompt, layer, memory]
        moves.append(m[0] - m[1] * (baseline == "patch"))
    expected, nodes = torch.stack(moves).mean(0), made.summaries["behaviour_graph_nodes"]
    assert len(nodes) and ((0, 0) in {*zip(nodes["layer"], nodes["memory"])} or baseline == "patch")
    for node in nodes.itertuples():
        assert node.coefficient == pytest.approx(float(expected[node.layer, node.memory]), abs=1e-5)
    assert expected[0, 0] > 1 if baseline == "zero" else abs(expected[0, 0]) < 1e-5


@pytest.mark.parametrize("positions", ["last", "all"])
def test_a_planted_chain_is_the_graph_of_a_behaviour(chain_inputs, tmp_path, positions):
    its = {"graph_prompts": 6, "graph_resamples": 3, "positions": positions, "prompts": PAIRS, **FEW}
    made = make(tmp_path, chain_inputs, **its).summaries
    nodes, edges = made["behaviour_graph_nodes"], made["behaviour_graph_edges"]
    assert (nodes["coefficient"] > 0).all()  # they fire on "a", and not on the other prompts
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
    made = make(tmp_path / "0", chain_inputs, prompts=rows, minimum_accuracy=0, **FEW).summaries
    assert not any(len(made[name]) for name in made if name.startswith("behaviour_graph"))
    its = {"graph_prompts": 3, "graph_resamples": 2, "minimum_accuracy": 0, "prompts": rows, **FEW}
    made = make(tmp_path / "1", chain_inputs, **its).summaries
    sets = made["behaviour_graph_sets"].set_index("choice")
    assert sets.loc["all", "difference"] < sets.loc["none", "difference"] and sets["kept"].isna().all()
    assert not len(made["behaviour_graph_nodes"]) and not len(made["behaviour_graph_edges"])


@pytest.fixture(scope="module")
def half_of(proven):
    """From a kind of tiny random model, and what members are ("last", "all": memories there; "places"), to its case and its prompts."""

    def get(kind, members):
        folder = proven(kind)
        loaded = load(folder, "cpu")
        case, mean = Case(kind, loaded, load_head(folder, "cpu")), np.zeros(loaded.anatomy.layer_offset[-1])
        running = case.running._replace(keeps=members == "last")
        if members == "places":
            return case, Subjects(read_prompts(running, [PROMPT], mean, "patch"), np.zeros(1), True)
        prompts = [each if members == "all" else each._replace(tokens=1) for each in PROMPTS]
        return case, Subjects(read_prompts(running, prompts, mean, "patch"), np.arange(2))

    return get


@pytest.mark.parametrize("of", ["last", "all", "places"])
@pytest.mark.parametrize("kind", KINDS)
def test_sets_and_edges_are_what_plain_hooks_measure(kind, of, half_of):
    """A memory is patched and two of the next layer are held, at all tokens or at the last one; or each of the three at a token."""
    case, half = half_of(kind, of)
    memories, offset, width = case.flat[[0, 2, 3]], case.offset, case.offset[-1]
    members = memories + width * np.array([1, 2, 2]) if of == "places" else memories  # behind the token that differs
    links = measure_links(half, members)
    sets = half.differences([members], but=False), half.differences([members])
    for n, prompt in enumerate(PROMPTS[: len(half.subjects)]):
        clean, other = case.clean[n], case.patch[n]
        at = {"last": [slice(-1, None)] * 3, "all": [slice(1, None)] * 3, "places": [slice(2, 3), *[slice(3, 4)] * 2]}[
            of
        ]
        seen = {}

        def changed(layer, m, s, patched, held=(), but=False, clean=clean, other=other, at=at, seen=seen):
            wanted = m.clone()
            if but:
                wanted[1 if of != "last" else -1 :] = other.m[layer][1 if of != "last" else -1 :]
            for flat, token in zip(memories, at, strict=True):
                if offset[layer] <= flat < offset[layer + 1] and (flat in held or flat in patched):
                    place = token, flat - offset[layer]
                    seen[flat] = m[place].clone()
                    wanted[place] = m[place] if but else (other if flat in patched else clean).m[layer][place]
            return (s * (wanted - m)) @ clean.v[layer]

        run = Pass(case.loaded, kind, prompt.clean, partial(changed, patched=memories[:1], held=memories[1:]))
        before = clean.difference(prompt)
        assert links.answer[n, 0] == pytest.approx(before - run.difference(prompt), abs=TOLERANCE)
        for target, flat in enumerate(memories[1:].tolist(), 1):
            place = at[target], flat - offset[1]
            falls, change = clean.m[1][place] - other.m[1][place], clean.m[1][place] - seen[flat]
            assert links.change[n, 0, target] == pytest.approx(change.sum().item(), abs=TOLERANCE)
            assert links.along[n, 0, target] == pytest.approx((change * falls).sum().item(), abs=TOLERANCE)
            assert links.square[n, target] == pytest.approx(falls.square().sum().item(), abs=TOLERANCE)
        for found, but in zip(sets, (False, True), strict=True):
            together = Pass(case.loaded, kind, prompt.clean, partial(changed, patched=memories, but=but))
            assert found[n, 0] == pytest.approx(together.difference(prompt), abs=TOLERANCE)


def case(kind, proven):
    """A subject of a tiny random model, which reads the prompt without its first token, and is patched to means."""
    folder = proven(kind)
    loaded = load(folder, "cpu")
    mean = np.linspace(-0.3, 0.3, loaded.anatomy.layer_offset[-1]).astype(np.float32)
    (subject,) = read_prompts(Running(loaded, load_head(folder, "cpu"), False, [], 64), [PROMPT], mean, "mean")
    return subject


def differences(subject, places, but=False, **named):
    """The logit difference of one copy, and what `hold` saw of it."""
    (((difference,), seen),) = patch([subject], [[Copy(places, but)]], **named)
    return difference, seen


@pytest.mark.parametrize("kind", KINDS)
def test_the_screen_is_the_slope_of_what_runs_measure(kind, proven):
    """All but a third of the places are patched. A step of 2 % towards its own coefficient rounds to some 1e-3 of a logit."""
    subject = case(kind, proven)
    kept = np.arange(0, subject.m.numel(), 3)
    weight = torch.zeros(subject.m.numel())
    weight[kept] = 1
    ((_, (rises,), (there,)),), step = screen([subject], [weight.reshape(subject.m.shape)]), 0.02
    before, _ = differences(subject, kept, but=True)
    assert there == pytest.approx(before, abs=TOLERANCE)
    for place in np.setdiff1d(np.argsort(-np.abs(rises))[:8], kept):
        _, seen = differences(
            subject, np.union1d(kept, [place]), True, hold=np.array([place])
        )  # its own coefficient there
        base = subject.base.clone()
        base.ravel()[place] += step * (seen[0, 0] - base.ravel()[place].item())
        after, _ = differences(subject._replace(base=base), kept, but=True)
        assert (after - before) / step == pytest.approx(rises[place], abs=0.1 * float(np.abs(rises).max()))


@pytest.mark.parametrize("kind", KINDS)
def test_of_random_weights_a_graph_is_minimal_or_says_that_none_is_found(kind, proven):
    subject = case(kind, proven)
    without, _ = differences(subject, np.arange(subject.m.numel()))
    if subject.difference < without:  # the other way round, so that there is something to explain
        prompt = PROMPT._replace(answer=PROMPT.wrong, wrong=PROMPT.answer)
        subject, without = subject._replace(prompt=prompt, difference=-subject.difference), -without

    def kept_by(sets):
        ((found, _),) = patch([subject], [[Copy(own, True) for own in sets]])
        return (found - without) / (subject.difference - without)

    def chosen_of(one, share, maximum):
        rises = one.rises()
        grown = _grow(one, rises[0, 0], share, maximum)
        return choose_graphs(one, rises, np.ones((1, 1)), share, maximum, [grown])[0]

    one = Subjects([subject], np.zeros(1), of_places=True)
    chosen = chosen_of(one, 0.6, 40)
    assert kept_by([chosen.members])[0] == pytest.approx(chosen.kept, abs=1e-3)
    assert chosen.reached == (chosen.kept >= 0.6)
    if chosen.reached:  # no member can be left out
        assert (kept_by([np.delete(chosen.members, n) for n in range(len(chosen.members))]) < 0.6 + 1e-3).all()
    one.differences = lambda sets, *_, **__: np.full((1, len(sets)), one.without[0] - 1.0)  # whatever is kept
    none = chosen_of(one, 1.0, 1)
    assert not none.reached and not len(none.members)


def test_prompts_and_states_share_a_pass_which_waits_twice_at_most(proven):
    """On a pretended card: copies of two prompts of other lengths behind what is kept, and five states of two prompts."""
    folder = proven("gpt2")  # whose own code waits at most once
    with as_device() as ran, PretendedCard() as card:
        its = Running(load(folder), load_head(folder), True, [], 64)
        mean = np.zeros(its.loaded.anatomy.layer_offset[-1])
        of_last = [each._replace(tokens=1) for each in PROMPTS]
        behind = read_prompts(its, of_last, mean, "patch")
        two = [PROMPT, PROMPT._replace(wrong=9)]
        whole = read_prompts(its._replace(keeps=False), two, mean, "patch")
        copies = [[Copy(np.array([0])), Copy(np.array([1, 2]), True)], [Copy(np.array([3]))]]
        for take in (
            lambda: patch(behind, copies, hold=np.array([4, 40])),
            lambda: Subjects(whole, np.arange(2)).rises(),
        ):
            ran.clear()
            before = card.waits.total()
            assert len(take()) and max(ran.values()) == 1 and card.waits.total() - before <= 2


def test_random_places_are_of_the_same_layers_and_tokens(proven):
    subject = case("gpt2", proven)
    width = subject.m.shape[1]
    places = np.array([3, 5, width + 1, 2 * width - 1])
    one = Subjects([subject], np.zeros(1), of_places=True)
    drawn = one.draw_beside(places, np.random.default_rng(1))
    assert len({*drawn.tolist()}) == 4 and not {*drawn.tolist()} & {*places.tolist()}
    (tokens, layers, _), (own_tokens, own_layers, _) = one.at(drawn), one.at(places)
    assert sorted(zip(tokens, layers)) == sorted(zip(own_tokens, own_layers))


def test_the_fewest_edges_hold_a_share():
    sizes = np.array([1.0, 5.0, 0.5, 3.5])
    assert fewest(sizes, 0.5).tolist() == [1] and fewest(sizes, 0.51).tolist() == [1, 3]
    assert len(fewest(sizes, 1.0)) == 4 and not len(fewest(0 * sizes, 1.0))


def test_prompts_that_count_twice_are_prompts_that_are_there_twice(half_of, monkeypatch):
    """The choice with weights, against the choice from a list in which prompts are repeated. No set is run twice."""
    _, half = half_of("llama", "all")
    runs = []
    monkeypatch.setattr(
        choosing,
        "patch",
        lambda subjects, copies, _patch=choosing.patch, **named: (
            runs.extend(
                (id(one), each.places.tobytes(), each.but) for one, own in zip(subjects, copies) for each in own
            ),
            _patch(subjects, copies, **named),
        )[1],
    )
    rises, found = half.rises(), []
    for weights in ([2, 1], [0, 3], [1, 1]):
        (weighted,) = choose_graphs(half, rises, np.array([weights]), 0.6, 30)
        repeated = Subjects([half.subjects[n] for n in np.repeat([0, 1], weights)], np.repeat([0, 1], weights))
        (plain,) = choose_graphs(repeated, repeated.rises(), np.ones((1, len(repeated.subjects))), 0.6, 30)
        assert weighted.members.tolist() == plain.members.tolist() and weighted.reached == plain.reached
        found.append(weighted)
    assert any(len(each.members) for each in found)
    runs.clear()
    together = choose_graphs(half, rises, np.array([[2, 1], [0, 3], [1, 1]]), 0.6, 30)
    assert not runs and [each.members.tolist() for each in together] == [each.members.tolist() for each in found]


def test_the_share_of_a_target_and_its_intervals_by_hand(monkeypatch):
    """Two prompts, a memory before another one: the share is the slope through the origin, over all prompts."""
    links = graph.Links(
        change=np.array([[[0, 1.0], [0, 0]], [[0, -2.0], [0, 0]]]),
        along=np.array([[[0, 2.0], [0, 0]], [[0, 8.0], [0, 0]]]),  # falls of 2 and -4
        square=np.array([[1, 4.0], [1, 16.0]]),
        answer=np.array([[1.0, 0.5], [3.0, 0.5]]),
    )
    effects = np.array([[2.0, 3.0], [4.0, 1.0]])
    monkeypatch.setattr(graph, "measure_links", lambda half, memories: links)
    half = SimpleNamespace(
        at=lambda memories: (0 * memories, memories, 0 * memories),  # a memory in each of two layers
        effects=lambda memories: effects,
    )
    weights = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    again = np.array([[2, 0], [0, 2], [0, 4]])
    found = graph.describe_edges(half, np.arange(2), weights, again, 0.6).set_index(["source", "target"])
    between, last = found.loc[(0, 1)], found.loc[(0, ANSWER)]
    assert between["share"] == 0.5 and between["change"] == -0.5 and between["effect"] == 0.5 * 2
    assert last["effect"] == 2 and np.isnan(last["share"])
    # The prompts alone give edges of 1.5, 1 and 0.5, then of 0.5, 3 and 0.5 logits: 0.6 of the sum takes two, or one.
    assert found["shown"].to_dict() == {(0, ANSWER): True, (0, 1): True, (1, ANSWER): False}
    assert found["stability"].to_dict() == pytest.approx({(0, ANSWER): 1, (0, 1): 1 / 3, (1, ANSWER): 0})
    # Without either prompt the effect is 0.5, or 1.5: the pseudo-values are 1 - 0.5 and 1 + 0.5.
    assert (between["low"], between["high"]) == pytest.approx(mean_interval(np.array([0.5, 1.5])))


def test_edges_lead_to_later_layers_at_the_same_token_or_a_later_one(monkeypatch):
    nothing = np.zeros((1, 3))
    links = graph.Links(np.zeros((1, 3, 3)), np.zeros((1, 3, 3)), nothing, nothing)
    monkeypatch.setattr(graph, "measure_links", lambda half, members: links)
    token, layer = np.array([1, 0, 1]), np.array([0, 1, 1])
    half = SimpleNamespace(at=lambda members: (token, layer, members), effects=lambda members: nothing)
    found = graph.describe_edges(half, np.arange(3), np.ones((1, 1)), np.ones((1, 1)), 1.0)
    assert {*zip(found["source"], found["target"])} == {(0, 2), *((n, ANSWER) for n in range(3))}


def test_of_answers_without_a_reason_nothing_holds_on_other_prompts(proven):
    """Two random tokens: on the prompts that choose, the answer is the one that memories raise. On others they push to either side."""
    folder = proven("gpt2")
    loaded, head = load(folder, "cpu"), load_head(folder, "cpu")
    running, random = Running(loaded, head, True, [], BATCH_TOKENS), np.random.default_rng(3)
    rows = np.array([random.permutation(np.arange(1, 60))[:6] for _ in range(32)])
    prompts = [Encoded(row[:4], row[:0], *row[4:].tolist(), "") for row in rows]
    mean = np.zeros(loaded.anatomy.layer_offset[-1])

    def read(prompts, group):
        return Subjects(read_prompts(running, prompts, mean, "zero"), group)

    first = read(prompts=prompts[:16], group=np.arange(16))
    turned = [
        each if raised else each._replace(answer=each.wrong, wrong=each.answer)
        for each, raised in zip(prompts, first.whole > first.without, strict=False)
    ]
    choosing = read(prompts=turned, group=np.arange(16))
    settings = Behaviour(prompts="p", graph_prompts=16, graph_resamples=2, graph_maximum=30, graph_share=0.6)
    made = make_graph(running, choosing, read(prompts=prompts[16:], group=np.arange(16)), settings, 0, "random")
    sets, nodes = made["graph_sets"].set_index("choice"), made["graph_nodes"]
    assert sets.loc[words.GRAPH, "reached"].item() and len(nodes) > 2
    there = sets.loc[words.GRAPH, "chosen"].item() * (choosing.whole - choosing.without).mean()
    here = sets.loc[words.GRAPH, "difference"].item() - sets.loc[words.NONE, "difference"].item()
    assert abs(here) < there / 2
    assert (nodes["low"] > 0).mean() < 0.3
