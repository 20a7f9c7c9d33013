"""To which experts tokens are sent: read from models of several kinds, against their routers; by hand; planted; and by chance."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ffkv.base.steps import Work
from ffkv.branches.given import Given
from ffkv.branches.routing import tables
from ffkv.branches.routing.measure import NEAR, draw_sentences, load_of, measure_routing, read_routing, rows_of_patterns
from ffkv.branches.settings import Routing
from ffkv.model.anatomy import Layer, SecondMatrix
from ffkv.model.tap.tap import observe

GENERATOR = np.random.default_rng


class Sentences:
    """Sentences of some lengths behind one token that precedes every sentence, each of a document."""

    bos = (1,)

    def __init__(self, lengths, document=None, vocabulary=60):
        self.lengths = np.array(lengths)
        self.document = np.arange(len(lengths)) if document is None else np.array(document)
        self.own = [GENERATOR(n).integers(2, vocabulary, length) for n, length in enumerate(lengths)]

    def prefix_ids(self, sentence, position):
        return np.concatenate([np.array(self.bos), self.own[sentence][:position]])


@pytest.mark.parametrize("kind", ["mixtral", "qwen2-moe", "gpt-oss"])
def test_tokens_are_sent_to_the_experts_that_work_on_them_alone(load_kind, kind):
    """Read in batches of several lengths, they are where each sentence alone has coefficients. Two of four experts each."""
    loaded, corpus, order = replace(load_kind(kind), batch_tokens=20), Sentences([3, 9, 1, 7, 7]), [3, 0, 1, 4, 2]
    found = read_routing(loaded, corpus, order)
    for number, sent in found.items():
        layer = loaded.anatomy.layers[number]
        assert sent.shape == (27, 4) and (sent.sum(1) == 2).all()
        alone = []
        for sentence in order:
            ids = torch.from_numpy(corpus.prefix_ids(sentence, 99))[None]
            (states,) = observe(loaded.model, [layer], ids, "m")
            m = states["m"][0, 1:]
            alone.append(np.stack([(m[:, expert] != 0).any(1).numpy() for expert in layer.experts], 1))
        np.testing.assert_array_equal(sent, np.concatenate(alone))


def test_tokens_are_sent_where_the_router_has_its_largest_logits(load_kind):
    loaded, corpus = load_kind("mixtral"), Sentences([6])
    layer, read = loaded.anatomy.layers[1], read_routing(loaded, corpus, [0])[1]
    states: list[torch.Tensor] = []
    router = loaded.model.get_submodule(f"{layer.block}.mlp.gate")
    handle = router.register_forward_pre_hook(lambda module, args: states.append(args[0]))
    loaded.model(input_ids=torch.from_numpy(corpus.prefix_ids(0, 6))[None])
    handle.remove()
    logits = states[0].reshape(-1, 16).double() @ router.weight.double().T
    first = logits.topk(2).indices[1:]
    np.testing.assert_array_equal(np.sort([np.flatnonzero(row) for row in read], 1), first.sort(1).values)


def test_the_experts_of_a_layer_follow_its_banks():
    def matrix(name, memories, experts):
        return SecondMatrix(name, [name], "gated", memories, experts=experts)

    layer = Layer(0, "block", [matrix("bank", 12, 3), matrix("shared", 5, 0), matrix("other", 4, 2)], True)
    assert layer.experts == [slice(0, 4), slice(4, 8), slice(8, 12), slice(17, 19), slice(19, 21)]
    assert Layer(0, "block", [matrix("plain", 12, 0)], True).experts == []


def test_documents_are_drawn_whole():
    corpus = Sentences([4, 4, 4, 4, 4, 4], document=[0, 0, 1, 1, 2, 2])
    drawn = draw_sentences(corpus, 9, GENERATOR(0))
    assert len(drawn) == 3 and drawn[1] == drawn[0] + 1 and drawn[0] % 2 == 0
    assert sorted(draw_sentences(corpus, 10**6, GENERATOR(0))) == [*range(6)]


def test_load_by_hand():
    """Of four experts, one gets all four tokens, two get two each, one gets none: shares 1/2, 1/4, 1/4."""
    sent = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0], [1, 0, 1, 0]], bool)
    found = load_of(sent)
    assert found == {
        "experts": 4,
        "tokens": 4,
        "per_token": 2,
        "even": pytest.approx(2**1.5 / 4),  # the entropy is 1.5 bits
        "largest": 1,
        "never": 1,
    }
    assert load_of(np.eye(4, dtype=bool))["even"] == pytest.approx(1)


def clusters(generator, count, share):
    """Labels that come in runs of ten."""
    return np.repeat(generator.random(count // 10) < share, 10)


def test_shares_and_chance_are_those_of_all_shifts():
    generator = GENERATOR(1)
    sent, has = generator.random((1000, 3)) < [0.1, 0.5, 0.9], clusters(generator, 1000, 0.2)
    rows = [*rows_of_patterns(sent, {"runs": has, "all": np.ones(1000, bool), "none": np.zeros(1000, bool)})]
    assert [row["pattern"] for row in rows] == ["runs"] * 3  # a pattern of all tokens, or of none, says nothing
    for expert, row in enumerate(rows):
        own = sent[:, expert]
        numbers = np.array([(np.roll(own, -shift) & has).sum() for shift in range(1000)])
        mean = own.mean() * has.sum()
        far = np.abs(numbers[NEAR : 1001 - NEAR] - mean) >= np.abs(numbers[0] - mean) - 1e-9
        assert row["p"] == pytest.approx((1 + far.sum()) / (1 + len(far)))
        assert (row["expert"], row["tokens"]) == (expert, has.sum())
        assert row["share"] == pytest.approx(own[has].mean()) and row["elsewhere"] == pytest.approx(own[~has].mean())
        inside, outside = (own[has].sum() + 0.5) / (has.sum() + 1), (own[~has].sum() + 0.5) / ((~has).sum() + 1)
        assert row["log_ratio"] == pytest.approx(np.log2(inside / outside))


def test_a_share_of_no_token_is_0_without_a_sign():
    generator = GENERATOR(1)
    has = clusters(generator, 1000, 0.2)
    sent = ~has[:, None] & (generator.random((1000, 20)) < 0.5)  # no token with the pattern is sent to an expert
    shares = [row["share"] for row in rows_of_patterns(sent, {"runs": has})]
    assert shares == [0] * 20 and not np.signbit(shares).any()


def test_an_expert_of_a_pattern_is_found_and_one_of_other_tokens_is_not():
    generator = GENERATOR(2)
    has = clusters(generator, 4000, 0.05)
    sent = generator.random((4000, 4)) < 0.25
    sent[:, 2] = np.where(has, generator.random(4000) < 0.6, sent[:, 2])
    rows = {row["expert"]: row for row in rows_of_patterns(sent, {"runs": has})}
    assert rows[2]["p"] < 0.001 and rows[2]["log_ratio"] > 1
    assert min(rows[expert]["p"] for expert in (0, 1, 3)) > 0.01


def test_labels_in_runs_beside_experts_in_runs_are_significant_in_five_of_a_hundred():
    """Tokens that are drawn one by one would be taken for independent, and far more would be significant."""
    generator, found, alone = GENERATOR(3), [], []
    for _ in range(300):
        has, sent = clusters(generator, 1000, 0.2), clusters(generator, 1000, 0.3)
        found.append(next(rows_of_patterns(sent[:, None], {"runs": has}))["p"])
        z = (sent[has].mean() - sent[~has].mean()) / np.sqrt(0.21 / has.sum() + 0.21 / (~has).sum())
        alone.append(abs(z) > 1.96)
    low, high = 0.02, 0.085  # 300 draws of 5 %, three standard errors
    assert low < np.mean(np.array(found) <= 0.05) < high < np.mean(alone)


@pytest.mark.parametrize("kind", ["mixtral", "gpt2"])
def test_tables_of_a_step(proven, write_corpus, kind):
    """A model without experts has tables without rows."""
    from ffkv.model.checkpoint.tokenizer import load_tokenizer

    model = proven(kind)
    anatomy = Given(model=model).anatomy
    words = ["a b c", "d e f g", "a 1999 c , d", "b c d e f g h"] * 10
    train = write_corpus(words, load_tokenizer(model), deduplicate=False, **anatomy.identity)
    with Given(Work("cpu"), model=model, train=train) as given:
        found = measure_routing(given, Routing(tokens=100), 0)
    load, experts, patterns = (found[table.name] for table in (tables.LOAD, tables.EXPERTS, tables.PATTERNS))
    if kind == "gpt2":
        assert not len(load) and not len(experts) and not len(patterns)
        return
    assert load["layer"].tolist() == [0, 1] and (load["per_token"] == 2).all() and (load["tokens"] >= 100).all()
    assert experts.groupby("layer")["tokens"].sum().tolist() == (2 * load["tokens"]).tolist()
    assert ((experts["tokens"] / load["tokens"].iloc[0]) == experts["share"]).all()
    assert (patterns["q"] >= patterns["p"] - 1e-12).all()
