"""Loads models from checkpoints (local folders of transformers or of a reader's form, or the hub), and proven models again.

The package ffkv-gguf unpacks a GGUF file once, into a checkpoint of transformers that all later jobs of a run read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from transformers import PreTrainedModel

from ffkv.base.errors import UserError
from ffkv.base.files.stored import unreadable, verify_sum
from ffkv.base.hub.commit import Commit, check_commit, is_local, resolve_model
from ffkv.base.hub.fetch import choose_config_files, choose_files_of, hub_cache, local_model
from ffkv.base.lookup import as_path, looks_told, read_json
from ffkv.base.process.libraries import collected, listening, replaced
from ffkv.base.process.runtime import choose_device
from ffkv.base.settings import Dictionary, Model
from ffkv.base.settings.common import TOKENS_ON_CPU
from ffkv.base.settings.messages import problems_of
from ffkv.base.steps import Work
from ffkv.base.terminal import say
from ffkv.model.anatomy import ANATOMY_FILE, OF_SETTINGS, Anatomy, read_anatomy_to_run
from ffkv.model.checkpoint.adapter import merge_adapter
from ffkv.model.checkpoint.checks import check_checkpoint, explain_failure, refuse_unreadable
from ffkv.model.checkpoint.config import build_empty, reading
from ffkv.model.checkpoint.readers import file_reader, read_once, reader_of
from ffkv.model.checkpoint.weights import check_weights, hash_once, state_of
from ffkv.model.dictionaries import install
from ffkv.model.experts import layout_of, record_experts
from ffkv.model.placement import HALF, ON_CPU, Placement, device_of, dispatch, keep_blocks_whole, place
from ffkv.model.tap.hooks import enough_memory

NOTE = "unpacked.json"  # what the folder was made from, and the remarks about it
NO_FILE: dict[str, Any] = {"gguf": "", "revision": "main", "adapter": "", "adapter_revision": "main"}
# What torch calls the instructions of CPUs that multiply bfloat16: those of x86, and of ARM.
NATIVE = ("avx512_bf16", "amx_bf16", "bf16")
# Lets `from_pretrained` name also the tensors that the class of a model lists as harmless: see `weights`.
ALL_NAMES_TOLD = PreTrainedModel, "_adjust_missing_and_unexpected_keys", lambda model, info: None


def load_checkpoint(settings: Model, commit: Commit | None = None, placement: Placement = ON_CPU) -> PreTrainedModel:
    """Loads a causal language model from a local folder (also of a reader's form) or from the hub, in evaluation mode.

    Weights are read from safetensors, or by torch's weights-only loader; pickled code is never run. `settings`: which model, and
    its type. `commit`: the commit of a checkpoint on the hub that is read; None for the one that the hub names now. `placement`:
    where its weights go, straight from the file. Raises UserError if there is no such checkpoint, it is not a causal language
    model, or weights are missing or packed.
    """
    with looks_told(settings.checkpoint, settings.adapter, hub_cache()):
        check_checkpoint(settings.checkpoint, settings.gguf)
        commit = check_commit(commit, settings) if commit else resolve_model(settings)
        verify_sum(Path(settings.checkpoint))  # of the model that the workflow trains
        if settings.weights == "random":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(settings.weights_seed)
                model = dispatch(_made_plain(load_form(settings, commit, "cpu")), placement)
        elif not settings.gguf and (reader := reader_of(settings.checkpoint)):
            model = dispatch(reader.load_model(settings), placement)
        else:
            model = _from_transformers(settings, commit, placement)
        if commit.adapter:
            model = merge_adapter(model, commit.of_adapter, settings.checkpoint)
        keep_blocks_whole(model, placement)
    if model.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UserError(f"The checkpoint {settings.checkpoint} is of type {model.dtype}: set model.dtype to float32.")
    model.eval()
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
    where = {"device_map": placement.device_map, "offload_folder": placement.offload_folder or None}
    try:
        with listening("transformers", "accelerate"), replaced(ALL_NAMES_TOLD):
            loaded = AutoModelForCausalLM.from_pretrained(
                source,
                config=_read_config(source, settings, commit),
                **reading(commit, settings.trust_remote_code, settings.gguf),
                **packed,
                dtype=settings.dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `check_weights` refuses them by name
                **(where if placement != ON_CPU else {}),
            )
    except torch.OutOfMemoryError:  # see `ffkv.base.fault`
        raise
    except Exception as error:  # the library raises many classes for a wrong name or file
        raise UserError(
            f"The checkpoint {settings.checkpoint} cannot be loaded as a causal language model: {explain_failure(error, commit)}"
        ) from error
    model, info = loaded
    check_weights(settings, model, info, Path(source))
    if settings.gguf:
        file_reader().finish_model(Path(source) / settings.gguf, model)
    return _made_plain(model)


def _read_config(source: str, settings: Model, commit: Commit) -> Any:
    """Reads a config, without the wishes of whoever saved it for the way in which a model runs and answers."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source, **reading(commit, settings.trust_remote_code, settings.gguf))
    for part in {id(part): part for part in (config, config.get_text_config(decoder=True))}.values():
        part._attn_implementation = None  # code for attention that this machine may not have
        part.return_dict = True
    return config


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

    `settings`: name the checkpoint and the type of its weights. `commit`: see `load_checkpoint`. `device`: "meta", which has no
    weights; or "cpu", with those that the model's class initialises. Raises UserError if there is no such checkpoint, it cannot be
    reached, or it is not a causal language model.
    """
    with looks_told(settings.checkpoint, hub_cache()):
        check_checkpoint(settings.checkpoint, settings.gguf)
        if not settings.gguf and (reader := reader_of(settings.checkpoint)):
            form = reader.load_model(settings, with_weights=False)
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


NO_LIMITS: Mapping[str, str] = MappingProxyType({})
TOKENS_ON_GPU = 16_384  # more are not quicker
BATCH_SHARE = 0.25  # of a GPU's memory without the weights, that a batch may take


@dataclass(frozen=True)
class LoadedModel:
    """A proven model.

    Attributes:
        model: in evaluation mode, where it was placed.
        anatomy: what was proven.
        device: the torch device that reads the ids.
        batch_tokens: the most tokens per batch, see `tokens_per_batch`.
    """

    model: torch.nn.Module
    anatomy: Anatomy
    device: str
    batch_tokens: int = field(default=TOKENS_ON_CPU, kw_only=True)

    @property
    def devices(self) -> list[torch.device]:
        """The device that each feed-forward layer runs on [layer]."""
        return [device_of(self.model.get_submodule(layer.block)) for layer in self.anatomy.layers]


def load(
    model_folder: Path | str,
    device: str = "auto",
    max_memory: Mapping[str, str] = NO_LIMITS,
    trust_remote_code: bool = False,
) -> LoadedModel:
    """Loads the model of a model folder from its checkpoint. Its banks of experts keep records.

    Args:
        model_folder: `results/<run>/model`.
        device: as the setting `model.device`.
        max_memory: as the setting `model.max_memory`.
        trust_remote_code: whether you allow the Python code that the checkpoint brings. No file of a run allows it.
    Raises:
        UserError: the model needs code that you do not allow; the checkpoint is gone, or its weights or its config have changed since the proof; there is no such
            device.
    Examples:
        >>> loaded = ffkv.load_model("results/tiny/model", device="cpu")
        >>> type(loaded.model).__name__
        'GPT2LMHeadModel'
    """
    anatomy = read_anatomy_to_run(model_folder, trust_remote_code)
    located = _located(anatomy, Path(model_folder))
    given = {name: getattr(located, name) for name in (*OF_SETTINGS, "adapter", "adapter_revision", "dtype")}
    if wrong := problems_of(Model, given):
        raise UserError(f"{as_path(model_folder) / ANATOMY_FILE} is not as ffkv writes it. {' '.join(wrong)}")
    settings, commit = Model.model_validate(given), located.source
    if located.unpacked and is_local(located.unpacked):
        settings, commit = in_place(settings, located.unpacked)
    elif located.unpacked:
        say(f"{anatomy.unpacked} is gone: {anatomy.gguf} is unpacked again.", error=True)
    state, itemsize = state_of(settings, commit), getattr(torch, anatomy.dtype).itemsize
    # The anatomy has the remarks.
    with collected(), read_once(settings.gguf), enough_memory(lambda: float(anatomy.parameters * itemsize)):
        placement = place(partial(load_form, settings, commit), choose_device(device), device == "auto", max_memory)
        model: Any = load_checkpoint(settings, commit, placement)
    own_hash = hash_once(settings, commit, model, state)
    if install(model, located.dictionaries, located.dictionary, own_hash) != anatomy.model_hash:
        raise UserError(
            f"The weights of {anatomy.checkpoint}{f' or {anatomy.dictionary}' * bool(anatomy.dictionary)} have changed since {model_folder} was made. Run the model step again."
        )
    record_experts(model)
    return LoadedModel(model, anatomy, placement.device)


def load_for(model_folder: Path | str, work: Work, gradients: bool = False) -> LoadedModel:
    """Loads the model of a model folder for a step, as its `work` says. `gradients`: see `tokens_per_batch`. Raises UserError as `load`."""
    loaded = load(model_folder, work.device, work.max_memory, work.trust_remote_code)
    tokens = tokens_per_batch(loaded, work.batch_tokens, gradients)
    return replace(loaded, batch_tokens=max(1, tokens >> work.halvings))


def tokens_per_batch(loaded: LoadedModel, wanted: int | Literal["auto"], gradients: bool = False) -> int:
    """Returns the most tokens of a batch, as the setting `batches.tokens` says.

    `auto` means 1,024 on a CPU. A GPU gets the largest power of two, from 1,024 to 16,384, with which a batch takes a quarter of the
    memory that the weights leave: states and coefficients of a layer (of all layers with `gradients`), and logits in float64. It follows
    from card and model, not from what else runs.
    """
    cards = [device for device in loaded.devices if device.type == "cuda"]
    if wanted != "auto" or not cards:
        return TOKENS_ON_CPU if wanted == "auto" else wanted
    layers, width = loaded.anatomy.layers, loaded.anatomy.width
    of_layer = 4 * (8 * max(layer.memories for layer in layers) + 12 * width)
    per_token = of_layer * (len(layers) if gradients else 1) + 8 * loaded.anatomy.vocabulary
    room = min(torch.cuda.mem_get_info(card)[1] - torch.cuda.memory_allocated(card) for card in cards)
    tokens = max(TOKENS_ON_CPU, int(BATCH_SHARE * room / per_token))
    return min(TOKENS_ON_GPU, 1 << tokens.bit_length() - 1)


def _located(anatomy: Anatomy, model_folder: Path) -> Anatomy:
    """Returns the anatomy with paths: into packages, from the working directory or, if nothing is there, beside `results`."""
    above = model_folder.resolve().parents

    def locate(name: str, commit: str) -> str:
        beside = str(above[2] / name) if len(above) > 2 else name
        return beside if name and not commit and not is_local(name) and is_local(beside) else name

    inside = Model(checkpoint=anatomy.checkpoint, adapter=anatomy.adapter).located()
    return replace(
        anatomy,
        checkpoint=locate(inside.checkpoint, anatomy.commit),
        adapter=locate(inside.adapter, anatomy.adapter_commit),
        unpacked=locate(anatomy.unpacked, ""),
        dictionary=locate(Dictionary(path=anatomy.dictionary).located().path, ""),
    )


class Unpacked(NamedTuple):
    """What is read in the place of a GGUF file."""

    settings: Model  # name the folder
    commit: Commit  # that of a local folder
    remarks: list[str]  # what the unpacking said about the file


def source_of(settings: Model, commit: Commit) -> dict[str, str]:
    """Returns what the weights of an unpacked folder follow from."""
    named = settings.model_dump(include={"checkpoint", "dtype", *NO_FILE})
    return named | {"commit": commit.commit, "adapter_commit": commit.adapter_commit}


def read_unpacked(folder: Path | str, settings: Model, commit: Commit) -> Unpacked:
    """Returns what is read in the place of the file that the settings name.

    `folder`: what `ffkv unpack` wrote. `settings`: as they were given to it. `commit`: the commit of the hub that was read. Raises
    UserError if the folder was not written by `ffkv unpack`, or it was made from another file.
    """
    path = Path(folder) / NOTE
    try:
        note = read_json(path)
        source, remarks = dict(note["source"]), list(note["remarks"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise unreadable(path, error) from error
    if source != (wanted := source_of(settings, commit)):
        differ = [
            f"{name} is {source.get(name)!r}, not {value!r}"
            for name, value in wanted.items()
            if source.get(name) != value
        ]
        raise UserError(f"{folder} was unpacked from something else: {'; '.join(differ)}. Unpack again: `ffkv unpack`.")
    return Unpacked(*in_place(settings, folder), remarks)


def in_place(settings: Model, folder: Path | str) -> tuple[Model, Commit]:
    """Returns settings and commit that name an unpacked folder in the place of the file and its adapter."""
    return settings.model_copy(update={**NO_FILE, "checkpoint": str(folder)}), Commit("model", str(folder), "main")
