"""Who writes a logit difference: against forward passes with plain hooks, and in models set by hand."""

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from support import LAYER_KINDS, WORDS, word_tokenizer
from transformers import AutoModelForCausalLM, GPT2Config

from ffkv.branches.behaviours import writers
from ffkv.branches.behaviours.stored import Encoded
from ffkv.branches.behaviours.writers import find_norms, measure_writers, sets_of_writers
from ffkv.model.effects.gradient import Frozen
from ffkv.model.effects.rerun import Running
from ffkv.model.effects.writes import norms_before, run_writes
from ffkv.model.head.head_file import load_head
from tests.branches.behaviours.conftest import make
from tests.branches.intervention.conftest import write_inputs

PAIRS = [
    Encoded(np.array([0, 3, 5, 7, 2]), np.array([0, 3, 9, 7, 4]), 6, 8, ""),
    Encoded(np.array([0, 4, 9]), np.array([0, 3, 12, 9]), 20, 21, "", 1, 1),  # of other lengths
]
BY_HAND = ("gpt2", "llama", "gpt-neox")  # biases, none, and blocks whose attention and memories read the same
NOT_APART = {"opt-post-norm": "not each layer reads a norm", "gemma4_text": "written behind its last layer"}
TOLERANCE = 2e-4  # logits of tiny models are below 10, their rounding in float32 below 1e-4


@pytest.fixture
def running(proven, load_kind, tmp_path):
    def get(kind: str, batch_tokens: int = 64) -> Running:
        loaded = load_kind(kind)
        head = load_head(tmp_path / "stage/model" if kind == "fairseq" else proven(kind), "cpu")
        return Running(loaded, head, False, [], batch_tokens)

    return get


def parts_of(loaded, kind: str) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """The module of what the first block reads, the last norm, and modules of attention and memories by layer."""
    model = loaded.model
    if kind == "gpt2":
        return model.transformer.drop, model.transformer.ln_f, [(each.attn, each.mlp) for each in model.transformer.h]
    if kind == "gpt-neox":
        body = model.gpt_neox
        return body.emb_dropout, body.final_layer_norm, [(each.attention, each.mlp) for each in body.layers]
    return model.model.embed_tokens, model.model.norm, [(each.self_attn, each.mlp) for each in model.model.layers]


def run(loaded, kind: str, ids: np.ndarray, to=None, which=lambda layer, writer: False, tokens: int | slice = 1):
    """One pass with plain hooks: what is written, what the last norm reads at the last token, and the logits there.

    `to`: what is written instead at the last `tokens`, or at a slice of them, of writers that `which` names.
    """
    at = tokens if isinstance(tokens, slice) else slice(-tokens, None)
    written, end = {}, []

    def note(place):
        def hook(module, args, output):
            state = output[0] if isinstance(output, tuple) else output
            if which(*place):
                state = state.clone()
                state[0, at] = to[place][-len(state[0, at]) :]
            written[place] = state[0].detach().clone()
            return (state, *output[1:]) if isinstance(output, tuple) else state

        return hook

    embedding, norm, blocks = parts_of(loaded, kind)
    named = [((-1, "embedding"), embedding)]
    for layer, (attention, memories) in enumerate(blocks):
        named += [((layer, "attention"), attention), ((layer, "memories"), memories)]
    with contextlib.ExitStack() as stack, torch.no_grad():
        for place, module in named:
            stack.callback(module.register_forward_hook(note(place)).remove)
        stack.callback(norm.register_forward_pre_hook(lambda module, args: end.append(args[0][0, -1])).remove)
        logits = loaded.model(input_ids=torch.tensor(ids)[None], use_cache=False).logits[0, -1]
    return written, end[0], logits


def measured(model: Running, prompts: list[Encoded]) -> list[dict]:
    with torch.no_grad():  # as commands do
        return measure_writers(model, find_norms(model.loaded, prompts), prompts)


def difference(prompt: Encoded, logits: torch.Tensor) -> float:
    return float(logits[prompt.answer] - logits[prompt.wrong])


def effects_of(rows: list[dict]) -> dict[tuple, float]:
    names = ("prompt", "reach", "positions", "layer", "writer")
    return {tuple(row[name] for name in names): row["effect"] for row in rows}


@pytest.mark.parametrize("kind", BY_HAND)
def test_total_effects_are_those_of_forward_passes(kind, running):
    """Each writer of each layer, of all layers, and everything; at the last token, and at all of a pair of equal length."""
    model = running(kind)
    loaded, found = model.loaded, effects_of(measured(model, PAIRS))
    for prompt in PAIRS:
        to, _, other = run(loaded, kind, prompt.patch)
        clean = difference(prompt, run(loaded, kind, prompt.clean)[-1])
        where = {"last": 1, "all": len(prompt.clean)} if prompt.number == 0 else {"last": 1}
        assert {key[2] for key in found if key[0] == prompt.number and key[1] == "total"} == {*where}
        for positions, tokens in where.items():
            for (number, reach, place, layer, writer), effect in found.items():
                if (number, reach, place) == (prompt.number, "total", positions):

                    def which(at, who, layer=layer, writer=writer):
                        return (layer < 0 or at == layer) and (who == writer or writer == "everything")

                    logits = run(loaded, kind, prompt.clean, to, which, tokens)[-1]
                    assert effect == pytest.approx(clean - difference(prompt, logits), abs=TOLERANCE)
            whole = found[prompt.number, "total", positions, -1, "everything"]
            assert whole == pytest.approx(clean - difference(prompt, other), abs=TOLERANCE)


@pytest.mark.parametrize("kind", BY_HAND)
def test_direct_effects_are_what_the_last_norm_makes_of_writes(kind, running):
    """By hand in float64, with what the norm divides by on the clean prompt. Writes are of float32, so 1e-5 of the largest."""
    model = running(kind)
    loaded, found = model.loaded, effects_of(measured(model, PAIRS))
    _, norm, _ = parts_of(loaded, kind)
    output = loaded.model.get_output_embeddings().weight.detach().double()
    for prompt in PAIRS:
        (own, end, _), (to, other, _) = (run(loaded, kind, ids) for ids in (prompt.clean, prompt.patch))

        def held(state, end=end, prompt=prompt):
            """The logit difference of a state, without what does not depend on it."""
            centre = (lambda each: each) if kind == "llama" else (lambda each: each - each.mean())
            divisor = (centre(end.double()).square().mean() + getattr(norm, "eps", 1e-6)).sqrt()
            normed = centre(state.double()) / divisor * norm.weight.double()
            return float(normed.detach() @ (output[prompt.answer] - output[prompt.wrong]))

        expected = {place: held(own[place][-1]) - held(to[place][-1]) for place in own}
        whole = held(end) - held(other)
        tolerance = {"abs": 1e-5 * max(map(abs, expected.values()))}
        for place, effect in expected.items():
            assert found[prompt.number, "direct", "last", *place] == pytest.approx(effect, **tolerance)
        # The parts add up.
        assert found[prompt.number, "direct", "last", -1, "everything"] == pytest.approx(whole, **tolerance)
        for writer in ("attention", "memories"):
            summed = sum(effect for place, effect in expected.items() if place[1] == writer)
            assert found[prompt.number, "direct", "last", -1, writer] == pytest.approx(summed, **tolerance)


@pytest.mark.parametrize("kind", [*LAYER_KINDS, "gemma4_text", "granite", "falcon", "bloom"])
def test_writes_add_up_or_the_model_is_named(kind, running, capsys):
    model = running(kind, batch_tokens=16)  # several passes per prompt
    ids = torch.tensor(PAIRS[0].clean)[None]
    if reason := NOT_APART.get(kind):
        assert reason in norms_before(model.loaded, ids) and measured(model, PAIRS) == []
        assert reason in capsys.readouterr().err
        return
    own = run_writes(model.loaded, norms_before(model.loaded, ids), ids)
    assert torch.allclose(own.parts.sum(0), own.end[0], atol=1e-5 * float(own.end.abs().max()))
    found = effects_of(measured(model, PAIRS))
    for prompt in PAIRS:  # direct effects of all writers are that of everything
        of_writers = [
            found[prompt.number, "direct", "last", -1, each] for each in ("embedding", "attention", "memories")
        ]
        assert sum(of_writers) == pytest.approx(found[prompt.number, "direct", "last", -1, "everything"], rel=1e-5)
    # At all tokens the embedding is the other prompt.
    expected = found[0, "total", "all", -1, "everything"]
    assert found[0, "total", "all", -1, "embedding"] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("kind", ["fairseq", "gpt-oss", "mixtral", "opt", "granite", "falcon", "bloom"])
def test_the_last_norm_is_held(kind, running):
    """Then the logit difference is linear in the last residual, beside a constant that a residual of zeros has, too. float32: 1e-4."""
    model = running(kind)
    read_as, pair = model.loaded.anatomy.read_as, torch.tensor([[PAIRS[0].answer, PAIRS[0].wrong]])
    end = 3 * torch.randn(1, model.loaded.anatomy.width, generator=torch.Generator().manual_seed(0))
    with Frozen():
        found, slope = model.head.difference_gradients(end, pair, read_as)
    constant = model.head.differences(torch.zeros_like(end), pair, read_as)
    assert float((slope * end).sum() + constant) == pytest.approx(float(found), abs=1e-4)


def test_a_prompt_that_is_its_own_other_prompt_has_no_effects(running):
    rows = measured(running("llama"), [PAIRS[0]._replace(patch=PAIRS[0].clean)])
    assert max(abs(row["effect"]) for row in rows) < TOLERANCE


def test_a_prompt_that_changes_by_a_change_of_nothing_is_left_out_and_named(running, monkeypatch, capsys):
    """The others are told."""
    way = writers.patched_writes

    def nonsense(*given):
        return way(*given) + 0.1 * (given[2].tolist() == [PAIRS[0].clean.tolist()])

    its = running("gpt2")
    whole = measured(its, PAIRS)
    monkeypatch.setattr(writers, "patched_writes", nonsense)
    rows = measured(its, PAIRS)
    assert rows == [row for row in whole if row["prompt"] != PAIRS[0].number] and 0 < len(rows) < len(whole)
    assert f"write on prompt {PAIRS[0].number} is not told" in capsys.readouterr().err


def test_sets_of_writers():
    named, sets = sets_of_writers(
        [(-1, "embedding"), (0, "attention"), (0, "memories"), (1, "attention"), (1, "memories")]
    )
    assert [
        (each["layer"], each["writer"], has.astype(int).tolist()) for each, has in zip(named, sets, strict=True)
    ] == [
        (0, "attention", [0, 1, 0, 0, 0]),
        (0, "memories", [0, 0, 1, 0, 0]),
        (1, "attention", [0, 0, 0, 1, 0]),
        (1, "memories", [0, 0, 0, 0, 1]),
        (-1, "embedding", [1, 0, 0, 0, 0]),
        (-1, "attention", [0, 1, 0, 1, 0]),
        (-1, "memories", [0, 0, 1, 0, 1]),
        (-1, "everything", [1, 1, 1, 1, 1]),
    ]


def attentive_checkpoint(folder):
    """A GPT-2 of which one head of layer 1 alone does anything: where it sees a, it writes b, at every token behind."""
    config = GPT2Config(
        n_layer=2, n_embd=17, n_head=1, n_inner=6, vocab_size=17, n_positions=16, activation_function="relu",
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        plain = "ln_" in name and name.endswith("weight")
        parameter.data = torch.ones_like(parameter) if plain else torch.zeros_like(parameter)
    model.transformer.wte.weight.data = torch.eye(17)
    for block in model.transformer.h:  # memories are active, and write p everywhere
        block.mlp.c_fc.bias.data[:] = 1
        block.mlp.c_proj.weight.data[:, WORDS.index("p")] = 0.1
    head = model.transformer.h[1].attn  # it looks at all tokens alike
    head.c_attn.weight.data[:, 34:] = torch.eye(17)
    head.c_proj.weight.data[WORDS.index("a"), WORDS.index("b")] = 1
    model.save_pretrained(folder)
    word_tokenizer(WORDS).save_pretrained(folder)
    return folder


ATTENTIVE = [
    {"clean_prefix": f"{first} {{}} {last}", "clean_answer": " b", "patch_answer": " c", "group": first + last}
    for first in "dfg"
    for last in "hijk"
]
ATTENTIVE = [
    {**row, "clean_prefix": row["clean_prefix"].format("a"), "patch_prefix": row["clean_prefix"].format("e")}
    for row in ATTENTIVE
]


@pytest.fixture(scope="module")
def attentive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attentive")
    words = [f"{one} {other} {third}" for one in "abcdefgh" for other in "abcdefgh" for third in "abce"]
    files = write_inputs(folder / "run", attentive_checkpoint(folder / "checkpoint"), words)
    few = {"candidates": 2, "controls": 2, "directions": 1, "sets": [1], "random_sets": 1, "missed": 0}
    return make(folder / "made", files, prompts=ATTENTIVE, **few)


def test_a_behaviour_that_attention_alone_carries(attentive):
    """At the last token attention of layer 1 has all of it; memories and the embedding there have none."""
    found = (
        attentive.summaries["behaviour_writers"]
        .set_index(["reach", "positions", "layer", "writer"])["share"]
        .sort_index()
    )
    for reach in ("direct", "total"):
        own = found[reach, "last"]
        assert own[1, "attention"] == pytest.approx(1, abs=1e-5) and own[-1, "attention"] == pytest.approx(1, abs=1e-5)
        assert own[-1, "everything"] == 1
        for place in ((0, "attention"), (0, "memories"), (1, "memories"), (-1, "memories"), (-1, "embedding")):
            assert own[place] == pytest.approx(0, abs=1e-5), (reach, place)
    everywhere = found["total", "all"]
    assert everywhere[-1, "memories"] == pytest.approx(0, abs=1e-5)
    assert everywhere[-1, "embedding"] == pytest.approx(1, abs=1e-5)  # which attention reads


def test_a_behaviour_that_memories_alone_carry(planted_inputs, tmp_path):
    """The model of `test_planted` has no attention, and its last tokens differ."""
    from tests.branches.behaviours.test_planted import PAIRS, SETTINGS

    found = make(tmp_path, planted_inputs, prompts=PAIRS, **SETTINGS).summaries["behaviour_writers"]
    found = found.set_index(["reach", "positions", "layer", "writer"])["share"]
    for where in (("direct", "last"), ("total", "last"), ("total", "all")):
        assert found[*where, -1, "attention"] == pytest.approx(0, abs=1e-5)
    # Embedding and head are the identity, and neither answer is a last token: only memories write b.
    assert found["total", "last", -1, "memories"] == pytest.approx(1, abs=1e-3)


def test_without_another_prompt_nothing_is_told(planted_inputs, tmp_path):
    from tests.branches.behaviours.test_planted import PAIRS, SETTINGS

    rows = [{"prompt": row["clean_prefix"], "answer": " b", "wrong": " c"} for row in PAIRS]
    for name, settings in {"prompts": {"prompts": rows}, "mean": {"prompts": PAIRS, "baseline": "mean"}}.items():
        made = make(tmp_path / name, planted_inputs, **settings, **SETTINGS)
        assert len(made.sets) and made.writers.empty and made.summaries["behaviour_writers"].empty
