"""The model step: a checkpoint in; a proven anatomy, the values and the head out."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ffkv.base.errors import UserError
from ffkv.base.files.stored import versions
from ffkv.base.hub.commit import Commit, check_commit, resolve_model
from ffkv.base.lookup import files_in, save_pretrained, unchanged
from ffkv.base.process.libraries import collected
from ffkv.base.settings import Dictionary, Model
from ffkv.model.anatomy import OF_COMMIT, OF_SETTINGS, Anatomy, Layer, write_anatomy
from ffkv.model.checkpoint.checks import check_checkpoint
from ffkv.model.checkpoint.config import configured_activation, configured_context, rotary_bounds
from ffkv.model.checkpoint.load import Unpacked, decide_type, load_checkpoint, load_form, read_unpacked
from ffkv.model.checkpoint.readers import read_once
from ffkv.model.checkpoint.tokenizer import load_tokenizer, tokenizer_hash
from ffkv.model.checkpoint.vocabulary import write_vocabulary
from ffkv.model.checkpoint.weights import check_finite, hash_once, state_of
from ffkv.model.dictionaries import choose_places, install
from ffkv.model.discover.lengths import steady_length
from ffkv.model.discover.probe_texts import DIGITS, context_of, long_row, measure_beginnings, passages
from ffkv.model.discover.prove import Decomposition, prove_head, prove_layers
from ffkv.model.head.head import find_chain
from ffkv.model.head.head_file import load_head, write_head
from ffkv.model.identities import IDENTITIES
from ffkv.model.placement import Placement, place
from ffkv.model.values_file import write_values


@dataclass(frozen=True)
class ProvenModel:
    """A model whose feed-forward layers are proven. Its head is proven as it is written.

    Attributes:
        model: the model on the CPU. `write` empties its blocks.
        tokenizer: its tokenizer.
        anatomy: what is known of it.
        decomposition: what the head is to be proven on.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    anatomy: Anatomy
    decomposition: Decomposition

    def write(self, folder: Path | str, values_file: Path | str | None = None) -> Anatomy:
        """Writes anatomy, tokenizer, vocabulary and head into an existing folder, and the values into a file.

        The head is proven as it was written: read back from its file, it must give the model's logits.

        Args:
            folder: becomes `results/<run>/model`.
            values_file: the file of values; None writes none.
        Returns:
            The anatomy, with the error of the head beside the others.
        Raises:
            UserError: the head gives other logits than the model.
        """
        folder = Path(folder)
        if values_file is not None:
            write_values(Path(values_file), self.model, self.anatomy)
        save_pretrained(folder, self.tokenizer)
        write_vocabulary(folder, self.tokenizer, self.anatomy)
        emptied = write_head(folder, self.model, self.anatomy)
        anatomy = replace(self.anatomy, head_chain=find_chain(emptied))
        write_anatomy(folder, anatomy)
        with _naming(anatomy.checkpoint, self.model):
            head = load_head(folder, "cpu", trust_remote_code=anatomy.trust_remote_code)
            error, norm = prove_head(head, self.decomposition)
        anatomy = replace(anatomy, errors={**anatomy.errors, "head": error}, final_norm=norm)
        write_anatomy(folder, anatomy)
        return anatomy


def prove(
    settings: Model,
    commit: Commit | None = None,
    unpacked: Path | str | None = None,
    dictionary: Dictionary = Dictionary(),
) -> ProvenModel:
    """Loads a checkpoint, finds its feed-forward layers and proves them, on the CPU.

    Args:
        settings: name the checkpoint.
        commit: the commit of a checkpoint on the hub to read; None for the one that the hub names now.
        unpacked: folder that `ffkv unpack` made from the checkpoint's GGUF file, to read in its place; None for none.
        dictionary: names dictionaries that are read in the place of layers' own memories.
    Raises:
        UserError: the checkpoint or a dictionary cannot be loaded, or the model cannot be read as memories; gives the reason.
    Examples:
        >>> proven = ffkv.prove(ffkv.settings.Model(checkpoint="results/tiny/checkpoint"))
        >>> max(proven.anatomy.errors.values()) < 1e-4  # the largest relative error of the proof
        True
    """
    located, units = settings.located(), dictionary.located()
    check_checkpoint(located.checkpoint, located.gguf)
    commit = check_commit(commit, located) if commit else resolve_model(located)
    source = read_unpacked(unpacked, settings, commit) if unpacked else Unpacked(located, commit, [])
    read = decide_type(source.settings, source.commit)
    state = state_of(read, source.commit)
    with unchanged(files_in(read.checkpoint)), collected() as remarks, read_once(read.gguf):
        model, tokenizer = _load(read, source.commit, located)
    with _naming(located.checkpoint, model):
        first, second = passages(model, tokenizer)
        decomposition = prove_layers(model, first, second, settings.second_matrix)
    places, told = choose_places(model, decomposition.layers, (first, second), units)
    model_hash = install(model, places, units.path, hash_once(read, source.commit, model, state))
    with _naming(located.checkpoint, model):
        if places:
            decomposition = prove_layers(model, first, second, settings.second_matrix)
        context, proven_tokens, about_context = _proven_context(model, tokenizer, decomposition.layers, second)
    anatomy = Anatomy(
        **{name: getattr(settings, name) for name in OF_SETTINGS},
        **{name: getattr(replace(commit, adapter=settings.adapter), name) for name in OF_COMMIT},
        **{name: getattr(decomposition, name) for name in ("layers", "last_block", "returns", "errors")},
        dtype=str(model.dtype).removeprefix("torch."),
        architecture=type(model).__name__,
        activation=configured_activation(model.config.get_text_config(decoder=True)),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        model_hash=model_hash,
        tokenizer_hash=tokenizer_hash(tokenizer),
        vocabulary=decomposition.logits.shape[-1],
        context=context,
        proven_tokens=proven_tokens,
        width=decomposition.final.shape[-1],
        versions=versions(),
        # Losses of random weights say nothing: a control reads what the tokenizer's own names say.
        beginnings={} if settings.weights == "random" else measure_beginnings(model, tokenizer, (first, second)),
        dictionary=dictionary.path,
        dictionaries=places,
        remarks=[*dict.fromkeys([*source.remarks, *remarks, *about_context, *told])],
        unpacked=str(unpacked or ""),
    )
    return ProvenModel(model, tokenizer, anatomy, decomposition)


def _load(read: Model, commit: Commit, settings: Model) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Loads model and tokenizer. `read`, `commit`: what is read. `settings`: as they were given."""
    placement = place(partial(load_form, read, commit), "cpu", True, settings.max_memory)
    _check_room(settings, placement)
    model = load_checkpoint(read, commit, placement)
    check_finite(settings, model)
    return model, load_tokenizer(read.checkpoint, commit, read.trust_remote_code, read.gguf)


def _check_room(settings: Model, placement: Placement) -> None:
    if settings.weights == "random" and placement.is_spread and not settings.max_memory:
        raise UserError(
            f"The random weights of {settings.checkpoint} do not fit into this machine's free memory, and they are made in one"
            " piece. If the model is the control of a run, `report.control: none` leaves it out."
        )


def _proven_context(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, layers: list[Layer], text: Tensor
) -> tuple[int, int, list[str]]:
    """Returns the longest row that is read as its beginnings are, the longest that is proven, and why the first is so short."""
    context = context_of(model, tokenizer)
    row = long_row(model, text, context)
    steady = steady_length(model, layers, row)
    if steady < len(row):
        reason = "in longer rows the coefficients of a prefix depend on what follows it"
        return steady, steady, [f"context {steady:,} of {context:,} tokens: {reason}"]
    config = model.config.get_text_config(decoder=True)
    told = [
        f"context {context:,} of {whole:,} tokens: beyond it, {kind} lets the longest row of a batch change the angles of all"
        for kind, bound in rotary_bounds(config).items()
        if bound == context < (whole := configured_context(config) or 0)
    ]
    return context, len(row), told


@contextlib.contextmanager
def _naming(checkpoint: str, model: nn.Module) -> Iterator[None]:
    """Names the model in a refusal."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"{checkpoint} ({type(model).__name__}) cannot be read as key-value memories (docs/models.md says which models can): {error}"
        ) from error


def describe(anatomy: Anatomy) -> str:
    """Returns the anatomy in lines of text for a person."""
    builds = Counter(_build(layer) for layer in anatomy.layers)
    lines = [
        f"{anatomy.checkpoint} ({anatomy.architecture}, {anatomy.parameters:,} parameters, {anatomy.dtype}, weights {anatomy.model_hash})",
        *([f"  {anatomy.source}"] if anatomy.commit else []),
        *([f"  file {anatomy.gguf}"] if anatomy.gguf else []),
        *(
            f"  layer {place.layer} through {place.called(anatomy.dictionary)}, which leaves {place.unexplained:.2g} of its variance"
            for place in anatomy.dictionaries
        ),
        *(f"  {remark}" for remark in anatomy.remarks),
        *([f"  random weights, seed {anatomy.weights_seed}"] if anatomy.weights == "random" else []),
        f"  {len(anatomy.layers)} feed-forward layers, d = {anatomy.width}, {anatomy.layer_offset[-1]:,} memories, activation {anatomy.activation}",
        f"  vocabulary {anatomy.vocabulary:,}, context {anatomy.context:,}",
    ]
    losses = ", ".join(f"{name} {loss:.{DIGITS}f}" for name, loss in anatomy.beginnings.items())
    lines += [f"  mean loss behind a first token, in nats: {losses}"] if losses else []
    lines += [f"  {count} layers: {build}" for build, count in builds.items()]
    lines.append("  layer  first matrices -> second matrix (layers count from 0)")
    for layer in anatomy.layers:
        paths = [f"{', '.join(matrix.first_matrices)} -> {matrix.module}" for matrix in layer.second_matrices]
        lines.append(f"  {layer.index:5}  {'; '.join(paths)}")
    lines.append(
        f"  proven on real tokens, prefixes in rows of up to {anatomy.proven_tokens:,}, largest relative errors:"
    )
    lines += [f"    {error:.1e}  {IDENTITIES[identity].meaning}" for identity, error in anatomy.errors.items()]
    return "\n".join(lines)


def _build(layer: Layer) -> str:
    scales = dict.fromkeys(
        f"{matrix.scale:g}" if isinstance(matrix.scale, float) else "one number per dimension"
        for matrix in layer.second_matrices
    )
    notes = [
        f"{layer.kind}, d_m = {layer.memories}",
        "o = r + y before the end of the block" if layer.sum_module else "o = r + y is the block's output",
        f"y multiplied by {' and '.join(scales)}" if set(scales) != {"1"} else "",
        "weighted per token" if any(matrix.per_token_weight for matrix in layer.second_matrices) else "",
        "coefficients of both signs" if layer.signed else "",
    ]
    return ", ".join(filter(None, notes))
