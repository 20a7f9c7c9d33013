"""The args of a checkpoint: what they become, and what is refused by name."""

from argparse import Namespace

import pytest

from ffkv.base.errors import UserError
from ffkv.model.fairseq.checkpoint import read_arguments

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
