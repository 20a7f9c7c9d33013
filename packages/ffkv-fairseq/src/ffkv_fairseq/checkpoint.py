"""A fairseq checkpoint, a folder with `model.pt` and `dict.txt`, as model and tokenizer. No pickled code is run."""

import argparse
import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file
from ffkv.base.settings import Model
from ffkv_fairseq.reader import DICTIONARY_FILE, MODEL_FILE, read_dictionary

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
# Tensors that hold no weight: version numbers, stand-ins for a device, and positions that are a formula.
BOOKKEEPING = re.compile(
    r"decoder\.(version|adaptive_softmax\.version|embed_positions\.weights|([\w.]+\.)?_float_tensor)"
)
OLDER = {"layer_norms.0": "self_attn_layer_norm", "layer_norms.2": "final_layer_norm"}
SOFTMAX = "decoder.adaptive_softmax"
FIRST_WITH_NORM = 3  # version of a decoder that may have a norm behind its blocks


def load_model(settings: Model, with_weights: bool = True) -> PreTrainedModel:
    """Loads the model of a fairseq checkpoint, on the CPU. Weights that have the wanted type already are not copied.

    `with_weights`: False leaves the model on torch's meta device, without weights.

    Raises:
        UserError: a file is missing, damaged or needs code to be read; the model has another form; weights are missing,
            left over or of another shape; the dictionary is that of another model; model code is to be trusted.
    """
    from ffkv_fairseq.modeling import FairseqConfig, FairseqForCausalLM

    folder, dtype = Path(settings.checkpoint), settings.dtype
    if settings.trust_remote_code:
        raise UserError(f"{folder} is a fairseq checkpoint and brings no code: set model.trust_remote_code to false.")
    path, words = folder / MODEL_FILE, read_dictionary(folder)
    args, state = read_checkpoint(path)
    try:
        embeddings = re.compile(r"decoder\.embed_tokens\.embeddings\.\d+\.0\.weight")
        rows = sum(len(tensor) for name, tensor in state.items() if embeddings.fullmatch(name))
        if rows and rows != len(words):
            raise UserError(
                f"it embeds {rows} words, but {DICTIONARY_FILE} beside it has {len(words)} (its lines and 4 special words): it belongs to another model."
            )
        settings_of_model = read_arguments(args, len(words))
        last = f"decoder.layers.{settings_of_model['num_hidden_layers'] - 1}."
        if not any(name.startswith(last) for name in state):
            raise UserError(f"args.decoder_layers is {args.decoder_layers}, but it holds no tensor of {last}*.")
        config = FairseqConfig(**upgrade(state, settings_of_model))
        with torch.device("meta"):
            model: Any = FairseqForCausalLM(config)
        wanted = None if dtype == "auto" else getattr(torch, dtype)
        if not with_weights:
            return model.to(wanted or next(iter(state.values())).dtype)
        fill(model, state, wanted)
    except (UserError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # args and tensors may hold anything that a pickle can hold
        raise UserError(
            f"{path} cannot be read as a language model (docs/definitions.md says which ones of fairseq can): {str(error).partition(chr(10))[0]}"
        ) from error
    config.dtype = model.dtype
    return model.eval()


def read_checkpoint(path: Path) -> tuple[argparse.Namespace, dict[str, Tensor]]:
    """Reads the args and the state dict of a checkpoint file with torch's weights-only loader.

    Raises UserError if the file does not exist, is damaged, is not a checkpoint, or needs a class to be read.
    """
    if not is_file(path):
        raise UserError(f"There is no {path}: a fairseq checkpoint is a folder with model.pt and dict.txt.")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            # Since torch 1.6 files are zip archives, which need not be read before their tensors are.
            stored = torch.load(path, "cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # a damaged pickle raises nearly anything
        if needed := re.search(r"GLOBAL (\S+) (was not an allowed global|whose module)", str(error)):
            raise UserError(
                f"{path} needs {needed[1]} to be read: ffkv runs no code that a checkpoint names. Save its `args` and `model` alone."
            ) from error
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip().partition("\n")[0][:200]
        raise UserError(
            f"{path} cannot be read, it is damaged or no checkpoint: {reason or type(error).__name__}. Fetch it again."
        ) from error
    found: Any = stored if isinstance(stored, dict) else {}
    args, state = found.get("args"), found.get("model")
    is_state = isinstance(state, dict) and all(
        isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
        for name, tensor in state.items()
    )
    if not isinstance(args, argparse.Namespace) or not is_state:
        raise UserError(f"{path} is not a checkpoint of fairseq 0.10 or older: it holds no `args` and `model`.")
    return args, state


def read_arguments(args: argparse.Namespace, vocabulary: int) -> dict[str, Any]:
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


def upgrade(state: dict[str, Tensor], settings: dict[str, Any]) -> dict[str, Any]:
    """Brings a state dict to the names and orientations of `ffkv_fairseq.modeling`, in place.

    Returns the settings of the model's config. Settings that only the tensors tell are corrected.
    """
    version = state.get("decoder.version")
    normed = settings["final_norm"] and version is not None and version.item() >= FIRST_WITH_NORM
    for name in [name for name in state if BOOKKEEPING.fullmatch(name)]:
        del state[name]
    for name in list(state):
        if found := re.search(r"\.in_proj_(weight|bias)$", name):
            stem, tensor = name[: found.start()], state.pop(name)
            for part, third in zip("qkv", tensor.chunk(3)):
                state[f"{stem}.{part}_proj.{found[1]}"] = third
        elif found := re.search(r"layer_norms\.[02]", name):
            state[name.replace(found[0], OLDER[found[0]])] = state.pop(name)
    if (whole := state.pop(f"{SOFTMAX}.head.weight", None)) is not None:  # one matrix where the words are not tied
        words = settings["output_bands"][0][0]
        state[f"{SOFTMAX}.head.word_proj.weight"] = whole[:words]
        state[f"{SOFTMAX}.head.class_proj.weight"] = whole[words:]
    # A tied projection is stored in the shape of the input's, [d, width], another one as a linear layer's weight, [width, d].
    # The shape decides; the args decide only if it is square.
    d, tied = settings["hidden_size"], settings["tie_projections"]
    for number, (_, width) in enumerate(settings["output_bands"][1:]):
        name = f"{SOFTMAX}.tail.{number}.0.weight"
        if name in state and tuple(state[name].shape) == (width, d) and (width != d or not tied):
            state[name], tied = state[name].T.contiguous(), False
    return {**settings, "final_norm": normed, "tie_projections": tied}


def fill(model: nn.Module, state: dict[str, Tensor], dtype: torch.dtype | None) -> None:
    """Gives a model on the meta device its weights. Parameters that are shared stay so; nothing is copied without need.

    Args:
        state: by parameter name; it is emptied.
        dtype: what the weights become; None takes that of the first.
    Raises:
        UserError: a tensor is missing, left over or not floating-point, has another shape, or differs from its twin.
    """
    given: dict[int, tuple[str, Tensor, nn.Parameter]] = {}
    for name, parameter in list(model.named_parameters(remove_duplicate=False)):
        tensor, shape = state.pop(name, None), tuple(parameter.shape)
        if tensor is None:
            raise UserError(
                f"it lacks the tensor {name} of shape {shape}. Fetch it again, or save all tensors of the model."
            )
        if tuple(tensor.shape) != shape:
            raise UserError(f"the tensor {name} has the shape {tuple(tensor.shape)}, not {shape}.")
        if not tensor.is_floating_point():
            raise UserError(f"the tensor {name} is of type {tensor.dtype}: weights are floating-point numbers.")
        dtype = dtype or tensor.dtype
        if id(parameter) not in given:
            weight = nn.Parameter(tensor.to(dtype), requires_grad=False)
            given[id(parameter)] = (name, tensor, weight)
        first, same, weight = given[id(parameter)]
        if tensor.data_ptr() != same.data_ptr() and not torch.equal(tensor, same):
            raise UserError(
                f"{name} and {first} differ, but args.tie_adaptive_weights and tie_adaptive_proj say they are one."
            )
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, weight)
    if state:
        raise UserError(f"it holds tensors that are not part of the model: {', '.join(sorted(state)[:5])}.")
