"""What a training begins with that goes on from another one: a model that was trained before, and perhaps a LoRA on top of it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from ffkv.base.errors import UserError
from ffkv.base.files.looks import looks_told
from ffkv.base.lookup import is_file
from ffkv.base.settings import Embedded

BLOCK_MATRICES = ["c_attn", "c_proj", "c_fc"]  # of transformers' GPT-2


def read_start(folder: Path, settings: Embedded) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """Reads the model and the tokenizer that a training goes on from.

    Raises:
        UserError: the folder cannot be read, its model is no embedded model, or its sizes are not those of the settings.
    """
    with looks_told(folder):
        return _read(folder, settings)


def _read(folder: Path, settings: Embedded) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    if not is_file(folder / "config.json"):
        raise UserError(
            f"embedded.tuned_from is {str(folder)!r}: there is no checkpoint of transformers (config.json)."
        )
    try:
        config = AutoConfig.from_pretrained(folder)
        if not isinstance(config, GPT2Config) or config.activation_function != "relu":
            raise UserError(
                f"embedded.tuned_from is {str(folder)!r}: must be an embedded model, a GPT-2 with ReLU. Tune other models with"
                " other software, and name what it saves as model.checkpoint or model.adapter."
            )
        model = GPT2LMHeadModel.from_pretrained(folder, torch_dtype=torch.float32)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"The checkpoint {folder} cannot be read: {error}") from error
    sizes = {"layers": config.n_layer, "width": config.n_embd, "heads": config.n_head, "context": config.n_positions}
    wrong = [f"{name} {size}" for name, size in sizes.items() if size != getattr(settings, name)]
    if wrong:
        raise UserError(f"The model in {folder} has {', '.join(wrong)}. Write the same sizes under `embedded:`.")
    return model, tokenizer


@contextlib.contextmanager
def lora(model: GPT2LMHeadModel, rank: int, seed: int) -> Iterator[None]:
    """Within the `with` statement, only a LoRA of a rank is trained, in place of a model. Then it is merged into the model.

    With rank 0 all weights are trained. A rank of r multiplies the LoRA by 1, so that its learning rate does not depend on r.
    """
    if not rank:
        yield
        return
    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=BLOCK_MATRICES, fan_in_fan_out=True)
    adapted = get_peft_model(model, config)  # changes the modules of the model itself
    yield
    adapted.merge_and_unload()
    model.requires_grad_(True)
