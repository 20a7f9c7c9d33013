"""Loads models from checkpoints: local folders of transformers or fairseq, or the hub."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.files.checksums import verify_sum
from ffkv.base.files.looks import looks_told
from ffkv.base.hub.commit import Commit, check_commit, resolve_model
from ffkv.base.hub.fetch import choose_config_files, choose_files_of, hub_cache, local_model
from ffkv.base.process.remarks import listening
from ffkv.base.settings import Model
from ffkv.model.checkpoint.adapter import merge_adapter
from ffkv.model.checkpoint.checks import check_checkpoint, check_weights, refuse_unreadable
from ffkv.model.checkpoint.config import build_empty, reading
from ffkv.model.checkpoint.failures import explain_failure
from ffkv.model.checkpoint.forms import forget_packing
from ffkv.model.checkpoint.gguf_file import compare_with_file
from ffkv.model.experts.layouts import layout_of
from ffkv.model.fairseq import checkpoint as fairseq
from ffkv.model.fairseq.dictionary import is_fairseq
from ffkv.model.placement.resident import HALF
from ffkv.model.placement.spread import ON_CPU, Placement, arguments_of, dispatch, keep_blocks_whole

# What torch calls the instructions of CPUs that multiply bfloat16: those of x86, and of ARM.
NATIVE = ("avx512_bf16", "amx_bf16", "bf16")


def load_checkpoint(settings: Model, commit: Commit | None = None, placement: Placement = ON_CPU) -> PreTrainedModel:
    """Loads a causal language model from a local folder (also of fairseq) or from the hub, in evaluation mode.

    Weights are read from safetensors, or by torch's weights-only loader; pickled code is never run.

    Args:
        settings: which model, and its type.
        commit: the commit of a checkpoint on the hub that is read; None for the one that the hub names now.
        placement: where its weights go, straight from the file.
    Raises:
        UserError: there is no such checkpoint, it is not a causal language model, or weights are missing or packed.
    """
    with looks_told(settings.checkpoint, settings.adapter, hub_cache()):
        model = _load(settings, commit, placement)
    if model.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UserError(f"The checkpoint {settings.checkpoint} is of type {model.dtype}: set model.dtype to float32.")
    model.eval()
    return model


def _load(settings: Model, commit: Commit | None, placement: Placement) -> PreTrainedModel:
    check_checkpoint(settings.checkpoint, settings.gguf)
    commit = check_commit(commit, settings) if commit else resolve_model(settings)
    verify_sum(Path(settings.checkpoint))  # of the model that the workflow trains
    if settings.weights == "random":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.weights_seed)
            model = dispatch(_made_plain(load_form(settings, commit, "cpu")), placement)
    elif not settings.gguf and is_fairseq(settings.checkpoint):
        model = dispatch(fairseq.load_model(settings), placement)
    else:
        model = _from_transformers(settings, commit, placement)
    if commit.adapter:
        model = merge_adapter(model, commit.of_adapter)
    keep_blocks_whole(model, placement)
    return model


def _made_plain(model: PreTrainedModel) -> PreTrainedModel:
    """Returns the model, which returns nothing that nobody reads and runs its experts by the plainest code."""
    for config in (model.config, model.config.get_text_config(decoder=True)):
        config.output_attentions = False  # nobody reads them, and some attention codes refuse to be saved with them
    has_experts = any(layout_of(module) is not None for module in model.modules())
    if has_experts and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the plainest code is what ffkv's own is proven against
    return model


def _from_transformers(settings: Model, commit: Commit, placement: Placement) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM, logging

    logging.disable_progress_bar()
    packed = refuse_unreadable(settings, commit)
    source = local_model(commit, choose_files_of(settings.gguf))
    loaded: Any  # a tuple, which the library's types do not say
    try:
        with listening("transformers", "accelerate"), _all_names_told():
            loaded = AutoModelForCausalLM.from_pretrained(
                source,
                config=_read_config(source, settings, commit),
                **reading(commit, settings.trust_remote_code, settings.gguf),
                **packed,
                dtype=settings.dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `check_weights` refuses them by name
                **arguments_of(placement),
            )
    except torch.OutOfMemoryError:  # see `ffkv.base.process.defect`
        raise
    except Exception as error:  # the library raises many classes for a wrong name or file
        raise UserError(
            f"The checkpoint {settings.checkpoint} cannot be loaded as a causal language model: {explain_failure(error, commit)}"
        ) from error
    model, info = loaded
    if settings.gguf:
        forget_packing(model)
    check_weights(settings, model, info, Path(source))
    if settings.gguf:
        compare_with_file(Path(source) / settings.gguf, model)
    return _made_plain(model)


def _read_config(source: str, settings: Model, commit: Commit) -> Any:
    """Reads a config, without the wishes of whoever saved it for the way in which a model runs and answers."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, **reading(commit, settings.trust_remote_code, settings.gguf))
    for part in {id(part): part for part in (config, config.get_text_config(decoder=True))}.values():
        part._attn_implementation = None  # code for attention that this machine may not have
        part.return_dict = True
    return config


@contextlib.contextmanager
def _all_names_told() -> Iterator[None]:
    """Lets `from_pretrained` name also the tensors that the class of a model lists as harmless: see `leftovers`."""
    name = "_adjust_missing_and_unexpected_keys"
    original = getattr(PreTrainedModel, name)
    setattr(PreTrainedModel, name, lambda model, info: None)
    try:
        yield
    finally:
        setattr(PreTrainedModel, name, original)


def decide_type(settings: Model, commit: Commit) -> Model:
    """Returns settings that say float32 instead of `auto`, if the checkpoint is of half precision and this is slow here.

    A GPU computes in half precision. A CPU keeps bfloat16 if it has instructions for it.
    """
    on_gpu = settings.device.startswith("cuda") or (settings.device == "auto" and torch.cuda.is_available())
    if settings.dtype != "auto" or on_gpu:
        return settings
    kept = load_form(settings, commit).dtype
    native = kept == torch.bfloat16 and any(torch.cpu.get_capabilities().get(name) for name in NATIVE)
    return settings if kept not in HALF or native else settings.model_copy(update={"dtype": "float32"})


def load_form(settings: Model, commit: Commit | None = None, device: str = "meta") -> PreTrainedModel:
    """Builds the model of a checkpoint from its config alone. No weight is read.

    Args:
        settings: name the checkpoint and the type of its weights.
        commit: see `load_checkpoint`.
        device: "meta", which has no weights; or "cpu", with those that the model's class initialises.
    Raises:
        UserError: there is no such checkpoint, it cannot be reached, or it is not a causal language model.
    """
    with looks_told(settings.checkpoint, hub_cache()):
        return _load_form(settings, commit, device)


def _load_form(settings: Model, commit: Commit | None, device: str) -> PreTrainedModel:
    check_checkpoint(settings.checkpoint, settings.gguf)
    if not settings.gguf and is_fairseq(settings.checkpoint):
        form: Any = fairseq.load_model(settings, with_weights=False)
        return form if device == "meta" else type(form)(form.config).to(form.dtype)
    commit = check_commit(commit, settings) if commit else resolve_model(settings)
    refuse_unreadable(settings, commit)
    source = local_model(commit, choose_files_of(settings.gguf) if settings.gguf else choose_config_files)
    try:
        with listening("transformers"):
            config = _read_config(source, settings, commit)
        text = config.get_text_config(decoder=True)
        dtype = (text.dtype or torch.float32) if settings.dtype == "auto" else getattr(torch, settings.dtype)
        with torch.device(device), listening("transformers"):
            return build_empty(config, dtype, commit.code_read_at if settings.trust_remote_code else None).eval()
    except Exception as error:  # as in `_from_transformers`
        raise UserError(
            f"The checkpoint {settings.checkpoint} is not known as a causal language model: {explain_failure(error, commit)}"
        ) from error
