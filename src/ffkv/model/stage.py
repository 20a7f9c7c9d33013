"""The model stage as a whole: a checkpoint in, a proven anatomy, the values and the head out."""

import platform
from collections import Counter
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from torch import Tensor, nn

import ffkv
from ffkv.errors import UserError
from ffkv.model.anatomy import Anatomy, write_anatomy
from ffkv.model.calibrate import TOLERANCE
from ffkv.model.emptied import load_head, write_head
from ffkv.model.load import context_of, load_checkpoint, load_tokenizer, tokenizer_hash, weights_hash
from ffkv.model.memories import write_memories
from ffkv.model.prove import decompose, logits_and_form, observe, prove, prove_head
from ffkv.model.vocabulary import write_vocabulary
from ffkv.settings import Model


def examine(settings: Model) -> tuple[nn.Module, object, Anatomy, tuple[Tensor, Tensor]]:
    """Loads a checkpoint, finds its feed-forward layers and proves them.

    Returns:
        The model, its tokenizer, its anatomy, and what the head is still to be proven on: o^L and the model's logits.
    Raises:
        UserError: the checkpoint cannot be loaded, or the model cannot be read as memories; says why.
    """
    model = load_checkpoint(settings)
    tokenizer = load_tokenizer(settings.checkpoint, settings.revision, settings.trust_remote_code)
    try:
        layers, ids = decompose(model, tokenizer)
        errors = prove(model, layers, ids)
    except UserError as error:
        raise UserError(
            f"{settings.checkpoint} ({type(model).__name__}) cannot be read as key-value memories: {error}"
        ) from error
    logits, returns = logits_and_form(model, layers, ids)
    final = observe(model, layers, ids)[-1]["o"]
    config = model.config.get_text_config(decoder=True)
    anatomy = Anatomy(
        checkpoint=settings.checkpoint,
        revision=getattr(model.config, "_commit_hash", None) or settings.revision,
        dtype=str(model.dtype).removeprefix("torch."),
        trust_remote_code=settings.trust_remote_code,
        architecture=type(model).__name__,
        activation=str(
            next(
                (
                    getattr(config, name)
                    for name in ("activation_function", "hidden_act", "hidden_activation")
                    if hasattr(config, name)
                ),
                "unknown",
            )
        ),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        model_hash=weights_hash(model),
        tokenizer_hash=tokenizer_hash(tokenizer),
        vocabulary=logits.shape[-1],
        context=context_of(model, tokenizer),
        width=final.shape[-1],
        returns=returns,
        layers=layers,
        errors=errors,
        versions={
            "ffkv": ffkv.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "tokenizers")},
        },
    )
    return model, tokenizer, anatomy, (final, logits)


def write_stage(
    folder: Path, memories: Path | None, model: nn.Module, tokenizer, anatomy: Anatomy, proof: tuple[Tensor, Tensor]
) -> Anatomy:
    """Writes the model stage's folder and `memories.h5`; empties the model on the way.

    The head is proven as it was written: read back from its file, it must give the model's logits.

    Returns:
        The anatomy, with the head's error beside the others.
    """
    if memories is not None:
        write_memories(memories, model, anatomy)
    write_anatomy(folder, anatomy)
    tokenizer.save_pretrained(folder)
    write_vocabulary(folder, tokenizer, anatomy)
    write_head(folder, model, anatomy.layers, anatomy.returns)
    try:
        error = prove_head(load_head(folder, "cpu"), len(anatomy.layers) - 1, *proof, TOLERANCE[model.dtype])
    except UserError as failure:
        raise UserError(
            f"{anatomy.checkpoint} ({anatomy.architecture}) cannot be read as key-value memories: {failure}"
        ) from failure
    anatomy = replace(anatomy, errors={**anatomy.errors, "head": error})
    write_anatomy(folder, anatomy)
    return anatomy


def describe(anatomy: Anatomy) -> str:
    """The anatomy for a person."""
    kinds = Counter((layer.kind, layer.memories, bool(layer.site), layer.writes[0].scale) for layer in anatomy.layers)
    lines = [
        f"{anatomy.checkpoint} ({anatomy.architecture}, {anatomy.parameters:,} parameters, {anatomy.dtype}, weights {anatomy.model_hash})",
        f"  {len(anatomy.layers)} feed-forward layers, d = {anatomy.width}, {anatomy.layer_offset[-1]:,} memories, activation {anatomy.activation}",
        f"  vocabulary {anatomy.vocabulary:,}, context {anatomy.context:,}",
    ]
    for (kind, memories, has_site, scale), count in kinds.items():
        where = "before the block's last norm" if has_site else "at the block's output"
        lines.append(
            f"  {count} layers: {kind}, d_m = {memories}, o = r + y {where}"
            + (f", y multiplied by {scale:g}" if scale != 1 else "")
        )
    lines.append("  layer  x read by -> second matrix (layers count from 0)")
    lines += [
        f"  {layer.index:5}  {', '.join(layer.writes[0].readers)} -> {layer.writes[0].module}"
        for layer in anatomy.layers
    ]
    meanings = {
        "memories": "sum m_i v_i + b = y",
        "residual": "o - y = o without the layer",
        "prefix": "later tokens change nothing",
        "head": "head(o^L) = the model's logits",
    }
    lines.append("  proven on real tokens, largest relative error:")
    return "\n".join(lines + [f"    {meanings[name]:<32} {error:.1e}" for name, error in anatomy.errors.items()])
