"""The model stage as a whole: a checkpoint in, a proven anatomy, the values and the head out."""

import contextlib
import platform
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from torch import Tensor, nn

import ffkv
from ffkv.errors import UserError
from ffkv.model.anatomy import Anatomy, Layer, write_anatomy
from ffkv.model.checkpoint.fingerprint import tokenizer_hash, weights_hash
from ffkv.model.checkpoint.read import load_checkpoint, load_tokenizer
from ffkv.model.checkpoint.vocabulary import write_vocabulary
from ffkv.model.discover.probe_texts import context_of, passages
from ffkv.model.discover.prove import Proven, prove, prove_head
from ffkv.model.head.head import Head
from ffkv.model.head.head_file import load_head, read_head, write_head
from ffkv.model.values_file import write_values
from ffkv.settings import Model


def examine(settings: Model) -> tuple[nn.Module, object, Anatomy, Proven]:
    """Loads a checkpoint, finds its feed-forward layers and proves them.

    Returns:
        The model, its tokenizer, its anatomy, and what the head is still to be proven on.
    Raises:
        UserError: the checkpoint cannot be loaded, or the model cannot be read as memories; says why.
    """
    model = load_checkpoint(settings)
    tokenizer = load_tokenizer(settings.checkpoint, settings.revision, settings.trust_remote_code)
    with _named(settings.checkpoint, model):
        proven = prove(model, *passages(model, tokenizer), settings.second_matrix)
    config = model.config.get_text_config(decoder=True)
    names = ("activation_function", "hidden_act", "hidden_activation", "activation_fn")
    anatomy = Anatomy(
        checkpoint=settings.checkpoint,
        revision=getattr(model.config, "_commit_hash", None) or settings.revision,
        dtype=str(model.dtype).removeprefix("torch."),
        trust_remote_code=settings.trust_remote_code,
        architecture=type(model).__name__,
        activation=str(next((getattr(config, name) for name in names if hasattr(config, name)), "unknown")),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        model_hash=weights_hash(model),
        tokenizer_hash=tokenizer_hash(tokenizer),
        vocabulary=proven.logits.shape[-1],
        context=context_of(model, tokenizer),
        width=proven.final.shape[-1],
        last_block=proven.shell.last_block,
        returns=proven.shell.returns,
        layers=proven.shell.layers,
        errors=proven.errors,
        versions={
            "ffkv": ffkv.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers", "tokenizers")},
        },
    )
    return model, tokenizer, anatomy, proven


def write_stage(
    folder: Path, memories: Path | None, model: nn.Module, tokenizer, anatomy: Anatomy, proven: Proven
) -> Anatomy:
    """Writes the model stage's folder and `memories.h5`; empties the model on the way.

    The head is proven as it was written: read back from its file, it must give the model's logits.

    Returns:
        The anatomy, with the head's error beside the others.
    """
    if memories is not None:
        write_values(memories, model, anatomy)
    write_anatomy(folder, anatomy)
    tokenizer.save_pretrained(folder)
    write_vocabulary(folder, tokenizer, anatomy)
    write_head(folder, model, proven.shell)
    with _named(anatomy.checkpoint, model):
        error = prove_head(load_head(folder, "cpu"), proven)
    anatomy = replace(anatomy, errors={**anatomy.errors, "head": error})
    write_anatomy(folder, anatomy)
    return anatomy


def prove_in_memory(model: nn.Module, first: Tensor, second: Tensor) -> tuple[list[Layer], dict[str, float]]:
    """The layers and errors of a model that is not a checkpoint; empties it.

    Args:
        first, second: two texts, ids [sentence, token].
    Raises:
        UserError: it cannot be read as memories; says why.
    """
    proven = prove(model, first, second)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_head(folder, model, proven.shell)
        emptied = read_head(folder, proven.shell)
    head = Head(emptied, proven.shell, proven.logits.shape[-1], "cpu")
    return proven.shell.layers, {**proven.errors, "head": prove_head(head, proven)}


@contextlib.contextmanager
def _named(checkpoint: str, model: nn.Module) -> Iterator[None]:
    """Says of which model a refusal speaks."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{checkpoint} ({type(model).__name__}) cannot be read as key-value memories: {error}"
        ) from error


def describe(anatomy: Anatomy) -> str:
    """The anatomy for a person."""
    kinds = Counter(_build(layer) for layer in anatomy.layers)
    lines = [
        f"{anatomy.checkpoint} ({anatomy.architecture}, {anatomy.parameters:,} parameters, {anatomy.dtype}, weights {anatomy.model_hash})",
        f"  {len(anatomy.layers)} feed-forward layers, d = {anatomy.width}, {anatomy.layer_offset[-1]:,} memories, activation {anatomy.activation}",
        f"  vocabulary {anatomy.vocabulary:,}, context {anatomy.context:,}",
    ]
    lines += [f"  {count} layers: {build}" for build, count in kinds.items()]
    lines.append("  layer  x read by -> written by (layers count from 0)")
    for layer in anatomy.layers:
        written = [f"{', '.join(write.readers)} -> {write.module}" for write in layer.writes]
        lines.append(f"  {layer.index:5}  {'; '.join(written)}")
    meanings = {
        "experts": "experts one at a time = the model's own",
        "memories": "sum m_i v_i + b = y",
        "residual": "o = y + (o without the layer)",
        "prefix": "later tokens change nothing",
        "head": "head(o^L) = the model's logits",
    }
    if not any(write.experts for layer in anatomy.layers for write in layer.writes):
        del meanings["experts"]
    lines.append("  proven on real tokens, largest relative error:")
    return "\n".join(lines + [f"    {meaning:<36} {anatomy.errors[name]:.1e}" for name, meaning in meanings.items()])


def _build(layer: Layer) -> str:
    where = "before its end" if layer.site else "at its end"
    scales = dict.fromkeys(
        f"{write.scale:g}" if isinstance(write.scale, float) else "a number a dimension" for write in layer.writes
    )
    return (
        f"{layer.kind}, d_m = {layer.memories}, o = r + y stands in the block {where}"
        + (f", y multiplied by {' and '.join(scales)}" if set(scales) != {"1"} else "")
        + (", weighted by token" if any(write.weighted for write in layer.writes) else "")
        + (", coefficients of both signs" if layer.signed else "")
    )
