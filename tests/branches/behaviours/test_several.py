"""Answers of several tokens: against forward passes of transformers, and in a model set by hand."""

import contextlib

import numpy as np
import pandas as pd
import pytest
import torch
from support import ROOT, WORDS, word_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import ffkv
from ffkv.branches.behaviours import experts, measure, subjects, words
from ffkv.branches.behaviours.choosing import Subjects
from ffkv.branches.behaviours.encode import encode_prompts
from ffkv.branches.behaviours.prompt_file import Prompt, read_prompts
from ffkv.branches.behaviours.states import read_states, side_by_side
from ffkv.branches.behaviours.stored import BLOCK, Encoded, owners
from ffkv.branches.behaviours.writers import find_norms, measure_writers
from ffkv.branches.settings import Behaviour
from ffkv.model.routing import banks_of
from ffkv.model.tap.change import scaled
from tests.branches.behaviours.conftest import expect_equal, make
from tests.branches.behaviours.test_planted import PAIRS, names
from tests.branches.behaviours.test_positions import carrying_checkpoint
from tests.branches.behaviours.test_writers import run
from tests.branches.intervention.conftest import write_inputs

KINDS = ("gpt2", "llama", "mixtral", "gemma2")  # plain, gated, experts, norm after the layer and capped logits
TOLERANCE = 2e-4  # logits of tiny models are below 10, their rounding in float32 below 1e-4


def drawn_prompts(count: int, whole: bool = False) -> list[Encoded]:
    """Random pairs of 4 to 6 tokens, whose answers have one to three tokens."""
    generator = np.random.default_rng(1)
    found = []
    for n in range(count):
        clean, patch = (np.array([0, *generator.integers(3, 40, 3 + n % 3)]) for _ in range(2))
        (answer, *more), (wrong, *others) = (generator.integers(3, 40, 1 + (n + k) % 3).tolist() for k in (0, n % 2))
        tokens = len(clean) - 1 if whole else 1
        found.append(Encoded(clean, patch, answer, (wrong, wrong + 1)[wrong == answer], "", tokens, n, more, others))
    return found


def rows_of(prompts: list[Encoded]) -> list[Encoded]:
    return [row for prompt in prompts for row in prompt.rows()]


def difference(model, ids: np.ndarray, prompt: Encoded, changed=contextlib.nullcontext) -> float:
    """Log-probability of the answer minus that of the wrong one, each of one pass of transformers over all its tokens."""
    summed = []
    for answer in ([prompt.answer, *prompt.answer_rest], [prompt.wrong, *prompt.wrong_rest]):
        whole = torch.tensor([[*ids.tolist(), *answer]])
        with torch.no_grad(), changed():
            log_p = model(input_ids=whole, use_cache=False).logits[0].double().log_softmax(-1)
        summed.append(sum(float(log_p[len(ids) - 1 + n, token]) for n, token in enumerate(answer)))
    return summed[0] - summed[1]


@pytest.mark.parametrize("kind", KINDS)
def test_differences_are_those_of_transformers(kind, running):
    """Of 20 prompts and their other prompts, in the step that reads and in the one that patches."""
    model, prompts = running(kind), drawn_prompts(20)
    mean = np.zeros(model.loaded.anatomy.layer_offset[-1], np.float32)
    found = read_states(model.loaded, model.head, rows_of(prompts), mean, "patch", 64, {})
    assert found.prompt.tolist() == [*range(20)] and len({*map(len, (rows_of([each]) for each in prompts))}) == 5
    for number, prompt in enumerate(prompts):
        expected = difference(model.loaded.model, prompt.clean, prompt)
        other = difference(model.loaded.model, prompt.patch, prompt)
        assert found.difference[number] == pytest.approx(expected, abs=TOLERANCE)
        assert found.patch_difference[number] == pytest.approx(other, abs=TOLERANCE)
        read = [each for own in batches_of([prompt]) for each in subjects.read_prompts(model, own, mean, "patch")]
        assert sum(each.difference for each in read) == pytest.approx(expected, abs=TOLERANCE)
    first = read_states(model.loaded, model.head, [each.rows()[0] for each in prompts], mean, "patch", 64, {})
    assert np.allclose(found.contribution, first.contribution, atol=1e-5)  # those of the prompt alone
    assert np.abs(found.screen - first.screen).max() > 1e-3


def batches_of(prompts: list[Encoded]) -> list[list[Encoded]]:
    rows = rows_of(prompts)
    return [[rows[n] for n in own] for own in side_by_side(rows, 64)]


def summed(rows: list[dict], *keys: str) -> pd.DataFrame:
    return (
        pd.DataFrame(rows).groupby(["prompt", *keys])[[k for k in ("effect", "patched", "kept") if k in rows[0]]].sum()
    )


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "mixtral"])
def test_effects_and_sets_are_those_of_forward_passes(kind, whole, running):
    """Memories become 0 at tokens of the prompt; those at tokens of the answer do what they then do. With and without kept keys."""
    model, prompts = running(kind, whole), drawn_prompts(4, whole)
    loaded, offset = model.loaded, model.loaded.anatomy.layer_offset
    assert model.keeps != whole
    settings = Behaviour(prompts="none", controls=2, directions=1)
    mean, places = np.zeros(offset[-1], np.float32), [(0, 1), (0, 5), (1, 2)]
    every = [(layer, memory) for layer in range(len(offset) - 1) for memory in range(offset[layer + 1] - offset[layer])]
    flat = np.array([offset[layer] + memory for layer, memory in places])
    sets = [measure.MemorySet("screen", 0, 3, flat)]
    norms = np.ones(loaded.anatomy.layers[0].memories)
    candidates = {
        layer: [
            measure.draw_controls(layer, m, norms, loaded.anatomy.width, settings, 0) for at, m in places if at == layer
        ]
        for layer in (0, 1)
    }
    rows, of_sets = [], []
    for own in batches_of(prompts):
        half = Subjects(subjects.read_prompts(model, own, mean, "zero"), np.arange(len(own)))
        rows += measure.measure_candidates(model, candidates, half.subjects)
        of_sets += measure.measure_sets(sets, half)
    effects = summed([row for row in rows if row["source"] == "own"], "layer", "memory", "reach")["effect"]
    sums = summed(of_sets)
    for prompt in prompts:
        tokens = range(len(prompt.clean) - prompt.tokens, len(prompt.clean))

        @contextlib.contextmanager
        def off(places, tokens=tokens):
            with contextlib.ExitStack() as stack:
                for token in tokens:
                    stack.enter_context(scaled(loaded.model, loaded.anatomy.layers, dict.fromkeys(places, 0.0), token))
                yield

        def without(places, prompt=prompt, off=off):
            return difference(loaded.model, prompt.clean, prompt, lambda: off(places))

        clean = difference(loaded.model, prompt.clean, prompt)
        for place in places:
            assert effects[(prompt.number, *place, "total")] == pytest.approx(clean - without([place]), abs=TOLERANCE)
        assert sums.loc[prompt.number, "patched"] == pytest.approx(without(places), abs=TOLERANCE)
        rest = [place for place in every if place not in places]
        assert sums.loc[prompt.number, "kept"] == pytest.approx(without(rest), abs=TOLERANCE)


def test_the_screen_is_a_small_patch_at_tokens_of_the_prompt(running):
    """A patch by 1 % changes the difference by 1 % of the screen, up to what is not linear: 5 % of the largest."""
    model, prompts = running("llama"), drawn_prompts(3)
    loaded, mean = model.loaded, np.zeros(model.loaded.anatomy.layer_offset[-1], np.float32)
    screen = read_states(loaded, model.head, rows_of(prompts), mean, "zero", 64, {}).screen
    for number, prompt in enumerate(prompts):
        clean, token = difference(loaded.model, prompt.clean, prompt), len(prompt.clean) - 1
        for memory in np.abs(screen[number, : loaded.anatomy.layer_offset[1]]).argsort()[-3:].tolist():
            changed = lambda token=token, memory=memory: scaled(  # noqa: E731
                loaded.model, loaded.anatomy.layers, {(0, memory): 0.99}, token
            )
            fall = 100 * (clean - difference(loaded.model, prompt.clean, prompt, changed))
            assert fall == pytest.approx(float(screen[number, memory]), abs=0.05 * float(np.abs(screen).max()))


@pytest.mark.parametrize("whole", [False, True])
def test_a_removed_expert_is_the_set_of_all_its_memories_patched_to_0(running, whole):
    """Two ways through the code, summed over the rows of each prompt. Float32: 1e-5 of logits below 10."""
    model, prompts = running("mixtral", whole), drawn_prompts(4, whole)
    rows, offset = rows_of(prompts), model.loaded.anatomy.layer_offset
    table = experts.measure_effects(model, rows, np.arange(4).astype(str), 1000, 0)
    total = table.query("reach == 'total' and change == 'removed'").set_index(["layer", "expert"])
    assert total["length"].max() > 0 and total["active"].max() <= 4
    for layer, bank in banks_of(model.loaded.anatomy.layers):
        units = bank.memories // bank.experts
        sets = [offset[layer.index] + expert * units + np.arange(units) for expert in range(bank.experts)]
        falls = np.zeros(bank.experts)
        for own in batches_of(prompts):
            half = Subjects(subjects.read_prompts(model, own, np.zeros(offset[-1]), "zero"), np.arange(len(own)))
            falls += (half.whole[:, None] - half.differences(sets, but=False)).sum(0) / 4
        effects = total.loc[layer.index, "effect"]
        assert np.allclose(falls[effects.notna()], effects.dropna(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_writers_are_patched_at_tokens_of_the_prompt(kind, running):
    """What is written there becomes that of the other prompt; at all tokens, that is the other prompt."""
    model, prompts = running(kind, whole=True), drawn_prompts(4)
    rows = rows_of(prompts)
    with torch.no_grad():
        found = summed(
            measure_writers(model, find_norms(model.loaded, rows), rows), "reach", "positions", "layer", "writer"
        )
    effects = found["effect"]
    assert len(effects.index.unique("prompt")) == 4
    for prompt in prompts:
        clean, other = (difference(model.loaded.model, ids, prompt) for ids in (prompt.clean, prompt.patch))
        everything = effects[prompt.number, "total", "all", -1, "everything"]
        assert everything == pytest.approx(clean - other, abs=TOLERANCE)
        to, _, _ = run(model.loaded, kind, prompt.patch)
        after = 0.0
        for row in prompt.rows():  # by plain hooks, at the last token of the prompt
            at = slice(-1 - row.after, -row.after or None)
            logits = run(model.loaded, kind, row.clean, to, lambda layer, who: who == "memories", at)[-1].double()
            pair = [logits[each] if each >= 0 else logits.logsumexp(0) for each in (row.answer, row.wrong)]
            after += float(pair[0] - pair[1])
        memories = effects[prompt.number, "total", "last", -1, "memories"]
        assert memories == pytest.approx(clean - after, abs=TOLERANCE)
        parts = [effects[prompt.number, "direct", "last", -1, each] for each in ("embedding", "attention", "memories")]
        assert sum(parts) == pytest.approx(
            effects[prompt.number, "direct", "last", -1, "everything"], rel=1e-4, abs=1e-5
        )


def pair(n: int, answer: str, wrong: str) -> dict:
    return {**PAIRS[n], "clean_answer": answer, "patch_answer": wrong}


@pytest.fixture(scope="module")
def carrying(tmp_path_factory):
    """Attention carries what memory 3 of layer 0 writes at an a, to all tokens behind it, where the next block makes b of it."""
    folder = tmp_path_factory.mktemp("carrying")
    texts = [f"{one} {other} {third}" for one in "abcdefgh" for other in "abcdefgh" for third in "abce"]
    return write_inputs(folder / "run", carrying_checkpoint(folder / "checkpoint"), texts)


SETTINGS = {"candidates": 3, "controls": 3, "directions": 2, "sets": [1, 3], "random_sets": 1, "bootstraps": 10}


def test_a_memory_that_decides_the_second_token_is_found(carrying, tmp_path):
    """And not by the first token alone. It raises b behind f as behind g: only one of the two answers goes on with b."""
    rows = [pair(n, " k b", " l c") for n in range(20)]
    several = make(tmp_path / "several", carrying, prompts=rows, **SETTINGS)
    alone = [pair(n, " k", " l") for n in range(20)]
    first = make(tmp_path / "first", carrying, prompts=alone, minimum_accuracy=0, **SETTINGS)
    ranked = several.memories.sort_values("screen", ascending=False, kind="stable")
    assert names(ranked.head(1)) == [(0, 3)] and ranked.iloc[0]["screen_q"] < 0.05
    assert first.memories["screen"].abs().max() < 1e-5 < 0.01 < ranked.iloc[0]["screen"]
    summary = several.summaries["behaviours"].iloc[0]
    assert (summary["accuracy"], summary["several"], first.summaries["behaviours"].iloc[0]["several"]) == (1, 20, 0)
    effects = several.summaries["behaviour_memories"].set_index(["layer", "memory", "reach"])
    assert effects.loc[(0, 3, "total"), "effect"] > 0.01 > 1e-5 > abs(effects.loc[(0, 3, "direct"), "effect"])
    assert len(several.effects.drop_duplicates(["prompt", "layer", "memory", "reach", "source", "control"])) == len(
        several.effects
    )
    everything = several.summaries["behaviour_sets"].set_index(["choice", "size"]).loc[("all", 12)]
    assert everything["completeness"] > 0.5


@pytest.mark.parametrize("baseline", ["patch", "zero"])
def test_shards_change_no_byte_and_other_prompts_no_answer_of_one_token(carrying, tmp_path, baseline):
    """One token and several in one file."""
    answers = [(" b", " c"), (" b d", " c"), (" b", " c d e"), (" b k l", " b k m")]
    rows = [
        {**pair(n, *answers[n % 4]), "clean_prefix": f"{word} {PAIRS[n]['clean_prefix']}"}
        for n in range(20)
        for word in "dfgi"
    ]
    how = {"baseline": baseline, "minimum_accuracy": 0, **SETTINGS}
    one, three = (make(tmp_path / str(shards), carrying, shards, prompts=rows, **how) for shards in (1, 3))
    expect_equal(one, three)
    assert (one.prompts["unused"] == "").all() and one.summaries["behaviours"].iloc[0]["several"] == 40
    asked = one.prompts[one.prompts["part"] != words.REFERENCE].reset_index(drop=True)
    plain = make(tmp_path / "plain", carrying, prompts=[row for n, row in enumerate(rows) if n // 4 % 4 == 0], **how)
    both = (each.answers.sort_values("prompt")["difference"].to_numpy() for each in (one, plain))
    mixed, alone = both
    np.testing.assert_allclose(mixed[asked.index // 4 % 4 == 0], alone, rtol=0, atol=1e-6)


def test_what_both_answers_begin_with_is_read_with_the_prompt():
    prompts = [
        Prompt("line 1", "a b", "a c", " d e f", " d e g h", "", True),
        Prompt("line 2", "a", None, " d d", " e", "", True),
    ]
    for everywhere, tokens in ((False, (1, 1)), (True, (4, 1))):
        first, second = encode_prompts(prompts, word_tokenizer(WORDS), [0], 17, 16, everywhere)
        ids = {word: WORDS.index(word) for word in "abcdefgh"}
        assert first.clean.tolist() == [0, *(ids[each] for each in "abde")] and first.patch.tolist()[2] == ids["c"]
        assert (first.answer, first.wrong, first.answer_rest, first.wrong_rest) == (ids["f"], ids["g"], [], [ids["h"]])
        assert (second.answer, second.answer_rest, second.wrong_rest) == (ids["d"], [ids["d"]], [])
        assert (first.tokens, second.tokens, first.unused, second.unused) == (*tokens, "", "")
    made = rows_of([first, second])
    assert [(row.answer, row.wrong, row.after) for row in made] == [
        (ids["f"], ids["g"], 0), (-1, ids["h"], 1), (ids["d"], ids["e"], 0), (ids["d"], -1, 1),
    ]  # fmt: skip
    assert made[1].patch.tolist() == [0, *(ids[each] for each in "acdeg")] and not len(made[3].patch)
    assert owners(made).tolist() == [0, 0, 1, 1]
    long = [prompt._replace(answer=" d" * 9) for prompt in prompts]
    assert [each.unused for each in encode_prompts(long, word_tokenizer(WORDS), [0], 17, 11)] == [words.LONG, ""]


def test_rows_of_a_block_of_prompts_are_read_together():
    rows = rows_of([each._replace(answer_rest=[4]) for each in drawn_prompts(2 * BLOCK + 1)])
    groups = [*side_by_side(rows, 10**6)]
    assert sorted(np.concatenate(groups).tolist()) == [*range(len(rows))]
    for own in groups:
        assert len({rows[n].after for n in own}) == 1 == len({*(owners(rows)[own] // BLOCK).tolist()})


@pytest.mark.parametrize(
    ("settings", "answers", "said"),
    [
        ({}, (" b c", " b"), r"line 3: the answers are ' b c' and ' b'. One begins with the other"),
        ({}, (" b", " b c"), r"line 3: the answers are ' b' and ' b c'. One begins with the other"),
        ({"graph_prompts": 2}, (" b c", " d"), r"line 3: .* a graph is of one. Set graph_prompts of planted to 0."),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_line(planted_inputs, tmp_path, settings, answers, said):
    rows = [pair(n, *answers) if n == 2 else PAIRS[n] for n in range(8)]
    with pytest.raises(ffkv.UserError, match=said):
        make(tmp_path, planted_inputs, prompts=rows, **settings)


def test_of_facts_about_entities_none_is_left_out_for_its_tokens():
    """In a vocabulary of 1,500 pairs of bytes, names of cities have up to seven tokens. Each answer is read as it is written."""
    coding = Tokenizer(models.BPE())
    coding.pre_tokenizer, coding.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<s>"], initial_alphabet=alphabet)
    coding.train([str(ROOT / "docs/behaviours.md"), str(ROOT / "docs/definitions.md")], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=coding, bos_token="<s>")
    prompts = read_prompts(ROOT / "configs/prompts/capitals.jsonl")[1]
    found = encode_prompts(prompts, tokenizer, [0], 1500, 512)
    assert len(found) == 192 and {each.unused for each in found} == {""}
    assert sum(len(each.answer_rest) > 0 < len(each.wrong_rest) for each in found) > 150
    for prompt, own in zip(prompts, found, strict=True):
        text = tokenizer.decode([*own.clean[1:], own.answer, *own.answer_rest])
        assert text == f"{prompt.clean}{prompt.answer}"


@pytest.mark.parametrize("kind", ["gpt2", "gemma2"])
def test_log_probabilities_of_the_head(kind, running):
    """-1 is the logarithm of the sum of all, beside tokens of other rows, and its gradient is that of autograd."""
    model = running(kind)
    head, read_as = model.head, model.loaded.anatomy.read_as
    ends = torch.randn(3, model.loaded.anatomy.width, generator=torch.Generator().manual_seed(0))
    pairs = torch.tensor([[5, -1], [-1, 7], [5, 7]])
    log_p = head.logits(ends, read_as).log_softmax(-1)
    expected = torch.stack([log_p[0, 5], -log_p[1, 7], log_p[2, 5] - log_p[2, 7]])
    assert torch.allclose(head.differences(ends, pairs, read_as), expected, atol=1e-5)
    found, slopes = head.difference_gradients(ends, pairs, read_as)
    assert torch.allclose(found, expected, atol=1e-5)
    step = 1e-2 * torch.nn.functional.normalize(slopes, dim=1)
    rise = head.differences(ends + step, pairs, read_as) - head.differences(ends - step, pairs, read_as)
    assert torch.allclose(rise / 2e-2, slopes.norm(dim=1), rtol=0.02)
