"""A model whose memories are set by hand: those that cause the behaviour are found, and told apart from those that do not."""

import itertools

import numpy as np
import pytest
import torch
from support import WORDS, word_tokenizer
from transformers import AutoModelForCausalLM, GPT2Config

from tests.branches.behaviours.conftest import expect_equal, make

CAUSES = [0, 1, 2]  # memories of layer 0 that write the answer b if the last word is a, the strongest first
IDLE, UNDONE, UNDOES = (0, 3), (0, 4), (1, 0)
PAIRS = [
    {
        "clean_prefix": f"{one} {other} a",
        "patch_prefix": f"{one} {other} e",
        "clean_answer": " b",
        "patch_answer": " c",
        "group": f"{one} {other}",  # all differ in the same words
    }
    for one, other in itertools.product("dfgh", "dfghi")
]
SETTINGS = {"candidates": 6, "controls": 3, "directions": 20, "sets": [1, 2, 3, 6], "random_sets": 2}


def planted_checkpoint(folder):
    """A GPT-2 with ReLU, without attention and positions, with the identity as embedding and head (`support.detector_checkpoint`).

    Layer 0: three memories detect a and write b; one detects a and writes p, which no answer has; one detects a and writes b and
    q. Layer 1: one detects q and takes as much of b away as the latter adds.
    """
    config = GPT2Config(
        n_layer=2, n_embd=17, n_head=1, n_inner=6, vocab_size=17, n_positions=16, activation_function="relu",
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()  # no dropout
    for name, parameter in model.named_parameters():
        plain = "ln_" in name and name.endswith("weight")
        parameter.data = torch.ones_like(parameter) if plain else torch.zeros_like(parameter)
    model.transformer.wte.weight.data = torch.eye(17)
    first, second = (block.mlp for block in model.transformer.h)
    for mlp, alive in ((first, 5), (second, 1)):
        mlp.c_fc.bias.data[alive:] = -100
    a, b, p, q = (WORDS.index(word) for word in "abno")
    first.c_fc.weight.data[a, :5] = 1  # each has 4 where the last word is a
    for memory, weight in zip(CAUSES, (0.5, 0.3, 0.2)):
        first.c_proj.weight.data[memory, b] = weight
    first.c_proj.weight.data[3, p] = 0.5
    first.c_proj.weight.data[4, [b, q]] = 0.4
    second.c_fc.weight.data[q, 0] = 1
    second.c_fc.bias.data[0] = 0.3  # the mean of the residual is taken away by the norm in front
    model.save_pretrained(folder)
    word_tokenizer(WORDS).save_pretrained(folder)
    # What the second layer takes of b is what UNDONE adds: 0.4 times its coefficient 4.
    seen = {}
    hook = second.c_proj.register_forward_pre_hook(lambda module, args: seen.update(m=args[0][0, -1, 0].item()))
    model(torch.tensor([[0, a]]))
    hook.remove()
    second.c_proj.weight.data[0, b] = -0.4 * 4 / seen["m"]
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def planted(planted_inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("behaviour")
    return make(folder, planted_inputs, prompts=PAIRS, **SETTINGS)


def names(frame):
    return [*zip(frame["layer"], frame["memory"])]


def test_the_model_has_the_behaviour(planted):
    summary = planted.summaries["behaviours"].iloc[0]
    assert (summary["prompts"], summary["accuracy"], summary["kind"]) == (20, 1, "pairs")
    assert summary["explained"] and summary["difference"] > 0 > summary["patch_difference"] - 1e-6


def test_causes_are_the_first_ranks_of_the_screen_and_significant(planted):
    ranked = planted.memories.sort_values("screen", ascending=False, kind="stable")
    assert names(ranked.head(3)) == [(0, memory) for memory in CAUSES]
    causes = ranked.head(3)
    # The gradient passes the layer that undoes it.
    assert abs(planted.memories.set_index(["layer", "memory"]).loc[UNDONE, "screen"]) < 0.5 * causes["screen"].iloc[0]
    assert (causes["screen_q"] < 0.05).all() and (causes["q_value"] < 0.05).all()
    assert (causes["contrast"] > 0).all()


def test_a_memory_that_fires_alike_but_writes_no_answer_differs_but_causes_nothing(planted):
    idle = planted.memories.set_index(["layer", "memory"]).loc[IDLE]
    assert idle["q_value"] < 0.05 and idle["contrast"] > 0
    # The final norm mixes a little of it into all logits alike, so the logit difference only shrinks.
    total = planted.summaries["behaviour_memories"].query("reach == 'total'").set_index(["layer", "memory"])["effect"]
    assert abs(total[IDLE]) < 0.15 * total[0, 0]


def test_a_memory_that_a_later_layer_undoes_has_a_direct_effect_alone(planted):
    effects = planted.summaries["behaviour_memories"].set_index(["layer", "memory", "reach"])["effect"]
    assert effects[(*UNDONE, "direct")] > 0.4 * effects[(0, 0, "direct")]
    assert abs(effects[(*UNDONE, "total")]) < 0.25 * effects[(*UNDONE, "direct")]


def test_sets_of_causes_carry_the_behaviour(planted):
    sets = planted.summaries["behaviour_sets"].set_index(["choice", "size"])
    chosen, chance = sets.loc["screen"], sets.loc["random"]
    assert chosen.loc[1, "completeness"] < chosen.loc[2, "completeness"] < chosen.loc[3, "completeness"]
    # The norms make the undoing a little stronger than the writing once the causes are gone.
    assert 0.9 < chosen.loc[3, "completeness"] < 1.6 and 0.75 < chosen.loc[3, "faithfulness"] < 1.25
    assert chance.loc[1, "completeness"] < chosen.loc[1, "completeness"] + 1e-6
    everything = sets.loc[("all", 12)]  # without attention, memories alone tell the two prompts apart
    assert everything["completeness"] == pytest.approx(1, abs=1e-3)
    assert everything["faithfulness"] == pytest.approx(1, abs=1e-3)


def test_side_effects(planted):
    """Prefixes whose last word is no a: the causes are silent, and their mean on the corpus moves b a little."""
    sides = planted.summaries["behaviour_side_effects"].set_index(["choice", "size"])
    assert (sides["divergence"] >= 0).all() and (sides["prefixes"] > 1).all()
    assert sides.loc[("screen", 1), "divergence"] < sides.loc[("screen", 3), "divergence"]
    assert sides.loc[("all", 12), "divergence"] > 0


def test_identities(planted):
    """Screen and contrast by hand: x has 4 at the last word, so m is 4 on clean prompts and 0 on patch prompts."""
    rows = planted.memories.set_index(["layer", "memory"])
    for memory, weight in zip(CAUSES, (0.5, 0.3, 0.2)):
        assert rows.loc[(0, memory), "coefficient"] == pytest.approx(4, rel=1e-4)  # what others rank by
        assert rows.loc[(0, memory), "contrast"] == pytest.approx(4 * weight, rel=1e-4)
        assert rows.loc[(0, memory), "size"] == pytest.approx(4 * weight, rel=1e-4)


@pytest.mark.parametrize("baseline", ["patch", "zero"])
def test_shards_change_no_byte(planted_inputs, tmp_path, baseline):
    rows = [{**row, "clean_prefix": f"{word} {row['clean_prefix']}"} for row in PAIRS for word in "dfgi"]
    settings = {"prompts": rows, "candidates": 2, "controls": 2, "directions": 1, "sets": [1], "random_sets": 1}
    one, three = (
        make(tmp_path / str(shards), planted_inputs, shards, baseline=baseline, **settings) for shards in (1, 3)
    )
    expect_equal(one, three)


def test_a_behaviour_that_the_model_does_not_have(planted_inputs, tmp_path):
    rows = [{**row, "clean_answer": row["patch_answer"], "patch_answer": row["clean_answer"]} for row in PAIRS]
    made = make(tmp_path, planted_inputs, prompts=rows, candidates=3)
    summary = made.summaries["behaviours"].iloc[0]
    assert summary["accuracy"] == 0 and not summary["explained"]
    assert not len(made.effects) and made.summaries["behaviour_memories"]["effect"].isna().all()


def test_without_the_frozen_screen_its_columns_are_empty_and_all_others_the_same(planted, planted_inputs, tmp_path):
    found = make(tmp_path, planted_inputs, prompts=PAIRS, frozen=False, **SETTINGS)
    expect_equal_but_frozen(found.memories, planted.memories)
    for name, table in found.summaries.items():
        expect_equal_but_frozen(table, planted.summaries[name])


def expect_equal_but_frozen(found, expected):
    for name in expected:
        if name.startswith("frozen"):
            assert found[name].isna().all() and expected[name].notna().any(), name
        else:
            assert found[name].equals(expected[name]), name


def test_two_lists_have_a_contrast_alone(planted_inputs, tmp_path):
    rows = [{"positive": row["clean_prefix"]} for row in PAIRS] + [{"negative": row["patch_prefix"]} for row in PAIRS]
    made = make(tmp_path, planted_inputs, prompts=rows, candidates=5)
    found = made.memories.set_index(["layer", "memory"])
    assert found.loc[(0, 0), "contrast"] == pytest.approx(2, rel=1e-4) and found.loc[(0, 0), "q_value"] < 0.05
    assert made.summaries["behaviours"].iloc[0]["kind"] == "lists" and not len(made.effects)
    assert (found["screen"] == 0).all() and not found["by_screen"].any()


@pytest.mark.parametrize(("positions", "baseline"), [("last", "patch"), ("all", "mean"), ("all", "zero")])
def test_prompts_without_pairs_are_compared_with_means(planted_inputs, tmp_path, positions, baseline):
    """m is 4 at the last token, which is an a, and 0 at the others."""
    rows = [{"prompt": row["clean_prefix"], "answer": " b", "wrong": " c"} for row in PAIRS]
    where = {"positions": positions, "baseline": baseline}
    made = make(tmp_path, planted_inputs, prompts=rows, candidates=3, sets=[3], **where)
    cause = made.memories.query("layer == 0 and memory == 0").iloc[0]
    assert cause["screen_q"] < 0.05 and (positions == "all" or 0 < cause["coefficient"] < 4)
    sets = made.summaries["behaviour_sets"].set_index("choice")["completeness"]
    assert np.isfinite(sets["screen"]) and np.isnan(sets["all"])  # all carry all of it by construction
