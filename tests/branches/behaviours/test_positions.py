"""`positions: all` against forward passes with plain hooks, for four kinds of layers, and in a model set by hand."""

import contextlib
from functools import partial

import numpy as np
import pytest
import torch
from support import WORDS, word_tokenizer
from transformers import AutoModelForCausalLM

import ffkv
from ffkv.branches.behaviours import measure, words
from ffkv.branches.behaviours.choosing import Subjects
from ffkv.branches.behaviours.encode import encode_prompts
from ffkv.branches.behaviours.prompt_file import Prompt
from ffkv.branches.behaviours.states import read_states
from ffkv.branches.behaviours.stored import NO_TOKEN, Encoded
from ffkv.branches.behaviours.subjects import read_prompts
from ffkv.branches.settings import Behaviour
from ffkv.model.effects.rerun import Running, rerunning
from ffkv.model.head.head_file import load_head
from tests.branches.behaviours.conftest import expect_equal, make
from tests.branches.behaviours.test_planted import PAIRS, names, planted_checkpoint
from tests.branches.intervention.conftest import write_inputs

PROMPTS = [
    Encoded(np.array([0, 3, 5, 7, 2]), np.array([0, 3, 9, 7, 4]), 6, 8, "", 4),
    Encoded(np.array([0, 4, 9]), np.array([0, 12, 9]), 20, 21, "", 2, 1),
]
KINDS = ("gpt2", "llama", "mixtral", "gemma2")  # plain, gated, experts, norm after the layer
TOLERANCE = 2e-4  # logits of tiny models are below 10, their rounding in float32 below 1e-4
BATCH_TOKENS = 32


def feed_forward(loaded, kind, layer):
    """The feed-forward module of a layer, and from what it reads [token, d] to its coefficients; values without gain [memory, d]."""
    if kind == "gpt2":
        mlp = loaded.model.transformer.h[layer].mlp
        return mlp, lambda x: mlp.act(x @ mlp.c_fc.weight + mlp.c_fc.bias), mlp.c_proj.weight
    mlp = loaded.model.model.layers[layer].mlp
    if kind != "mixtral":
        m = lambda x: mlp.act_fn(x @ mlp.gate_proj.weight.T) * (x @ mlp.up_proj.weight.T)  # noqa: E731
        return mlp, m, mlp.down_proj.weight.T
    bank = mlp.experts

    def of_experts(x):
        p = (x @ mlp.gate.weight.T).softmax(-1)
        best = p.topk(2).indices
        weights = torch.zeros_like(p).scatter(1, best, p.gather(1, best))
        weights = weights / weights.sum(-1, keepdim=True)
        found = []
        for expert, both in enumerate(bank.gate_up_proj):
            gate, up = (x @ both.T).chunk(2, -1)
            found.append(weights[:, expert, None] * torch.nn.functional.silu(gate) * up)
        return torch.cat(found, -1)

    return mlp, of_experts, torch.cat([matrix.T for matrix in bank.down_proj])


class Pass:
    """A forward pass with plain hooks: the logits at the last token, m and s of each layer at each token, and v.

    `by`: layer, coefficients [token, memory] and s [token, 1] to what o changes by [token, d]. `of_end`: what the last residual of
    the last token changes by.
    """

    def __init__(self, loaded, kind, ids, by=lambda layer, m, s: 0.0, of_end=None):
        self.m, self.s, self.v, count = {}, {}, {}, len(loaded.anatomy.layers)
        with contextlib.ExitStack() as stack, torch.no_grad():
            for layer in range(count):
                mlp, m_of, v = feed_forward(loaded, kind, layer)
                norm = loaded.model.model.layers[layer].post_feedforward_layernorm if kind == "gemma2" else None
                self.v[layer] = v.detach() if norm is None else (v * (1 + norm.weight)).detach()

                def on_mlp(module, args, output, layer=layer, m_of=m_of, norm=norm):
                    self.m[layer] = m_of(args[0][0]).detach()
                    if norm is None:
                        self.s[layer] = torch.ones(len(ids), 1)
                        return output + by(layer, self.m[layer], self.s[layer])

                def on_norm(module, args, output, layer=layer):
                    self.s[layer] = torch.rsqrt(args[0][0].square().mean(-1, keepdim=True) + module.eps)
                    return output + by(layer, self.m[layer], self.s[layer])

                stack.callback(mlp.register_forward_hook(on_mlp).remove)
                if norm is not None:
                    stack.callback(norm.register_forward_hook(on_norm).remove)
            if of_end is not None:
                last = loaded.model.transformer.ln_f if kind == "gpt2" else loaded.model.model.norm

                def on_end(module, args):
                    x = args[0].clone()
                    x[0, -1] += of_end
                    return (x,)

                stack.callback(last.register_forward_pre_hook(on_end).remove)
            self.logits = loaded.model(input_ids=torch.from_numpy(ids)[None], use_cache=False).logits[0, -1]

    def difference(self, prompt):
        return float(self.logits[prompt.answer] - self.logits[prompt.wrong])


def behind_bos(change):
    """A change [token, .] that leaves the first token as it is."""
    return torch.cat([torch.zeros_like(change[:1]), change[1:]])


def changed_by(changes, layer, m, s):
    """For `Pass`: changes by layer [token, d], whatever the coefficients."""
    return changes.get(layer, 0.0)


class Case:
    """A model of a kind with its passes of the clean and of the patch prompts, and two memories of each layer that change."""

    def __init__(self, kind, loaded, head):
        self.kind, self.loaded = kind, loaded
        reruns = [rerunning(loaded, layer, BATCH_TOKENS, False) for layer in loaded.anatomy.layers]
        self.running = Running(loaded, head, False, reruns, BATCH_TOKENS)
        self.offset = loaded.anatomy.layer_offset
        self.layers = range(len(self.offset) - 1)
        self.clean = [Pass(loaded, kind, each.clean) for each in PROMPTS]
        self.patch = [Pass(loaded, kind, each.patch) for each in PROMPTS]
        self.places = []
        for layer in self.layers:
            sizes = sum((a.m[layer] - b.m[layer]).abs().sum(0) for a, b in zip(self.clean, self.patch, strict=True))
            self.places += [(layer, int(memory)) for memory in sizes.topk(2).indices]
        self.flat = np.sort([self.offset[layer] + memory for layer, memory in self.places])

    def patched(self, number, chosen, part=1.0):
        """A pass on a prompt in which memories, by layer and flat numbers, become what they are on the patch prompt."""
        to = self.patch[number].m

        def by(layer, m, s):
            inside = torch.zeros(m.shape[1])
            start = self.offset[layer]
            inside[[place - start for place in chosen if 0 <= place - start < m.shape[1]]] = 1
            return behind_bos(s * ((to[layer] - m) * inside * part) @ self.clean[0].v[layer])

        return Pass(self.loaded, self.kind, PROMPTS[number].clean, by)


@pytest.fixture(params=KINDS)
def case(request, load_kind, proven):
    return Case(request.param, load_kind(request.param), load_head(proven(request.param), "cpu"))


def subjects_of(case, baseline="patch"):
    mean = np.full(case.offset[-1], 0.25, np.float32)
    return read_prompts(case.running, PROMPTS, mean, baseline)


def test_bases_are_coefficients_of_the_patch_prompt(case):
    for number, subject in enumerate(subjects_of(case)):
        expected = torch.cat([case.patch[number].m[layer][1:] for layer in case.layers], 1)
        assert torch.allclose(subject.base, expected, atol=1e-5)
    for baseline, expected in (("mean", 0.25), ("zero", 0)):
        assert all((subject.base == expected).all() for subject in subjects_of(case, baseline))


def test_effects_are_those_of_forward_passes(case):
    """Total: o changes at all tokens behind the first. Direct: the last residual of the last token. Also along a control's value."""
    settings = Behaviour(prompts="none", controls=2, directions=1)
    candidates = {
        layer: [
            measure.draw_controls(
                layer, memory, case.clean[0].v[layer].norm(dim=1).numpy(), case.loaded.anatomy.width, settings, 0
            )
            for at, memory in case.places
            if at == layer
        ]
        for layer in case.layers
    }
    rows = measure.measure_candidates(case.running, candidates, subjects_of(case))
    found = {
        (r["prompt"], r["layer"], r["memory"], r["reach"], r["source"]): r["effect"] for r in rows if r["control"] == 0
    }
    for number, prompt in enumerate(PROMPTS):
        clean, patch = case.clean[number], case.patch[number]
        for layer, candidate in [(at, each) for at in case.layers for each in candidates[at]]:
            memory, v = candidate.memory, clean.v[layer]
            falls = clean.s[layer] * (clean.m[layer] - patch.m[layer])[:, [memory]]  # [token, 1]
            other = v[candidate.controls[0]]
            values = {"own": v[memory], "random_memories": v[memory].norm() * other / other.norm()}
            for source, value in values.items():
                change = behind_bos(-falls * value)
                only = {layer: change}
                total = Pass(case.loaded, case.kind, prompt.clean, partial(changed_by, only)).difference(prompt)
                direct = Pass(case.loaded, case.kind, prompt.clean, of_end=change[-1]).difference(prompt)
                for reach, after in (("total", total), ("direct", direct)):
                    expected = clean.difference(prompt) - after
                    assert found[number, layer, memory, reach, source] == pytest.approx(expected, abs=TOLERANCE)


def test_sets_are_those_of_forward_passes(case):
    """Memories of all layers at once, and all but them: a later layer sees what an earlier one did, at all tokens."""
    every = np.arange(case.offset[-1])
    sets = [
        measure.MemorySet("screen", 0, len(case.flat), case.flat),
        measure.MemorySet("all", 0, len(every), every),
        measure.MemorySet("random", 0, 0, every[:0]),
    ]
    rows = measure.measure_sets(sets, Subjects(subjects_of(case), np.arange(2)))
    assert len(rows) == 6
    for row, chosen in zip(rows, [case.flat, every, every[:0]] * 2, strict=True):
        number, prompt = row["prompt"], PROMPTS[row["prompt"]]
        patched, kept = (case.patched(number, own) for own in (chosen, np.setdiff1d(every, chosen)))
        assert row["patched"] == pytest.approx(patched.difference(prompt), abs=TOLERANCE)
        assert row["kept"] == pytest.approx(kept.difference(prompt), abs=TOLERANCE)
    assert rows[2]["patched"] == pytest.approx(case.clean[0].difference(PROMPTS[0]), abs=TOLERANCE)


def test_side_effects_are_those_of_forward_passes(case):
    sets = [measure.MemorySet("screen", 0, len(case.flat), case.flat)]
    rows = measure.measure_side_effects(sets, Subjects(subjects_of(case), np.arange(2)))
    for row, prompt in zip(rows, PROMPTS, strict=True):
        before, after = (
            each.logits.log_softmax(-1) for each in (case.clean[row["prefix"]], case.patched(row["prefix"], case.flat))
        )
        assert row["divergence"] == pytest.approx(float((before.exp() * (before - after)).sum()), abs=TOLERANCE)
        assert row["loss"] == pytest.approx(float(before[prompt.answer] - after[prompt.answer]), abs=TOLERANCE)


def test_contrasts_and_screens(case):
    """Contrast: sums over tokens. Screen: central differences of 1 % patches, up to 1 % of the largest (what is not linear)."""
    mean = np.zeros(case.offset[-1], np.float32)
    found = read_states(case.loaded, case.running.head, PROMPTS, mean, "patch", BATCH_TOKENS, {})
    for number, prompt in enumerate(PROMPTS):
        clean, patch = case.clean[number], case.patch[number]
        for layer in case.layers:
            own = slice(case.offset[layer], case.offset[layer + 1])
            norms = clean.v[layer].norm(dim=1)
            scaled = [(its.s[layer] * its.m[layer])[1:] for its in (clean, patch)]
            expected = (scaled[0] - scaled[1]).sum(0) * norms
            assert np.allclose(found.contribution[number, own], expected, atol=1e-4)
            plain = (clean.m[layer] - patch.m[layer])[1:]
            assert np.allclose(found.coefficient[number, own], plain.sum(0), atol=1e-5)
            assert np.allclose(found.change[number, own], (clean.s[layer][1:] * plain).abs().sum(0), atol=1e-4)
        largest = float(np.abs(found.screen[number]).max())
        for place in case.flat:
            more, less = (case.patched(number, [place], part).difference(prompt) for part in (0.01, -0.01))
            assert (less - more) / 0.02 == pytest.approx(float(found.screen[number, place]), abs=0.01 * largest)


def test_no_pass_has_more_tokens_than_it_may(case):
    """Copies times tokens. A prompt of five tokens has six copies per pass, one of them the proof."""
    seen = []
    hook = case.loaded.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    sets = [measure.MemorySet("screen", draw, 1, np.array([draw])) for draw in range(20)]
    measure.measure_sets(sets, Subjects(subjects_of(case), np.arange(2)))
    hook.remove()
    assert max(seen) == 30 <= BATCH_TOKENS


def test_pairs_of_unequal_length_and_empty_prompts_are_left_out():
    pairs = [("a b", "a c"), ("a b c", "a c"), ("a b", "a"), (" ", " ")]
    prompts = [Prompt(f"line {n}", clean, patch, " d", " e", "", True) for n, (clean, patch) in enumerate(pairs)]
    prompts.append(Prompt("line 5", "a b c", None, " d", " e", "", True))
    found = encode_prompts(prompts, word_tokenizer(WORDS), [0], 17, 16, everywhere=True)
    assert [each.unused for each in found] == ["", words.UNEQUAL, words.UNEQUAL, words.EMPTY, ""]
    assert (found[0].tokens, found[4].tokens, found[4].answer != NO_TOKEN) == (2, 3, True)
    last = encode_prompts(prompts[:2], word_tokenizer(WORDS), [0], 17, 16)
    assert [(each.unused, each.tokens) for each in last] == [("", 1), ("", 1)]


def carrying_checkpoint(folder):
    """The planted model, whose second layer looks at all tokens alike and turns what memory 3 of layer 0 writes into the answer.

    That memory detects a and writes p. So it acts where a is, and attention carries it to the last token.
    """
    model = AutoModelForCausalLM.from_pretrained(planted_checkpoint(folder)).eval()
    attention, (p, b) = model.transformer.h[1].attn, (WORDS.index(word) for word in "nb")
    attention.c_attn.weight.data[p, 2 * 17 + p] = 1  # keys and queries are 0: the mean of the values
    attention.c_attn.bias.data[2 * 17 + p] = 0.25  # what the norm takes of p at the other words
    attention.c_proj.weight.data[p, b] = 5
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def carrying(tmp_path_factory):
    """The same pairs, with another word behind the a: both prompts of a pair end alike."""
    folder = tmp_path_factory.mktemp("carrying")
    texts = [f"{one} {other} {third}" for one in "abcdefgh" for other in "abcdefgh" for third in "abce"]
    files = write_inputs(folder / "run", carrying_checkpoint(folder / "checkpoint"), texts)
    rows = [
        {**row, "clean_prefix": f"{row['clean_prefix']} {word}", "patch_prefix": f"{row['patch_prefix']} {word}"}
        for row in PAIRS
        for word in "fg"
    ]
    settings = {"candidates": 3, "controls": 3, "directions": 2, "sets": [1, 3], "random_sets": 1}
    return {
        (positions, shards): make(
            folder / f"{positions}{shards}", files, shards, prompts=rows, positions=positions, **settings
        )
        for positions, shards in (("last", 1), ("all", 1), ("all", 2))
    }


def test_a_memory_that_acts_at_an_earlier_token_is_found_with_all_alone(carrying):
    last, every = carrying["last", 1], carrying["all", 1]
    for found in (last, every):
        assert found.summaries["behaviours"].iloc[0]["accuracy"] == 1
    assert (last.memories.query("layer == 0")[["contrast", "screen"]] == 0).all(
        axis=None
    )  # their last tokens are alike
    ranked = every.memories.sort_values("screen", ascending=False, kind="stable")
    assert names(ranked.head(1)) == [(0, 3)] and ranked.iloc[0]["screen_q"] < 0.05
    # m is 4 at the a, and nowhere else; its value has length 0.5.
    assert ranked.iloc[0]["contrast"] == pytest.approx(2, rel=1e-4) == ranked.iloc[0]["size"]
    effects = every.summaries["behaviour_memories"].set_index(["layer", "memory", "reach"])["effect"]
    assert effects[0, 3, "total"] > 1 > 1e-6 > abs(effects[0, 3, "direct"])
    lost = {
        key: found.summaries["behaviour_sets"].set_index(["choice", "size"])["completeness"]
        for key, found in carrying.items()
    }
    assert lost["last", 1]["all", 12] < 0.1
    assert lost["all", 1]["all", 12] == pytest.approx(1, abs=1e-3)
    assert lost["all", 1]["screen", 1] > 0.8


def test_shards_change_no_byte(carrying):
    expect_equal(carrying["all", 1], carrying["all", 2])


def test_two_lists_are_refused(planted_inputs, tmp_path):
    rows = [{"positive": row["clean_prefix"]} for row in PAIRS] + [{"negative": row["patch_prefix"]} for row in PAIRS]
    with pytest.raises(ffkv.UserError, match=r"has two lists.*`positions: all`.*Set `positions` of planted to last"):
        make(tmp_path, planted_inputs, prompts=rows, positions="all")
    with pytest.raises(ffkv.UserError, match=r"has two lists.*no graph. Set `graph_prompts` of planted to 0, or"):
        make(tmp_path, planted_inputs, prompts=rows, graph_prompts=2)
