"""Reads the `args` of a fairseq checkpoint. Arguments that ask for another form of model are refused by name."""

import re
from argparse import Namespace
from typing import Any

from ffkv.base.errors import UserError

# fairseq's names of activation functions, and transformers' names of the same formulas (its own "gelu_fast" differs).
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "tanh": "tanh",
    "linear": "linear",
}
# Arguments that change the computation, the value that ffkv can read, and its meaning.
REQUIRED = {
    "adaptive_input": (True, "word embeddings in bands"),
    "decoder_normalize_before": (True, "norms in front of attention and of the feed-forward layer"),
    "decoder_learned_pos": (False, "sinusoidal positions"),
    "no_token_positional_embeddings": (False, "sinusoidal positions"),
    "layernorm_embedding": (False, "no norm behind the embeddings"),
    "character_embeddings": (False, "one embedding per word"),
    "share_decoder_input_output_embed": (False, "an adaptive softmax"),
    "decoder_layers_to_keep": (None, "every layer of the checkpoint"),
    "quant_noise_scalar": (0, "weights that are not quantized"),
    "add_bos_token": (False, "</s> in front of a text"),
    "self_target": (False, "predictions of the next token"),
    "past_target": (False, "predictions of the next token"),
    "future_target": (False, "predictions of the next token"),
}


def read_arguments(args: Namespace, vocabulary: int) -> dict[str, Any]:
    """Returns the fields of a `FairseqConfig`, from the args of a checkpoint and the size of its dictionary.

    Raises UserError if an argument asks for a model of another form or is not a valid value.
    """
    given = vars(args)
    for name, (wanted, meaning) in REQUIRED.items():
        value = given.get(name, wanted if name != "adaptive_input" else False)  # absent: fairseq's default
        if bool(value) != bool(wanted):
            raise UserError(f"args.{name} is {value!r}: only {wanted!r} can be read ({meaning}).")
    width = _size(given, "decoder_embed_dim")
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if given.get(name, width) != width:
            raise UserError(f"args.{name} is {given[name]!r}: only args.decoder_embed_dim, {width}, can be read.")
    heads = _size(given, "decoder_attention_heads")
    if width % heads or width < 4:
        raise UserError(f"args.decoder_embed_dim is {width}: must be at least 4 and a multiple of the {heads} heads.")
    activation = given.get("activation_fn", "relu")
    if activation not in ACTIVATIONS:
        raise UserError(f"args.activation_fn is {activation!r}: only {', '.join(ACTIVATIONS)} can be read.")
    bands = {which: _bands(given, f"adaptive_{which}", vocabulary) for which in ("input", "softmax")}
    tied = bool(given.get("tie_adaptive_weights", False))
    if tied and bands["input"] != bands["softmax"]:
        raise UserError("args.tie_adaptive_weights is True, but the cutoffs or factors of input and softmax differ.")
    # Names of the longest input; fairseq falls back from one to the next, then to 1024.
    longest = next((name for name in ("max_target_positions", "tokens_per_sample") if given.get(name) is not None), "")
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": _size(given, "decoder_ffn_embed_dim"),
        "num_hidden_layers": _size(given, "decoder_layers"),
        "num_attention_heads": heads,
        "max_position_embeddings": _size(given, longest) if longest else 1024,
        "activation_function": ACTIVATIONS[activation],
        "scale_embedding": not given.get("no_scale_embedding", False),
        "final_norm": not given.get("no_decoder_final_norm", False),
        "input_bands": bands["input"],
        "output_bands": bands["softmax"],
        "tie_words": tied,
        "tie_projections": tied and bool(given.get("tie_adaptive_proj", False)),
    }


def _bands(given: dict[str, Any], which: str, vocabulary: int) -> list[list[int]]:
    """Returns the end (exclusive) of each band of the vocabulary, and the width of its vectors, d / factor^band."""
    cutoffs, factor = given.get(f"{which}_cutoff"), given.get(f"{which}_factor", 4)
    numbers: Any = re.findall(r"[^\s,()\[\]]+", cutoffs) if isinstance(cutoffs, str) else cutoffs
    try:
        ends = [int(number) for number in numbers]
    except (TypeError, ValueError):
        ends = []
    if not ends or ends != sorted(set(ends)) or not 0 < ends[0] <= ends[-1] <= vocabulary:
        raise UserError(
            f"args.{which}_cutoff is {cutoffs!r}: must be ascending numbers up to the {vocabulary} words of the dictionary."
        )
    if not isinstance(factor, int | float) or factor < 1:
        raise UserError(f"args.{which}_factor is {factor!r}: must be a number of at least 1.")
    if ends[-1] < vocabulary:
        ends.append(vocabulary)
    bands = [[end, int(given["decoder_embed_dim"] // factor**band)] for band, end in enumerate(ends)]
    if not bands[-1][1]:
        raise UserError(f"args.{which}_factor is {factor!r}: the last of {len(ends)} bands has no dimensions left.")
    return bands


def _size(given: dict[str, Any], name: str) -> int:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"args.{name} is {value!r}: must be a whole number of at least 1.")
    return value
