"""The model against the formulas, and its head, the adaptive softmax: what it promises, and what no linear head does."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import layer_norm, relu

from ffkv.base.settings import Model
from ffkv_fairseq import modeling
from ffkv_fairseq.checkpoint import load_model, read_checkpoint
from ffkv_fairseq.modeling import AdaptiveInput, AdaptiveSoftmax, FairseqConfig, FairseqForCausalLM, positions


def load(folder):
    return load_model(Model(checkpoint=str(folder)))


def naive_log_probabilities(state, args, ids):
    """Log-probabilities [token, vocabulary] of one sentence, as facts of fairseq 0.9 say, without a matrix of tokens."""
    d, heads = args.decoder_embed_dim, args.decoder_attention_heads
    cutoffs = [0, *map(int, args.adaptive_input_cutoff.split(","))]
    size, half = d // heads, d // 2
    weight = {name.removeprefix("decoder."): tensor.double() for name, tensor in state.items()}

    def linear(name, x):
        return weight[f"{name}.weight"] @ x + weight[f"{name}.bias"]

    def norm(name, x):
        return layer_norm(x, (d,), weight[f"{name}.weight"], weight[f"{name}.bias"], 1e-5)

    def embed(token, place):
        band = max(band for band, start in enumerate(cutoffs) if token >= start)
        stem = f"embed_tokens.embeddings.{band}"
        word = weight[f"{stem}.1.weight"] @ weight[f"{stem}.0.weight"][token - cutoffs[band]]
        angles = [(place + 2) * math.exp(-k * math.log(1e4) / (half - 1)) for k in range(half)]
        sines = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
        return math.sqrt(d) * word + sines

    h = [embed(token, place) for place, token in enumerate(ids)]
    for layer in range(args.decoder_layers):
        stem = f"layers.{layer}"
        normed = [norm(f"{stem}.self_attn_layer_norm", state) for state in h]
        q, k, v = ([linear(f"{stem}.self_attn.{part}_proj", x) for x in normed] for part in "qkv")
        for at in range(len(ids)):
            mixed = []
            for head in (slice(start, start + size) for start in range(0, d, size)):
                scores = torch.stack([q[at][head] @ k[seen][head] / math.sqrt(size) for seen in range(at + 1)])
                mixed.append(sum(share * v[seen][head] for seen, share in enumerate(scores.softmax(0))))
            r = h[at] + linear(f"{stem}.self_attn.out_proj", torch.cat(mixed))
            m = relu(linear(f"{stem}.fc1", norm(f"{stem}.final_layer_norm", r)))
            h[at] = r + linear(f"{stem}.fc2", m)
    if not args.no_decoder_final_norm:
        h = [norm("layer_norm", state) for state in h]
    return torch.stack([naive_softmax(weight, state) for state in h])


def naive_softmax(weight, state):
    """The adaptive softmax of one vector, from the tensors as fairseq stores them."""
    stem = "adaptive_softmax"
    if f"{stem}.head.weight" in weight:
        head = weight[f"{stem}.head.weight"] @ state
    else:
        head = torch.cat([weight[f"{stem}.head.{part}_proj.weight"] @ state for part in ("word", "class")])
    tails = sum(name.startswith(f"{stem}.tail") for name in weight) // 2
    shares = head.exp() / head.exp().sum()
    words = len(head) - tails
    found = [*shares[:words]]
    for tail in range(tails):
        projection, vectors = weight[f"{stem}.tail.{tail}.0.weight"], weight[f"{stem}.tail.{tail}.2.weight"]
        tied = projection.shape[0] == len(state)
        inside = (vectors @ (projection.T @ state if tied else projection @ state)).exp()
        found += [*(shares[words + tail] * inside / inside.sum())]
    return torch.stack(found).log()


SENTENCES = [[2, 5, 30, 63, 19, 20, 40], [2, 39], [2, 0, 3, 61, 61, 4, 4, 59, 21]]


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"tied_projections": False},
        {"tied": False, "tied_projections": False},
        {"final_norm": True},
        {"old_names": True},
        {"archive": False},
        {"cutoffs": (64,)},
        {"cutoffs": (10,), "factor": 4},
        {"cutoffs": (8, 16, 32), "d": 32, "heads": 4, "layers": 3},
    ],
    ids=str,
)
def test_log_probabilities_are_those_of_the_formulas(write_checkpoint, tmp_path, form):
    model = load(write_checkpoint(tmp_path / "read", **form))
    args, state = read_checkpoint(write_checkpoint(tmp_path / "by hand", **{**form, "old_names": False}) / "model.pt")
    for ids in SENTENCES:
        with torch.no_grad():
            found = model(torch.tensor([ids])).logits[0]
        expected = naive_log_probabilities(state, args, ids)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(len(ids)), rtol=0, atol=1e-5)


def test_padding_on_the_right_changes_nothing(write_checkpoint, tmp_path):
    model = load(write_checkpoint(tmp_path))
    padded = torch.zeros(len(SENTENCES), 9, dtype=torch.long)
    for row, ids in enumerate(SENTENCES):
        padded[row, : len(ids)] = torch.tensor(ids)
    with torch.no_grad():
        together = model(padded).logits
        for row, ids in enumerate(SENTENCES):
            alone = model(torch.tensor([ids])).logits[0]
            torch.testing.assert_close(together[row, : len(ids)], alone, rtol=0, atol=1e-5)


def test_positions_are_sines_then_cosines_counted_from_two():
    found = positions(torch.arange(3), 6, torch.zeros(1))
    assert found.shape == (3, 6)
    assert found[1, 0].item() == pytest.approx(math.sin(3), abs=1e-6)
    assert found[2, 4].item() == pytest.approx(math.cos(4 * 1e-2), abs=1e-6)
    assert positions(torch.arange(2), 7, torch.zeros(1))[:, 6].tolist() == [0, 0]


def test_there_is_no_output_embedding_and_no_table_of_input_embeddings(write_checkpoint, tmp_path):
    model = load(write_checkpoint(tmp_path))
    assert model.get_output_embeddings() is None
    assert model.get_input_embeddings().weight.shape == (64, 16)
    assert model.get_input_embeddings().weight.is_meta


def softmax(ends=(3, 8), d=4, seed=0) -> AdaptiveSoftmax:
    bands = [[end, max(d // 2**band, 1)] for band, end in enumerate(ends)]
    config = FairseqConfig(vocab_size=ends[-1], hidden_size=d, input_bands=bands, output_bands=bands)
    torch.manual_seed(seed)
    made = AdaptiveSoftmax(config, AdaptiveInput(config))
    for weight in made.parameters():
        weight.requires_grad_(False).normal_()
    return made


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 99), st.floats(0.01, 100))
def test_probabilities_sum_to_one_whatever_the_bands(sizes, seed, scale):
    ends = torch.tensor(sizes).cumsum(0).tolist()
    states = scale * torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    found = softmax(ends, seed=seed)(states)
    assert found.shape == (3, ends[-1])
    # Logits of some 1,000 have a rounding error of 1e-4 in float32.
    torch.testing.assert_close(found.double().exp().sum(-1), torch.ones(3, dtype=torch.float64), rtol=0, atol=5e-4)


def test_a_band_has_the_probability_that_the_head_gives_it():
    head, states = softmax((3, 8, 20)), torch.randn(5, 4)
    found = head(states).exp()
    shares = torch.cat([head.head[part](states) for part in ("word_proj", "class_proj")], 1).softmax(-1)
    torch.testing.assert_close(found[:, :3], shares[:, :3])
    torch.testing.assert_close(found[:, 3:8].sum(-1), shares[:, 3])
    torch.testing.assert_close(found[:, 8:].sum(-1), shares[:, 4])


@pytest.fixture
def head():
    """One frequent word, and a band of ten rare ones that a vector favours, of which it means one."""
    head = softmax((1, 11), d=2)
    head.head["word_proj"].weight.copy_(torch.tensor([[1.0, 0.0]]))
    head.head["class_proj"].weight.copy_(torch.tensor([[1.1, 0.0]]))
    head.tail[0][0].weight.copy_(torch.tensor([[1.0], [0.0]]))
    head.tail[0][2].weight.zero_()[6] = 1.0
    return head


def test_the_prediction_depends_on_the_coefficient(head):
    """The paper calls the ranking of a value's tokens independent of its coefficient; with an adaptive softmax it is not.

    Times 1/2 the band's probability is spread over its words and the frequent word wins; times 20 the one word has it all.
    """
    v = torch.tensor([[1.0, 0.0]])
    assert head(0.5 * v).argmax().item() == 0
    assert head(20 * v).argmax().item() == 7


def test_residual_and_output_of_the_layer_may_agree_and_their_sum_not(head):
    """The case `other` of figure 11, which the paper's caption calls impossible: the same vector twice."""
    r = y = torch.tensor([[2.0, 0.0]])
    assert head(r).argmax() == head(y).argmax() != head(r + y).argmax()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_give_float32(dtype):
    head, states = softmax(), torch.randn(4, 4)
    found = head.to(dtype)(states.to(dtype))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head.float()(states.to(dtype).float()), rtol=0, atol=0.1)


def test_embeddings_of_every_band_are_projected_to_one_width():
    bands = [[3, 4], [8, 2]]
    config = FairseqConfig(vocab_size=8, hidden_size=4, input_bands=bands, output_bands=bands)
    table = AdaptiveInput(config)
    ids = torch.tensor([[0, 2, 3, 7], [5, 1, 4, 6]])
    with torch.no_grad():
        found = table(ids)
    for row in range(2):
        for column in range(4):
            band, start = (0, 0) if ids[row, column] < 3 else (1, 3)
            words, projection = table.embeddings[band]
            torch.testing.assert_close(
                found[row, column], projection.weight @ words.weight[ids[row, column] - start], rtol=1e-5, atol=1e-6
            )


@torch.enable_grad()  # a command that another test called in this process switches gradients off
def test_a_gradient_is_that_of_the_definition():
    """log p(word) = log p(band) + log p(word | band), by plain operations of torch."""
    head, states = softmax((3, 8, 20)), torch.randn(2, 4, requires_grad=True)
    first = torch.cat([head.head[part](states) for part in ("word_proj", "class_proj")], 1).log_softmax(-1)
    bands = [first[:, 3 + number, None] + tail(states).log_softmax(-1) for number, tail in enumerate(head.tail)]
    expected = torch.cat([first[:, :3], *bands], 1)
    weights = torch.randn(2, 20)
    torch.testing.assert_close(head(states), expected)
    (found,) = torch.autograd.grad((weights * head(states)).sum(), states)
    torch.testing.assert_close(found, *torch.autograd.grad((weights * expected).sum(), states))


@pytest.mark.parametrize("tied", [{"tie_projections": False}, {"tie_words": False}, {}], ids=str)
def test_random_weights_are_drawn_all_of_them(tied):
    """As a control has them: what memory held before is in none. Matrices have the deviation of 0.02."""
    sizes = {
        "vocab_size": 90,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = FairseqConfig(**sizes, input_bands=[(30, 16), (90, 4)], output_bands=[(30, 16), (90, 4)], **tied)

    def made(filled: float) -> dict[str, torch.Tensor]:
        def empty(*size, **options):
            return torch.full(size[0] if isinstance(size[0], tuple) else size, filled, **options)

        torch.manual_seed(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(modeling.torch, "empty", empty)
            return FairseqForCausalLM(config).state_dict()

    one, other = made(7.0), made(8.0)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name
    assert 0.01 < one["decoder.adaptive_softmax.tail.0.0.weight"].std() < 0.03
