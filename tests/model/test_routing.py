"""Where routers send tokens, what experts write there, and routers that leave an expert out, against routers written by hand."""

from types import SimpleNamespace

import pytest
import torch
from support import CONFIGS, random_model, some_ids

from ffkv.model.discover.prove import observe, prove_layers
from ffkv.model.experts import layout_of
from ffkv.model.keys_and_values import values
from ffkv.model.routing import banks_of, leaving_out, route
from tools.architectures.tiny import VARIANTS, tiny_model

# Fused experts, a shared one, a sigmoid router with groups, weights that act inside, biases, stacked matrices, a router in the bank,
# a norm behind the layer; last, which no router is written for here, a norm behind the bank alone, too.
KINDS = ("mixtral", "qwen2-moe", "deepseek_v3", "llama4_text", "gpt-oss", "dbrx", "jetmoe", "flex_olmo")
NORMED = "gemma4: experts"


@pytest.fixture
def proven_model():
    def get(kind: str, settings: dict | None = None):
        its = VARIANTS.get(kind, {"type": kind, "settings": settings})
        model = random_model(CONFIGS[kind]) if kind in CONFIGS else tiny_model(its["type"], 0, its["settings"])
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # ranks experts beside their scores
                buffer.copy_(torch.linspace(2, -2, len(buffer)))
        anatomy = prove_layers(model, some_ids(5) % 40, some_ids(6) % 40)
        return SimpleNamespace(model=model, anatomy=anatomy)

    return get


def pick(ids: torch.Tensor) -> torch.Tensor:
    """The last three tokens of the first sentence, and the last one of the second."""
    length = ids.shape[1]
    return torch.tensor([length - 3, length - 2, length - 1, 2 * length - 1])


@pytest.mark.parametrize("kind", [*KINDS, NORMED])
def test_what_experts_write_and_what_others_write_is_the_output_of_the_layer(proven_model, kind):
    """Σ c_e + shared expert = y. Float32: 1e-6 of the largest number, and ten times that where the gate of a shared expert is solved for."""
    loaded, ids = proven_model(kind), some_ids(7) % 40
    states, chosen = observe(loaded.model, loaded.anatomy.layers, ids), pick(ids)
    found = route(loaded, ids, chosen)
    assert [*found] == [layer.index for layer, _ in banks_of(loaded.anatomy.layers)] != []
    for layer, bank in banks_of(loaded.anatomy.layers):
        own, state = found[layer.index], {name: tensor.flatten(0, 1) for name, tensor in states[layer.index].items()}
        first = sum(each.memories for each in layer.second_matrices[: layer.second_matrices.index(bank)])
        others = torch.ones(layer.memories, dtype=torch.bool)
        others[first : first + bank.memories] = False
        v, _ = values(loaded.model, layer)
        expected = state["y"] - state.get("s", 1) * (state["m"] * others) @ v
        expected -= getattr(loaded.model.get_submodule(bank.module), "bias", torch.zeros(1))  # JetMoE's, of every token
        summed = (own.factor * own.written).sum(1)
        largest = state["y"].abs().max()
        tolerance = 1e-5 if any(each.per_token_weight for each in layer.second_matrices) else 1e-6
        assert (summed - expected[chosen]).abs().max() < tolerance * largest
        assert torch.equal(own.o, states[layer.index]["o"])
        units = bank.memories // bank.experts
        sent = (
            state["m"][chosen, first : first + bank.memories].reshape(len(chosen), bank.experts, units).abs().sum(2) > 0
        )
        assert torch.equal(torch.nn.functional.one_hot(own.expert + 1, bank.experts + 1).sum(1)[:, 1:] > 0, sent)


def by_hand(kind: str, mlp, x: torch.Tensor, left_out: int) -> dict[int, tuple[float, float]]:
    """The experts of one token, and the weights of what they read and of what they write, if one is left out; in float64."""
    router = getattr(mlp, "gate", None) or mlp.router
    weight = (router if hasattr(router, "weight") else router.layer).weight.double()
    logits = weight @ x + (router.bias.double() if kind == "gpt-oss" else 0)
    gone = [left_out] * (left_out >= 0)
    logits[gone] = -torch.inf
    if kind == "deepseek_v3":
        scores = logits.sigmoid()
        ranked = scores + router.e_score_correction_bias.double()
        ranked[gone] = -torch.inf
        groups = ranked.view(router.num_group, -1)
        best = groups.topk(min(2, groups.shape[1]), 1)[0].sum(1).topk(router.topk_group)[1]
        allowed = torch.zeros_like(groups, dtype=torch.bool)
        allowed[best] = True
        index = ranked.masked_fill(~allowed.ravel(), -torch.inf).topk(2)[1]
        chosen = scores[index] / (scores[index].sum() if router.norm_topk_prob else 1) * router.routed_scaling_factor
    else:
        of_all = kind in ("mixtral", "qwen2-moe", "dbrx", "flex_olmo")
        chosen, index = (logits.softmax(0) if of_all else logits).topk(2)
    if kind == "llama4_text":
        return dict(zip(index.tolist(), ((each, 1.0) for each in chosen.sigmoid().tolist())))
    if kind in ("gpt-oss", "jetmoe"):
        chosen = chosen.softmax(0)
    elif kind == "mixtral" or (kind != "deepseek_v3" and getattr(router, "norm_topk_prob", False)):
        chosen = chosen / chosen.sum()
    elif kind == "dbrx":
        chosen = chosen / chosen.norm(p=mlp.moe_normalize_expert_weights)
    return dict(zip(index.tolist(), ((1.0, each) for each in chosen.tolist())))


@torch.no_grad()
@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_router_that_leaves_an_expert_out_is_the_router_written_by_hand(proven_model, kind, left_out):
    """Experts, and what they write, in float64 by hand. Float32 rounds by some 1e-6 of the largest number: 1e-5."""
    loaded, ids = proven_model(kind), some_ids(8) % 40
    chosen, layers = pick(ids), loaded.anatomy.layers
    plain, x = route(loaded, ids, chosen), observe(loaded.model, layers, ids, "x")
    out = {number: torch.full((ids.numel(),), -1) for number in plain}
    for number, own in plain.items():
        out[number][chosen] = own.expert[:, 0] if left_out else -1
    made = route(loaded, ids, chosen, leaving_out(loaded, plain, out))
    for layer, bank in banks_of(layers):
        module = loaded.model.get_submodule(bank.module)
        mlp = module if kind == "jetmoe" else loaded.model.get_submodule(bank.module.rpartition(".")[0])
        read = x[layer.index]["x"].flatten(0, 1).double()
        for row, token in enumerate(chosen.tolist()):
            expected = by_hand(kind, mlp, read[token], int(out[layer.index][token]))
            own = made[layer.index]
            assert own.expert[row].tolist() == sorted(expected)
            assert not left_out or int(plain[layer.index].expert[row, 0]) not in expected
            written = torch.zeros(read.shape[1], dtype=torch.float64)
            for expert, (inside, behind) in expected.items():
                layout = layout_of(module.double())
                written += (
                    behind * (layout.coefficients(expert, inside * read[token, None])[0] @ layout.values(expert))[0]
                )
                written += behind * layout.expert_bias(expert) if layout.expert_bias(expert) is not None else 0
            module.float()
            if kind == "flex_olmo":  # the gain of the norm behind
                written *= loaded.model.get_submodule(layer.output_module).weight
            torch.testing.assert_close(
                own.written[row].sum(0).double(), written, rtol=0, atol=1e-5 * float(written.abs().max())
            )
            if kind != "llama4_text":
                weights = [expected[expert][1] for expert in sorted(expected)]
                torch.testing.assert_close(
                    own.weight[row].double(), torch.tensor(weights, dtype=torch.float64), rtol=1e-5, atol=0
                )
            else:
                assert own.weight[row].isnan().all()


def test_a_router_that_leaves_nothing_out_does_the_same_to_the_last_bit(proven_model):
    loaded, ids = proven_model("mixtral"), some_ids(9)
    plain = route(loaded, ids, pick(ids))
    nothing = {number: torch.full((ids.numel(),), -1) for number in plain}
    same = route(loaded, ids, pick(ids), leaving_out(loaded, plain, nothing))
    for number, own in plain.items():
        assert all(torch.equal(one, other) for one, other in zip(own[:3], same[number][:3], strict=True))


def test_layers_do_not_see_the_experts_that_earlier_layers_lack(proven_model):
    """All layers at once, and each alone."""
    loaded, ids = proven_model("mixtral"), some_ids(10)
    chosen = pick(ids)
    plain = route(loaded, ids, chosen)
    nothing = {number: torch.full((ids.numel(),), -1) for number in plain}
    every = {number: nothing[number].clone() for number in plain}
    for number, own in plain.items():
        every[number][chosen] = own.expert[:, 1]
    together = route(loaded, ids, chosen, leaving_out(loaded, plain, every))
    for number in plain:
        alone = route(loaded, ids, chosen, leaving_out(loaded, plain, nothing | {number: every[number]}))
        torch.testing.assert_close(alone[number].written, together[number].written, rtol=0, atol=1e-6)


def test_a_router_of_another_form_still_sends_tokens_to_the_expert(proven_model):
    """LongCat's router ranks slots that are no experts, too: whoever asks sees that the expert is not gone."""
    loaded, ids = proven_model("longcat_flash"), some_ids(11) % 40
    plain = route(loaded, ids, pick(ids))
    out = {number: torch.full((ids.numel(),), -1) for number in plain}
    for number, own in plain.items():
        out[number][pick(ids)] = own.expert[:, 0]
    made = route(loaded, ids, pick(ids), leaving_out(loaded, plain, out))
    for number, own in plain.items():
        assert torch.equal(made[number].expert, own.expert)
