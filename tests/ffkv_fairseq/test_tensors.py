"""The args and the tensors of a checkpoint: what they become, and what is refused by name."""

from argparse import Namespace

import pytest
import torch

from ffkv.base.errors import UserError
from ffkv.base.settings import Model
from ffkv_fairseq.checkpoint import load_model, read_arguments, read_checkpoint

PAPER = {
    "decoder_layers": 16,
    "decoder_embed_dim": 1024,
    "decoder_ffn_embed_dim": 4096,
    "decoder_attention_heads": 8,
    "adaptive_input": True,
    "adaptive_input_cutoff": "20000,60000",
    "adaptive_softmax_cutoff": "20000,60000",
    "tie_adaptive_weights": True,
    "tie_adaptive_proj": True,
    "no_decoder_final_norm": True,
    "tokens_per_sample": 3072,
}


def read(vocabulary=267_744, **changes):
    return read_arguments(Namespace(**{**PAPER, **changes}), vocabulary)


def test_the_papers_arguments():
    assert read() == {
        "vocab_size": 267_744,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "max_position_embeddings": 3072,
        "activation_function": "relu",
        "scale_embedding": True,
        "final_norm": False,
        "input_bands": [[20_000, 1024], [60_000, 256], [267_744, 64]],
        "output_bands": [[20_000, 1024], [60_000, 256], [267_744, 64]],
        "tie_words": True,
        "tie_projections": True,
    }


def test_what_is_absent_has_fairseqs_default():
    few = {name: value for name, value in PAPER.items() if not name.startswith(("tie", "no_", "tokens"))}
    found = read_arguments(Namespace(**few), 267_744)
    assert found["final_norm"] and not found["tie_words"] and not found["tie_projections"]
    assert found["max_position_embeddings"] == 1024


@pytest.mark.parametrize(
    ("cutoffs", "vocabulary", "ends"),
    [("10", 10, [10]), ("10", 30, [10, 30]), ("[10, 20]", 30, [10, 20, 30]), ([10, 20, 25], 30, [10, 20, 25, 30])],
)
def test_any_number_of_bands(cutoffs, vocabulary, ends):
    changes = {"adaptive_input_cutoff": cutoffs, "adaptive_softmax_cutoff": cutoffs, "decoder_embed_dim": 512}
    changes |= {"adaptive_input_factor": 2, "adaptive_softmax_factor": 2}
    found = read(vocabulary, **changes)
    assert found["input_bands"] == [[end, 512 // 2**band] for band, end in enumerate(ends)]


def test_positions_are_counted_to_what_the_model_may_see():
    assert read(max_target_positions=512)["max_position_embeddings"] == 512
    assert read(max_target_positions=None)["max_position_embeddings"] == 3072


OTHER_FORMS = [
    {"adaptive_input": False},
    {"adaptive_softmax_cutoff": None},
    {"adaptive_input_cutoff": "20000,oops"},
    {"adaptive_input_cutoff": "60000,20000"},
    {"adaptive_softmax_cutoff": "20000,300000"},
    {"adaptive_softmax_cutoff": "0"},
    {"adaptive_softmax_factor": 0},
    {"adaptive_softmax_factor": 1000},
    {"decoder_normalize_before": False},
    {"decoder_learned_pos": True},
    {"no_token_positional_embeddings": True},
    {"layernorm_embedding": True},
    {"character_embeddings": True},
    {"share_decoder_input_output_embed": True},
    {"decoder_layers_to_keep": "0,3"},
    {"quant_noise_scalar": 0.1},
    {"add_bos_token": True},
    {"future_target": True},
    {"decoder_input_dim": 512},
    {"decoder_output_dim": 512},
    {"activation_fn": "swish"},
    {"decoder_layers": 0},
    {"decoder_layers": None},
    {"decoder_ffn_embed_dim": "4096"},
    {"decoder_attention_heads": True},
    {"max_target_positions": -1},
]


def test_another_form_is_refused_by_the_arguments_name(subtests):
    for change in OTHER_FORMS:
        with subtests.test(change=change), pytest.raises(UserError, match=rf"args\.{next(iter(change))} is"):
            read(**change)


def test_a_width_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(UserError, match=r"args\.decoder_embed_dim is 1024: .* 3 heads"):
        read(decoder_attention_heads=3)


def test_bands_that_are_tied_but_differ_are_refused():
    with pytest.raises(UserError, match=r"args\.tie_adaptive_weights is True, but the cutoffs or factors"):
        read(adaptive_softmax_cutoff="20000")
    assert read(adaptive_softmax_cutoff="20000", tie_adaptive_weights=False)["output_bands"][0] == [20_000, 1024]


@pytest.mark.parametrize(("fairseq", "ours"), [("relu", "relu"), ("gelu", "gelu"), ("gelu_fast", "gelu_new")])
def test_activations_are_fairseqs_by_formula_not_by_name(fairseq, ours):
    assert read(activation_fn=fairseq)["activation_function"] == ours


def load(folder, **settings):
    return load_model(Model(checkpoint=str(folder), **settings))


def output(folder, **settings):
    ids = torch.tensor([[2, 5, 30, 63, 1, 19, 20], [2, 40, 39, 3, 0, 61, 4]])
    with torch.no_grad():
        return load(folder, **settings).float()(ids).logits


def test_older_names_mean_the_same_model(write_checkpoint, tmp_path):
    new, old = write_checkpoint(tmp_path / "new"), write_checkpoint(tmp_path / "old", old_names=True)
    torch.testing.assert_close(output(old), output(new), rtol=0, atol=0)


def test_tied_matrices_are_one_in_memory(write_checkpoint, tmp_path):
    model = load(write_checkpoint(tmp_path))
    decoder, softmax = model.decoder, model.decoder.adaptive_softmax
    assert softmax.head["word_proj"].weight is decoder.embed_tokens.embeddings[0][0].weight
    for tail, (words, projection) in zip(softmax.tail, list(decoder.embed_tokens.embeddings)[1:]):
        assert tail[2].weight is words.weight and tail[0].weight is projection.weight
    stored = sum(
        tensor.numel()
        for name, tensor in read_checkpoint(tmp_path / "model.pt")[1].items()
        if "adaptive_softmax" not in name and "version" not in name and "_float_tensor" not in name
    )
    assert sum(weight.numel() for weight in model.parameters()) == stored + 2 * 16  # the two bands as classes


def test_untied_projections_are_told_by_their_shape(write_checkpoint, tmp_path):
    """A checkpoint of tied args whose tails are stored the other way round has projections of its own."""
    own = write_checkpoint(tmp_path / "own", tied_projections=False)
    said = write_checkpoint(tmp_path / "said", tied_projections=False, tie_adaptive_proj=True)
    model = load(own)
    embedding = model.decoder.embed_tokens.embeddings[1][1].weight
    assert model.decoder.adaptive_softmax.tail[0][0].weight is not embedding
    torch.testing.assert_close(output(said), output(own), rtol=0, atol=0)


def test_tails_as_wide_as_the_model_are_told_by_the_args(write_checkpoint, tmp_path):
    """With a factor of 1 the two orientations have one shape."""
    for tied in (True, False):
        folder = write_checkpoint(tmp_path / str(tied), factor=1, tied_projections=tied)
        stored = read_checkpoint(folder / "model.pt")[1]["decoder.adaptive_softmax.tail.0.0.weight"]
        found = load(folder).decoder.adaptive_softmax.tail[0][0].weight
        torch.testing.assert_close(found, stored if tied else stored.T)


def test_a_final_norm_is_the_args_and_the_decoders_versions(write_checkpoint, tmp_path):
    assert load(write_checkpoint(tmp_path / "normed", final_norm=True)).decoder.layer_norm is not None

    def older(args, state):
        state["decoder.version"] = torch.tensor([2.0])
        del state["decoder.layer_norm.weight"], state["decoder.layer_norm.bias"]

    assert load(write_checkpoint(tmp_path / "older", final_norm=True, change=older)).decoder.layer_norm is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "auto"])
def test_weights_take_the_wanted_type(write_checkpoint, tmp_path, dtype):
    model = load(write_checkpoint(tmp_path, dtype=torch.bfloat16), dtype=dtype)
    wanted = torch.bfloat16 if dtype == "auto" else getattr(torch, dtype)
    assert {weight.dtype for weight in model.parameters()} == {wanted} == {model.config.dtype}
    logits = model(torch.tensor([[2, 5, 60]])).logits
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(1, 3))  # the softmax itself is float32


def without(name):
    return lambda args, state: state.pop(name)


def replaced(name, tensor):
    return lambda args, state: state.__setitem__(name, tensor)


FIRST, EMBEDDING = "decoder.layers.1.fc1.weight", "decoder.embed_tokens.embeddings.1.0.weight"
WORDS, CLASSES = "decoder.adaptive_softmax.tail.0.2.weight", "decoder.adaptive_softmax.head.class_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(FIRST), rf"lacks the tensor {FIRST} of shape \(24, 16\)"),
        (without(CLASSES), rf"lacks the tensor {CLASSES} of shape \(2, 16\)"),
        (replaced(FIRST, torch.zeros(16, 24)), rf"{FIRST} has the shape \(16, 24\), not \(24, 16\)"),
        (replaced(FIRST, torch.zeros(24, 16, dtype=torch.int64)), rf"{FIRST} is of type torch\.int64"),
        (replaced("decoder.layers.2.fc1.weight", torch.zeros(1)), r"not part of the model: decoder\.layers\.2\.fc1"),
        (replaced("decoder.layers.0.version", torch.zeros(1)), r"not part of the model: decoder\.layers\.0\.version"),
        (replaced("decoder.embed_out", torch.zeros(1)), r"not part of the model: decoder\.embed_out"),
        (replaced("decoder.layer_norm.weight", torch.ones(16)), r"not part of the model: decoder\.layer_norm\.weight"),
        (replaced(WORDS, torch.zeros(20, 8)), rf"{WORDS} and {EMBEDDING} differ, but args\.tie_adaptive_weights"),
        (replaced(EMBEDDING, torch.zeros(19, 8)), r"embeds 63 words, but dict\.txt beside it has 64"),
    ],
)
def test_missing_misshapen_and_left_over_tensors_are_named(write_checkpoint, tmp_path, change, message):
    folder = write_checkpoint(tmp_path, change=change)
    with pytest.raises(UserError, match=message) as refused:
        load(folder)
    assert str(folder / "model.pt") in str(refused.value)
