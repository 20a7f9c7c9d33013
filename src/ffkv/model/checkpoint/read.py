"""Loads models and tokenizers from checkpoints: local folders of transformers or fairseq, or the hub."""

import re
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ffkv.errors import UserError
from ffkv.fairseq import checkpoint as fairseq
from ffkv.files.checksums import verify_sum
from ffkv.files.steady import files_in
from ffkv.hub.commit import Commit, check_commit, may_be_on_hub, resolve_model
from ffkv.hub.fetch import (
    cached_names,
    choose_config_files,
    choose_files_of,
    choose_tokenizer_files,
    local_model,
    tell_damage,
)
from ffkv.hub.messages import explain
from ffkv.model.checkpoint.code import build_empty
from ffkv.model.checkpoint.fingerprint import not_finite
from ffkv.model.checkpoint.forms import (
    check_gguf,
    forget_packing,
    keep_own_tokens,
    merge_adapter,
    refuse_other_forms,
    unpacking,
)
from ffkv.model.discover.find import SECOND_MATRIX_NAMES
from ffkv.model.experts.record import layout_of
from ffkv.model.placement.spread import ON_CPU, Placement, arguments_of, dispatch, keep_blocks_whole
from ffkv.settings import EMBEDDED, Model

MOST_LAYERS = 1000


def load_checkpoint(settings: Model, commit: Commit | None = None, placement: Placement = ON_CPU) -> PreTrainedModel:
    """Loads a causal language model from a local folder (also of fairseq) or from the hub, in evaluation mode.

    Weights are read from safetensors, or by torch's weights-only loader; pickled code is never run.

    Args:
        settings: which model, and its type.
        commit: the commit of a checkpoint on the hub that is read; None for the one that the hub names now.
        placement: where its weights go, straight from the file.
    Raises:
        UserError: there is no such checkpoint, it is no causal language model, or weights are missing or packed.
    """
    check_checkpoint(settings.checkpoint, settings.gguf)
    commit = check_commit(commit, settings) if commit else resolve_model(settings)
    verify_sum(Path(settings.checkpoint))  # of the model that the workflow trains
    if settings.weights == "random":
        model = dispatch(_initialise(settings, commit), placement)
    elif not settings.gguf and fairseq.is_fairseq(settings.checkpoint):
        model = dispatch(fairseq.load_model(settings), placement)
    else:
        model = _from_transformers(settings, commit, placement)
    if commit.adapter:
        model = merge_adapter(model, commit.of_adapter)
    keep_blocks_whole(model, placement)
    if model.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UserError(f"The checkpoint {settings.checkpoint} is of type {model.dtype}: set model.dtype to float32.")
    model.eval()
    return model


def _initialise(settings: Model, commit: Commit) -> PreTrainedModel:
    """The model of a checkpoint's config with random weights, on the CPU. The same seed gives the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.weights_seed)
        return _made_plain(load_form(settings, commit, "cpu"))


def _made_plain(model: PreTrainedModel) -> PreTrainedModel:
    """The model, which returns nothing that nobody reads and runs its experts by the plainest code."""
    for config in (model.config, model.config.get_text_config(decoder=True)):
        config.output_attentions = False  # nobody reads them, and some attention codes refuse to be saved with them
    if any(layout_of(module) is not None for module in model.modules()) and hasattr(
        model, "set_experts_implementation"
    ):
        model.set_experts_implementation("eager")  # the plainest code is what ffkv's own is proven against
    return model


def check_finite(settings: Model, model: PreTrainedModel) -> None:
    """Refuses a model with a weight that is not finite.

    Raises:
        UserError: see above.
    """
    if name := not_finite(model):
        raise UserError(
            f"The checkpoint {settings.checkpoint} has values that are not finite in {name}, as {model.dtype}: the file is damaged, the training diverged, or the type is too small for them."
        )


def _from_transformers(settings: Model, commit: Commit, placement: Placement) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    packed = _refuse_unreadable(settings, commit)
    source = local_model(commit, choose_files_of(settings.gguf))
    loaded: Any  # a tuple, which the library's types do not say
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            source,
            **_where(settings, commit),
            **packed,
            dtype=settings.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # `_check_weights` refuses them by name
            **arguments_of(placement),
        )
    except torch.OutOfMemoryError:  # see `ffkv.process.defect`
        raise
    except Exception as error:  # the library raises many classes for a wrong name or file
        raise UserError(
            f"The checkpoint {settings.checkpoint} cannot be loaded as a causal language model: {_reason(error, commit)}"
        ) from error
    model, info = loaded
    if settings.gguf:
        forget_packing(model)
    _check_weights(settings, model, info)
    return _made_plain(model)


def _check_weights(settings: Model, model: PreTrainedModel, info: dict[str, Any]) -> None:
    """Refuses tensors of another shape, feed-forward layers left over, packed and missing weights."""
    checkpoint = f"The checkpoint {settings.checkpoint}"
    if info["mismatched_keys"]:
        name, stored, expected = sorted(info["mismatched_keys"])[0]
        raise UserError(
            f"{checkpoint} has the tensor {name} of shape {tuple(stored)}, where a {type(model).__name__} of its config has {tuple(expected)}."
        )
    if surplus := [name for name in sorted(info["unexpected_keys"]) if _is_a_further_layer(model, name)]:
        raise UserError(
            f"{checkpoint} holds feed-forward layers that its config does not have, {surplus[0]} for one: check its number of layers."
        )
    packed = [name for name, parameter in model.named_parameters() if not parameter.is_floating_point()]
    if packed:
        raise UserError(
            f"{checkpoint} hides its weights, {packed[0]} for one. Use an unquantised checkpoint of the model."
        )
    if info["missing_keys"]:
        raise UserError(
            f"{checkpoint} lacks the weights {', '.join(sorted(info['missing_keys'])[:5])}: it is not a whole {type(model).__name__}."
        )


def _where(settings: Model, commit: Commit) -> dict[str, Any]:
    """How `transformers` is told which commit of the checkpoint, and of its code, it reads."""
    file = {"gguf_file": settings.gguf} if settings.gguf else {}
    return {"revision": commit.read_at, **file, **_trust(commit, settings.trust_remote_code)}


def _trust(commit: Commit, trust_remote_code: bool) -> dict[str, Any]:
    # Without a word about trust, transformers would ask whoever sits at the terminal.
    return {"trust_remote_code": trust_remote_code} | (
        {"code_revision": commit.code_read_at} if trust_remote_code else {}
    )


def load_form(settings: Model, commit: Commit | None = None, device: str = "meta") -> PreTrainedModel:
    """Builds the model of a checkpoint from its config alone. No weight is read.

    Args:
        settings: name the checkpoint and the type of its weights.
        commit: see `load_checkpoint`.
        device: "meta", which has no weights; or "cpu", with those that the model's class initialises.
    Raises:
        UserError: there is no such checkpoint, it cannot be reached, or it is no causal language model.
    """
    check_checkpoint(settings.checkpoint, settings.gguf)
    if not settings.gguf and fairseq.is_fairseq(settings.checkpoint):
        form: Any = fairseq.load_model(settings, with_weights=False)
        return form if device == "meta" else type(form)(form.config).to(form.dtype)
    commit = check_commit(commit, settings) if commit else resolve_model(settings)
    from transformers import AutoConfig, logging

    logging.set_verbosity_error()
    _refuse_unreadable(settings, commit)
    source = local_model(commit, choose_files_of(settings.gguf) if settings.gguf else choose_config_files)
    try:
        config = AutoConfig.from_pretrained(source, **_where(settings, commit))
        text = config.get_text_config(decoder=True)
        dtype = (text.dtype or torch.float32) if settings.dtype == "auto" else getattr(torch, settings.dtype)
        with torch.device(device):
            return build_empty(config, dtype, commit.code_read_at if settings.trust_remote_code else None).eval()
    except Exception as error:  # as in `_from_transformers`
        raise UserError(
            f"The checkpoint {settings.checkpoint} is not known as a causal language model: {_reason(error, commit)}"
        ) from error


def _is_a_further_layer(model: PreTrainedModel, name: str) -> bool:
    """Whether a tensor without a place in the model is a second matrix of one of the model's own lists of blocks.

    Other such tensors are left out rightly: the encoder of a model whose decoder is read, a vision tower.
    """
    blocks = re.match(r"(.+?)\.\d+\.", name)
    if not blocks or not re.search(SECOND_MATRIX_NAMES, name.removesuffix(".weight")):
        return False
    try:
        return isinstance(model.get_submodule(blocks[1]), torch.nn.ModuleList)
    except AttributeError:
        return False


def _refuse_unreadable(settings: Model, commit: Commit) -> dict[str, Any]:
    """Refuses what ffkv cannot read before any weight is fetched. Returns how quantised weights are unpacked."""
    from transformers import GgufConfig

    folder = Path(local_model(commit, choose_config_files))
    names = cached_names(commit)
    if settings.gguf:
        check_gguf(settings.checkpoint, settings.gguf, _names_in(folder) if names is None else names)
        return {"quantization_config": GgufConfig(dequantize=True)}
    refuse_other_forms(settings.checkpoint, folder, names)
    _refuse_absurd(settings, commit)
    return unpacking(_config_of(settings, commit), settings.checkpoint)


def _refuse_absurd(settings: Model, commit: Commit) -> None:
    """Refuses a config with so many layers that only making its modules would take minutes."""
    config = _config_of(settings, commit)
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        for part in parts:
            if isinstance(count := part.get(name), int) and count > MOST_LAYERS:
                raise UserError(
                    f"The config of {settings.checkpoint} names {count:,} layers ({name}). ffkv reads models of up to"
                    f" {MOST_LAYERS:,} layers."
                )


def _config_of(settings: Model, commit: Commit) -> dict[str, Any]:
    """The config as it is written; empty if it cannot be read, which the caller meets and tells."""
    from transformers import PreTrainedConfig

    try:
        config, _ = PreTrainedConfig.get_config_dict(settings.checkpoint, revision=commit.read_at)
    except Exception:  # whatever is wrong with it, the caller has an error to tell
        return {}
    return config if isinstance(config, dict) else {}


def _names_in(folder: Path) -> list[str]:
    return [file.name for file in files_in(folder)]


def check_checkpoint(checkpoint: str, gguf: str = "") -> None:
    """Refuses a name that is neither a local folder nor a possible hub id, before the hub is asked.

    Args:
        checkpoint: the name.
        gguf: the setting `model.gguf`.
    Raises:
        UserError: it is neither; says which of the two the name looks like.
    """
    path = Path(checkpoint)
    try:
        path.stat()
        files_in(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # a folder above that may not be entered, a name that no file can have
        raise UserError(
            f"The checkpoint {checkpoint[:200]} cannot be read: {getattr(error, 'strerror', error)}."
        ) from error
    if checkpoint == EMBEDDED and not path.exists():
        raise UserError(
            "The embedded model is not trained yet. Run snakemake or `ffkv train`, then name the checkpoint folder that it wrote."
        )
    if path.is_dir() and gguf:
        check_gguf(checkpoint, gguf, _names_in(path))
    elif path.is_dir():
        refuse_other_forms(checkpoint, path)
        if not (path / "config.json").is_file() and not fairseq.is_fairseq(path):
            raise UserError(
                f"The folder {checkpoint} is no checkpoint: it has neither config.json (transformers) nor model.pt and dict.txt (fairseq)."
            )
    elif not may_be_on_hub(checkpoint):
        raise UserError(
            f"There is no checkpoint folder {checkpoint}. Check model.checkpoint: its path starts in the working"
            " directory. For a finished run, start ffkv in the directory in which the run was made."
        )


def load_tokenizer(
    source: Path | str, commit: Commit | None = None, trust_remote_code: bool = False, gguf: str = ""
) -> PreTrainedTokenizerFast:
    """Loads the tokenizer of a checkpoint or of the model step's folder.

    Args:
        source: checkpoint or folder.
        commit: the commit of a checkpoint on the hub that is read.
        trust_remote_code: run the Python code that the checkpoint brings.
        gguf: the setting `model.gguf`: the file that the tokenizer is read from.
    Raises:
        UserError: there is none, or it is not a fast one (a fast one knows the characters of each token).
    """
    if not gguf and fairseq.is_fairseq(source):
        return fairseq.load_tokenizer(source)
    verify_sum(Path(source))
    from transformers import AutoTokenizer, logging

    logging.set_verbosity_error()
    commit = commit or Commit("model", str(source), "main")
    trusted = _trust(commit, trust_remote_code) | ({"gguf_file": gguf} if gguf else {})
    folder = local_model(commit, choose_files_of(gguf) if gguf else choose_tokenizer_files)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, revision=commit.read_at, **trusted)
    except Exception as error:  # as above
        raise UserError(f"The tokenizer of {source} cannot be loaded: {_reason(error, commit)}") from error
    if not tokenizer.is_fast:
        raise UserError(
            f"{source} has a {type(tokenizer).__name__}, which does not tell the characters of each token. ffkv needs a fast tokenizer (tokenizer.json)."
        )
    if gguf:
        keep_own_tokens(tokenizer)
    _try_out(source, tokenizer)
    return tokenizer


def _try_out(source: Path | str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuses a tokenizer that loads but cannot encode a text."""
    try:
        ids = tokenizer("A first text.", verbose=False)["input_ids"]
        float(tokenizer.model_max_length)
    except Exception as error:  # the library raises plain exceptions here
        raise UserError(f"The tokenizer of {source} does not work: {_words(error)}") from error
    if not ids:
        raise UserError(f"The tokenizer of {source} makes no token of a text: its vocabulary is empty or damaged.")


def _reason(error: Exception, commit: Commit) -> str:
    """What is wrong with a checkpoint, from what a library raised."""
    if "trust_remote_code" in str(error):
        return "it brings code of its own, which is not run. If you have read it and trust it, set model.trust_remote_code."
    if not commit.commit:
        return _words(error)
    return tell_damage(commit) or explain(error, "model", commit.repository, commit.revision) or _words(error)


def _words(error: Exception) -> str:
    if "weights_only" in str(error):
        return "its weights are a pickle that is damaged or names code, and ffkv runs none. Save them as safetensors."
    text = " ".join(str(error).split())[:400]
    if isinstance(error, KeyError) or not text:  # says nothing by itself
        text = f"{type(error).__name__} {text}".strip()
    return text
