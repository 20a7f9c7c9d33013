"""Experts on prompts: routing, and effects in three ways, against the library's own model in float64; and experts set by hand."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import WORDS, word_tokenizer
from transformers import AutoModelForCausalLM, MixtralConfig

from ffkv.base.intervals import mean_interval
from ffkv.branches.behaviours import experts, subjects
from ffkv.branches.behaviours.choosing import Subjects
from ffkv.branches.behaviours.stored import Encoded
from ffkv.model.effects.rerun import Running, rerunning
from ffkv.model.head.head_file import load_head
from ffkv.model.routing import banks_of, route
from tests.branches.behaviours.conftest import make
from tests.branches.intervention.conftest import write_inputs
from tools.architectures.tiny import VARIANTS, save_tiny

FLIPS = 1000


def drawn_prompts(count: int, seed: int = 0, whole: bool = False) -> list[Encoded]:
    """Random prompts of 4 to 6 tokens with random answers, patched at the last token or at all but the first."""
    generator = np.random.default_rng(seed)
    rows = [np.array([0, *generator.integers(3, 40, 3 + n % 3)]) for n in range(count)]
    answers = [generator.choice(np.arange(3, 40), 2, replace=False).tolist() for _ in rows]
    tokens = [len(row) - 1 if whole else 1 for row in rows]
    return [
        Encoded(row, row[::-1], *two, "", its, n)
        for n, (row, two, its) in enumerate(zip(rows, answers, tokens, strict=True))
    ]


def groups(prompts) -> np.ndarray:
    return np.arange(len(prompts)).astype(str)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    "kind", ["mixtral", "qwen2-moe", "llama4_text", "deepseek_v3", "dbrx", "jetmoe", "gemma4: experts"]
)
def test_a_removed_expert_is_the_set_of_all_its_memories_patched_to_0(running, kind, whole):
    """Two ways through the code: a change of o, and coefficients that are patched while the model runs. Float32: 1e-6 of logits below 10."""
    model, prompts = running(kind, whole), drawn_prompts(5, whole=whole)
    table = experts.measure_effects(model, prompts, groups(prompts), FLIPS, 0)
    total = table.query("reach == 'total' and change == 'removed'").set_index(["layer", "expert"])["effect"]
    offset = model.loaded.anatomy.layer_offset
    half, every = Subjects(subjects.read_prompts(model, prompts, np.zeros(offset[-1]), "zero"), groups(prompts)), []
    for layer, bank in banks_of(model.loaded.anatomy.layers):
        before = layer.second_matrices[: layer.second_matrices.index(bank)]
        first, units = offset[layer.index] + sum(each.memories for each in before), bank.memories // bank.experts
        sets = [first + expert * units + np.arange(units) for expert in range(bank.experts)]
        every += sets
        falls = half.whole[:, None] - half.differences(sets, but=False)
        own = total.loc[layer.index]
        assert own.notna().any() and np.allclose(falls.mean(0)[own.notna()], own.dropna(), rtol=0, atol=1e-6)
        assert np.allclose(falls[:, own.isna()], 0, rtol=0, atol=5e-6)  # no token is sent there; rounding of two passes
    assert all(np.array_equal(*both) for both in zip(every, model.loaded.anatomy.experts, strict=True))


def routed_anew(kind: str, change: str, expert: int, logits, weights, index):
    """The weights and the experts of each token, without an expert, as their router gives them. Tokens without it stay as they are."""
    sent = (index == expert).any(-1, keepdim=True)
    if change == "replaced":
        logits = logits.clone()
        logits[:, expert] = -torch.inf
        chosen, others = (logits if kind == "gpt-oss" else logits.softmax(-1)).topk(2)
        chosen = chosen.softmax(-1) if kind == "gpt-oss" else chosen
        chosen = chosen / chosen.sum(-1, keepdim=True) if kind == "mixtral" else chosen
        return torch.where(sent, chosen, weights), torch.where(sent, others, index)
    rest = weights * (index != expert)
    grow = weights.sum(-1, keepdim=True) / rest.sum(-1, keepdim=True) if change == "renormalised" else 1
    return rest * grow, index


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["mixtral", "qwen2-moe", "gpt-oss"])
def test_effects_are_those_of_the_librarys_own_model_in_float64(running, checkpoints, kind, whole):
    """Its router is hooked at the tokens, in one layer: none of ffkv's code runs. Float32 against float64, logits below 10: 1e-5."""
    model, prompts = running(kind, whole), drawn_prompts(4, whole=whole)
    table = experts.measure_effects(model, prompts, groups(prompts), FLIPS, 0)
    effects = table.query("reach == 'total'").set_index(["layer", "expert", "change"])["effect"]
    library = AutoModelForCausalLM.from_pretrained(
        checkpoints(kind), dtype=torch.float64, experts_implementation="eager"
    ).eval()
    for layer, expert, change in itertools.product(range(2), range(4), ("removed", "renormalised", "replaced")):
        mlp, falls, sent = library.model.layers[layer].mlp, [], False
        gate = mlp.router if kind == "gpt-oss" else mlp.gate
        for prompt in prompts:

            def without(module, args, output, prompt=prompt, change=change, expert=expert):
                nonlocal sent
                logits, weights, index = (each.clone() for each in output)
                sent |= bool((index[-prompt.tokens :] == expert).any())
                anew = routed_anew(kind, change, expert, *(each[-prompt.tokens :] for each in output))
                weights[-prompt.tokens :], index[-prompt.tokens :] = anew
                return logits, weights, index

            ids, found = torch.from_numpy(prompt.clean)[None], []
            for hook in (lambda *_: None, without):
                handle = gate.register_forward_hook(hook)
                with torch.no_grad():
                    logits = library(ids).logits[0, -1]
                handle.remove()
                found.append(float(logits[prompt.answer] - logits[prompt.wrong]))
            falls.append(found[0] - found[1])
        if sent:
            assert effects[layer, expert, change] == pytest.approx(np.mean(falls), abs=1e-5), (layer, expert, change)
        else:
            assert np.isnan(effects[layer, expert, change])


def test_a_change_beside_has_the_length_of_the_experts_own_change(running):
    """Each control leads away from what another expert of the token writes; none leads where no token is sent to the expert."""
    model, prompts = running("mixtral", True), drawn_prompts(1, whole=True)
    ids, chosen = experts.side_by_side_at([prompts[0].clean], [prompts[0].tokens], "cpu")
    expert, changes = experts.read_changes(model, ids, chosen, set())[1]
    numbers, beside = experts.changes_beside(expert, changes)
    assert numbers.tolist() == sorted({*expert.ravel().tolist()})
    torch.testing.assert_close(beside[:, :, 0].norm(dim=-1), beside[:, :, 1].norm(dim=-1))
    for place, number in enumerate(numbers):
        for token, two in enumerate(expert):
            sent = bool((two == number).any())
            assert beside[place, :, :, token].any() == sent
            if sent:
                other = changes[token, int(two[0] == number), 0]  # the other slot, as it is removed
                cosine = torch.nn.functional.cosine_similarity(beside[place, :, 1, token], other[None])
                torch.testing.assert_close(cosine, torch.ones(3))


def test_experts_without_others_beside_them_have_an_effect_alone(running, tmp_path, proven):
    """Top-1: no weight can grow, nothing stands beside; the next expert still takes the place."""
    from support import prove_into

    from ffkv.model.checkpoint.load import load

    config = MixtralConfig(
        vocab_size=60, hidden_size=16, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=1, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data = 0.4 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "checkpoint")
    word_tokenizer(["<bos>", *[f"w{n}" for n in range(59)]]).save_pretrained(tmp_path / "checkpoint")
    stage = prove_into(tmp_path / "stage", tmp_path / "checkpoint")
    loaded = load(stage, "cpu")
    reruns = [rerunning(loaded, layer, 64, True) for layer in loaded.anatomy.layers]
    prompts = drawn_prompts(6)
    table = experts.measure_effects(
        Running(loaded, load_head(stage, "cpu"), True, reruns, 64), prompts, groups(prompts), FLIPS, 0
    )
    sent = table[table["active"] > 0]
    assert sent.query("change == 'renormalised'")["effect"].isna().all()
    assert sent.query("change != 'renormalised'")["effect"].notna().all() and len(sent)
    assert sent[["beside", "difference", "effect_p"]].isna().all(axis=None)


def test_a_router_that_leaves_no_expert_out_is_told(running, capsys):
    """LongCat's: what takes an expert's place is not known, and the log names the layers."""
    model, prompts = running("longcat_flash"), drawn_prompts(6)
    table = experts.measure_effects(model, prompts, groups(prompts), FLIPS, 0)
    sent = table[table["active"] > 0]
    assert sent.query("change == 'replaced'")["effect"].isna().all()
    assert sent.query("change == 'removed'")["effect"].notna().all() and len(sent)
    said = " ".join(capsys.readouterr().out.split())
    assert "no other expert can be made to take the place of one, so `replaced` is empty" in said


def test_a_router_that_is_not_found_is_told(tmp_path, capsys):
    """As many experts as attention has keys, in one block: what leaves an expert out breaks attention, and no number is made of that."""
    from support import prove_into

    from ffkv.model.checkpoint.load import load

    settings = VARIANTS["gemma4: experts"]["settings"] | {"num_experts": 16}
    save_tiny(tmp_path / "checkpoint", "gemma4_text", settings)
    stage = prove_into(tmp_path / "stage", tmp_path / "checkpoint")
    loaded, prompts = load(stage, "cpu"), drawn_prompts(4)
    ids, chosen = experts.side_by_side_at([each.clean for each in prompts], [each.tokens for each in prompts], "cpu")
    unproven = set[int]()
    changes = experts.read_changes(SimpleNamespace(loaded=loaded), ids, chosen, unproven)
    assert unproven
    for layer, (_, of_layer) in changes.items():
        assert of_layer[:, :, :2].isfinite().all()
        assert of_layer[:, :, 2].isnan().all() == (layer in unproven)
    reruns = [rerunning(loaded, layer, 64, False) for layer in loaded.anatomy.layers]
    running = Running(loaded, load_head(stage, "cpu"), False, reruns, 64)
    experts.measure_effects(running, prompts, groups(prompts), FLIPS, 0)
    assert f"Layers {sorted(unproven)}: no other expert can be made" in " ".join(capsys.readouterr().out.split())


def test_others_grow_by_what_a_router_that_is_sure_leaves_them(running):
    """A weight of 1 - 1e-9 leaves 1e-9: what the other writes grows by 1e9. A sum of 1, less the weight, would be 0 in float32."""
    model, prompts = running("mixtral"), drawn_prompts(5)
    ids, chosen = experts.side_by_side_at([each.clean for each in prompts], [each.tokens for each in prompts], "cpu")
    for layer in model.loaded.model.model.layers:
        layer.mlp.gate.weight.data *= 20
    routed, changes = route(model.loaded, ids, chosen), experts.read_changes(model, ids, chosen, set())
    weights = torch.cat([own.weight for own in routed.values()])
    assert (weights.max(1).values == 1).any() and (weights > 0).all()
    for layer, own in routed.items():
        c, weight = own.written.double(), own.weight.double()[..., None]
        grown = weight.sum(1, keepdim=True) * (c / weight).flip(1) - c.sum(1, keepdim=True)
        torch.testing.assert_close(changes[layer][1][:, :, 1].double(), grown, rtol=1e-4, atol=1e-4)


def test_intervals_of_experts_are_those_of_memories():
    """Most prompts are not sent to the expert, so that its effects are skewed: the interval is longer on the side of the tail."""
    its = np.zeros((24, 4, 2, 1, 3))
    its[::4, 0], its[1::12, 0], its[::4, 1], its[:, 3] = 1, 6, 0.5, 1
    group = np.repeat(np.arange(12), 2).astype(str)
    found = experts.estimate_effects(its, experts.Drawn(np.ones(24, bool), group), 100, np.random.default_rng(0))
    of_groups = its.reshape(12, 2, 4, -1).mean(1)[..., 0]
    for name, low, high, values in (
        ("effect", "low", "high", of_groups[:, 0]),
        ("difference", "difference_low", "difference_high", of_groups[:, 0] - of_groups[:, 1]),
    ):
        np.testing.assert_allclose(found[[name, low, high]].iloc[0], (values.mean(), *mean_interval(values)))
        assert (found[high] - found[name] > found[name] - found[low]).all()


@pytest.mark.parametrize(("others", "beside"), [((4, 0), 4), ((5, -1), 4), ((2, -2), 0)])
def test_an_effect_is_compared_with_the_size_of_what_others_do(running, monkeypatch, others, beside):
    """Each expert has the effect 3 on every prompt, and the other one 4 or -4 by turns: their mean is 0, and their mean size is 4.

    A prompt has two rows, as one with an answer of two tokens. Sizes are those of the sums over its rows, so that 2 and -2 are none.
    A control that one row alone has does not count.
    """
    firsts = drawn_prompts(12)
    prompts = [row for each in firsts for row in (each, each._replace(clean=np.append(each.clean, 5), after=1))]

    def measure_prompt(running, layer, prompt, base, changes):
        falls = torch.full((2 + prompt.after, 2, len(changes), 3), 1.5, dtype=torch.float64)
        falls[1] = others[prompt.after] * (-1) ** prompt.number
        return falls

    monkeypatch.setattr(experts, "measure_prompt", measure_prompt)
    table = experts.measure_effects(running("mixtral"), prompts, groups(firsts), 5000, 0).query("active > 0")
    share = table["active"] / 12
    assert np.allclose(table["effect"], 3 * share) and np.allclose(table["beside"], beside * share) and len(table)
    assert np.allclose(table["difference"], (3 - beside) * share)
    # Of all assignments of signs, two have a difference as large; signs of prompts that are not sent there change nothing.
    assert np.allclose(table["effect_p"], 1 if beside else 2.0 ** (1 - table["active"]))


def test_answers_that_say_nothing_give_few_small_p_values(running):
    """Random answers, random weights: p <= 0.05 in at most 5 % of the tests, over ten draws of prompts; and p <= 0.5 in at most half."""
    model, found = running("mixtral"), []
    for seed in range(10):
        prompts = drawn_prompts(20, seed)
        table = experts.measure_effects(model, prompts, groups(prompts), FLIPS, seed)
        found.append(table.query("change != 'replaced'")["effect_p"].dropna().to_numpy())
    p = np.concatenate(found)
    assert len(p) > 200 and (p <= 0.05).mean() <= 0.05 and (p <= 0.5).mean() <= 0.5


def test_prompts_in_any_order_are_routed_alike(running, monkeypatch):
    """Clean and patch prompts change places at random: p <= 0.05 for at most 5 % of the experts, over ten draws."""
    import pandas as pd

    model, found = running("mixtral"), []
    for seed in range(10):
        prompts = drawn_prompts(40, seed)
        frame = pd.DataFrame([each._asdict() for each in prompts]).assign(
            part="choose", positive=True, prompt=range(40), group=groups(prompts)
        )
        shuffled = np.random.default_rng(seed).permutation(40)
        frame["clean"] = frame["clean"].map(list)
        frame["patch"] = [list(prompts[n].clean) for n in shuffled]
        found.append(experts.measure_routing(model, frame, FLIPS, seed))
    table = pd.concat(found)
    assert (table["p_value"] <= 0.05).mean() <= 0.05 and len(table) == 80
    # Shares of two experts of four per token; an expert of the same share has the log ratio 0.
    assert table.groupby(np.arange(80) // 4)["clean"].sum().tolist() == pytest.approx([2] * 20)
    assert table["log_ratio"].abs().max() < np.log2(5)


CAUSE, TWIN, OTHER = 0, 1, 2
PAIRS = [
    {
        "clean_prefix": f"{one} {other} a",
        "patch_prefix": f"{one} {other} e",
        "clean_answer": " b",
        "patch_answer": " c",
        "group": f"{one} {other}",
    }
    for one, other in itertools.product("dfghi", "dfghi")
]


def planted_checkpoint(folder):
    """A Mixtral without attention, with the identity as embedding and head, that sends each token to three of five experts of layer 0.

    If the last word is an a: to CAUSE, which writes b; to TWIN, which writes nothing; and to OTHER, which writes o, of no answer. If it is an
    e: to OTHER and the two last ones, which write nothing. Experts of layer 1 write o alone.
    """
    config = MixtralConfig(
        vocab_size=17, hidden_size=17, intermediate_size=2, num_hidden_layers=2, num_attention_heads=1, head_dim=16,
        num_key_value_heads=1, num_local_experts=5, num_experts_per_tok=3, max_position_embeddings=16,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        parameter.data = torch.ones_like(parameter) if "norm" in name else torch.zeros_like(parameter)
    for module in (model.model.embed_tokens, model.lm_head):
        module.weight.data = torch.eye(17)
    a, b, e, o = (WORDS.index(word) for word in "abeo")
    first, second = (layer.mlp for layer in model.model.layers)
    first.gate.weight.data[[CAUSE, TWIN, OTHER], a] = torch.tensor([0.5, 0.45, 0.4])
    first.gate.weight.data[[OTHER, 3, 4], e] = torch.tensor([0.5, 0.45, 0.4])
    second.gate.weight.data[:, a] = torch.arange(5) / 10
    for mlp in (first, second):
        mlp.experts.gate_up_proj.data[:] = 0.1 * torch.rand(mlp.experts.gate_up_proj.shape)
    first.experts.down_proj.data[CAUSE, b] = 20.0
    first.experts.down_proj.data[OTHER, o] = 20.0
    second.experts.down_proj.data[:, o] = 1.0
    model.save_pretrained(folder)
    word_tokenizer(WORDS).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    words = [f"{one} {other} {third}" for one in "abcdefgh" for other in "abcdefgh" for third in "abce"]
    torch.manual_seed(0)
    files = write_inputs(folder / "run", planted_checkpoint(folder / "checkpoint"), words)
    few = {
        "candidates": 1,
        "controls": 1,
        "directions": 0,
        "sets": [1],
        "random_sets": 1,
        "missed": 0,
        "bootstraps": 10,
    }
    return make(folder / "made", files, prompts=PAIRS, **few)


def test_the_planted_expert_is_found_and_its_twin_that_writes_nothing_is_not(planted):
    table = planted.summaries["behaviour_experts"].set_index(["layer", "expert", "change", "reach"])
    for change, reach in itertools.product(("removed", "renormalised", "replaced"), ("direct", "total")):
        own, twin, other = (table.loc[(0, expert, change, reach)] for expert in (CAUSE, TWIN, OTHER))
        assert own["effect_q"] < 0.05 and own["effect"] > own["beside"] and own["low"] > 0
        assert other["effect_q"] > 0.05
        assert change != "removed" or (twin["effect"], twin["effect_q"]) == (0, 1)
    twin = table.loc[(0, TWIN, "removed", "total")]
    assert (twin["effect"], twin["difference"], twin["effect_p"], twin["length"]) == (0, 0, 1, 0)
    assert table.loc[1, "effect"].abs().max() < 0.05 * table.loc[(0, CAUSE, "removed", "total"), "effect"]


def test_the_router_sends_both_twins_to_the_prompts_alone(planted):
    """25 pairs: the log ratio is log2(25.5 / 0.5) with half a prompt added."""
    table = planted.experts.groupby(["layer", "expert"]).first().loc[0]
    assert table["clean"].tolist() == [1, 1, 1, 0, 0] and table["patch"].tolist() == [0, 0, 1, 1, 1]
    assert np.allclose(table["log_ratio"], np.log2(51) * np.array([1, 1, 0, -1, -1]))
    assert (table["q_value"] < 0.05).tolist() == [True, True, False, True, True]
    assert table["p_value"][OTHER] == 1 and (table["active"] > 0).tolist() == [True, True, True, False, False]
    assert planted.experts.query("layer == 0 and expert == 3")["effect"].isna().all()


def test_a_set_of_experts_is_all_memories_of_the_planted_one(planted):
    """It gets no token of the other prompts, so its memories are patched to 0: what `removed` does, on another way. Logits below 30: 1e-4."""
    sets = planted.summaries["behaviour_sets"].set_index(["choice", "size"])
    removed = planted.experts.set_index(["layer", "expert", "change", "reach"]).loc[(0, CAUSE, "removed", "total")]
    its = planted.sets.query("choice == 'experts'")
    clean = planted.answers.set_index("prompt")["difference"].loc[its["prompt"]].to_numpy()
    assert np.allclose((clean - its["patched"]).mean(), removed["effect"], rtol=0, atol=1e-4)
    own = sets.loc[("experts", 1)]
    assert ("random_experts", 1) not in sets.index  # all others together write less
    assert own["completeness"] == pytest.approx(1, abs=1e-3) and 0.9 < own["faithfulness"] < 1.1  # a norm is behind it
    assert own["memories"] == 2
    every, memories = sets.loc[("all_experts", 10)], sets.loc[("all", 20)]
    assert every["memories"] == memories["memories"] == 20 and every["completeness"] == memories["completeness"]
    aside = planted.summaries["behaviour_side_effects"].set_index(["choice", "size"])["divergence"]
    assert aside[("experts", 1)] > 0 and aside[("all_experts", 10)] == aside[("all", 20)]
    stable = planted.summaries["behaviour_stability"].query("ranking == 'experts'").set_index("compared")
    assert stable.loc[["bootstraps", "halves"], "jaccard"].min() > stable.loc["random", "jaccard"]
    assert (stable["memories"] == 1).all()  # as `candidates` says


def test_a_model_without_experts_has_no_rows(planted_inputs, tmp_path):
    rows = [{"positive": f"{one} a"} for one in "dfgh"] + [{"negative": f"{one} e"} for one in "dfgh"]
    made = make(tmp_path, planted_inputs, prompts=rows, candidates=1)
    assert not len(made.experts) and not len(made.summaries["behaviour_experts"])
    assert "experts" not in {*made.stability["ranking"]}
