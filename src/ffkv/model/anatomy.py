"""The anatomy of a model's feed-forward layers.

The proof finds it once; later steps read it from `model/anatomy.json`.
"""

import json
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from ffkv.base.errors import UserError
from ffkv.base.files.journal import problem_of
from ffkv.base.files.stored import verify_sum
from ffkv.base.hub.commit import Commit
from ffkv.base.lookup import as_path, parse_json, read_bytes
from ffkv.base.settings.section import GgufFile

ANATOMY_FILE = "anatomy.json"
Count = Annotated[int, Field(gt=0, lt=2**40)]
# Fields of `Anatomy` that are those of the settings `model.*`, or of the commit that was read.
OF_SETTINGS = ("checkpoint", "revision", "gguf", "weights", "weights_seed", "trust_remote_code")
OF_COMMIT = ("commit", "code", "adapter", "adapter_revision", "adapter_commit")


@dataclass(frozen=True)
class SecondMatrix:
    """A module that writes into the residual stream: a second matrix, or a bank of experts. It returns z = m V + b."""

    module: str  # the module's name
    # names of the matrices that read the FF input x and feed this one (of a bank: the bank itself)
    first_matrices: list[str]
    kind: str  # "plain" f(x K), "gated" with two first matrices, "gated, fused" with one of double width
    memories: Count  # length of m
    # name of the first matrix whose output has the sign of the gate (of a bank: the bank), "" without a gate
    gate: str = ""
    # the columns of that output: "all", "first half", "second half"; "" without a gate and for a bank
    gate_columns: str = ""
    experts: int = 0  # number of experts of a bank, 0 for a matrix
    # what the block multiplies z with before it adds it, one number or one per dimension
    scale: float | list[float] = 1.0
    # the block multiplies z with one number per token (a gated shared expert); m carries it
    per_token_weight: bool = False
    dictionary: bool = False  # its memories are units of a dictionary, which leave a part of z, the error


@dataclass(frozen=True)
class Layer:
    """A feed-forward layer, by the names of its modules."""

    index: int  # number of the layer, from 0, in order of execution
    block: str  # the module whose input and output are the residual stream
    # in order of execution. m holds the coefficients of the first one, then those of the next.
    second_matrices: list[SecondMatrix]
    signed: bool  # coefficients can be negative
    # which repeat of the block within one forward pass this layer is, from 0 (some models repeat blocks)
    repeat: int = 0
    sum_module: str = ""  # the module whose input is the block output o = r + y; "" if the block returns o itself
    post_norm: bool = False  # the block ends with `sum_module`, a norm, and the head reads o through it
    # the module after the second matrices whose output, times `output_scale`, is y; "" if y is the sum of the scaled
    # outputs of the second matrices
    output_module: str = ""
    output_scale: float = 1.0  # see `output_module`
    # what `output_module` does: "sum", "norm" (one factor per token), "linear" (it maps the values)
    output_kind: str = ""
    # for the last layer only: the block whose output the head reads, if that is not o. This is a later block without
    # a feed-forward layer, or the layer's own block if it continues after o. Else "".
    readout_block: str = ""

    @property
    def memories(self) -> int:
        """d_m, the length of m."""
        return sum(matrix.memories for matrix in self.second_matrices)

    @property
    def gated(self) -> bool:
        """Whether coefficients are products of a gate and another factor."""
        return any(matrix.gate for matrix in self.second_matrices)

    @property
    def is_dictionary(self) -> bool:
        """Whether the memories are units of a dictionary."""
        return self.second_matrices[0].dictionary

    @property
    def experts(self) -> list[slice]:
        """The memories of each expert that a router chooses, those of one bank after the other; none without experts."""
        found, first = list[slice](), 0
        for matrix in self.second_matrices:
            units = matrix.memories // (matrix.experts or 1)
            found += [slice(first + number * units, first + (number + 1) * units) for number in range(matrix.experts)]
            first += matrix.memories
        return found

    @property
    def kind(self) -> str:
        """How the layer is built, in words for a person."""
        kinds = dict.fromkeys(
            f"{matrix.experts} experts, {matrix.kind}" if matrix.experts else matrix.kind
            for matrix in self.second_matrices
        )
        kinds |= dict.fromkeys(["dictionary"] * self.is_dictionary)
        after = {"norm": ["norm after"], "linear": ["linear map after"]}.get(self.output_kind, [])
        return "; ".join([" + ".join(kinds), *after, *["post-norm block"] * self.post_norm])

    def unit(self, memory: int) -> str:
        """Names the expert and unit of a memory: "expert 2, unit 17" or "shared, unit 3"; "" without experts."""
        if not any(matrix.experts for matrix in self.second_matrices):
            return ""
        for matrix in self.second_matrices:
            if memory < matrix.memories:
                units = matrix.memories // (matrix.experts or 1)
                whose = f"expert {memory // units}" if matrix.experts else "shared"
                return f"{whose}, unit {memory % units}"
            memory -= matrix.memories
        raise IndexError(memory)


@dataclass(frozen=True)
class HeadModule:
    """A plain torch module of a head that is a chain of such modules, see `ffkv.model.head.head`."""

    name: str  # the module's name
    kind: str  # "LayerNorm" or "Linear"
    eps: float  # of a LayerNorm


@dataclass(frozen=True)
class DictionaryPlace:
    """Where a dictionary reads and writes in the model, by the names of modules."""

    layer: int  # number of the feed-forward layer, from 0
    file: str  # the file or folder of the dictionary, in the folder of all; "" for the layer's own memories
    largest: int  # of the layer's own memories: how many are units at a token; else 0
    block: str  # the block of the layer
    writes: str  # the module whose output the dictionary's units add up to
    reads: str  # the module that reads what the dictionary reads; "" if the dictionary reads what `writes` returns
    without_gain: str  # the norm whose gain the dictionary reads before; "" for none
    replaces: list[str]  # the second matrices of the model's own layer, which are not read
    # share of the variance of the layer's output on the texts of the proof that the dictionary leaves
    unexplained: float
    # whether the units add up to the residual stream h + y, which the dictionary reads, too: `reads` is the module that reads h
    of_stream: bool = False

    def called(self, folder: str) -> str:
        """Returns a name for a person. `folder`: of all dictionaries."""
        stream = " (of the residual stream behind it)" * self.of_stream
        return f"its {self.largest} largest memories" if self.largest else f"{folder}/{self.file}".rstrip("/") + stream


class MemoryPlaces(NamedTuple):
    """Where memories are."""

    layer: np.ndarray  # number of the layer, from 0 [memory]
    memory: np.ndarray  # number of the memory in its layer, from 0 [memory]


@dataclass(frozen=True)
class Anatomy:
    """A proven model."""

    checkpoint: str  # folder or hub name, as in the settings
    revision: str  # branch, tag or commit on the hub, as in the settings
    dtype: str  # type of the weights, "float32" for example
    trust_remote_code: bool  # whether the checkpoint's own code was run
    architecture: str  # name of the model's class
    activation: str  # name of the activation function in the model's config
    parameters: Count  # number of parameters
    model_hash: str  # hash of config and weights
    tokenizer_hash: str  # hash of the tokenizer
    vocabulary: Count  # number of logits
    context: Count  # longest input in tokens, in which prefixes are read as they are alone
    width: Count  # d, the width of the residual stream
    last_block: str  # name of the block that runs last, with or without a feed-forward layer
    returns: int  # length of the tuple that this block returns, 0 for a bare tensor
    layers: Annotated[list[Layer], Field(min_length=1)]  # the feed-forward layers
    # largest relative error of each identity of the proof that applies, see `ffkv.model.identities`
    errors: dict[str, float]
    versions: dict[str, str]  # versions of ffkv and of the libraries that made the proof
    # whether the head gives every vector the same length first, so that it reads directions alone
    final_norm: bool = True
    # the modules of a head that is a chain of plain modules, in order; [] for any other head
    head_chain: list[HeadModule] = field(default_factory=list)
    commit: str = ""  # the commit on the hub that was read, 40 hexadecimal digits; "" for a local folder
    # other repositories whose Python code the model runs, and their commits
    code: dict[str, str] = field(default_factory=dict)
    adapter: str = ""  # folder or hub id of the adapter that is merged into the weights; "" for none
    adapter_revision: str = "main"  # its branch, tag or commit on the hub, as in the settings
    adapter_commit: str = ""  # its commit on the hub; "" for a local folder
    gguf: GgufFile = ""  # name of the GGUF file in the checkpoint; "" for none
    unpacked: str = ""  # folder with that file unpacked, which is read in its place; "" for none
    weights: str = "checkpoint"  # "checkpoint", or "random" if they were initialised freshly
    weights_seed: int = 0  # seed of random weights
    proven_tokens: int = 0  # length of the longest row in which the model step has proven prefixes
    # mean loss behind each token that may precede a sentence, by its name; {} if there is no choice
    beginnings: dict[str, float] = field(default_factory=dict)
    dictionary: str = ""  # folder with dictionaries that are read in the place of layers' own memories; "" for none
    dictionaries: list[DictionaryPlace] = field(default_factory=list)  # of these layers, ascending
    # what the files hold and the model does not use, and other words about model and files for a person, one sentence each
    remarks: list[str] = field(default_factory=list)

    @property
    def layer_offset(self) -> list[int]:
        """First row of each layer in arrays of the memories of all layers, and the number of rows [layer + 1]."""
        return list(accumulate((layer.memories for layer in self.layers), initial=0))

    @property
    def of_stream(self) -> set[int]:
        """The layers whose units add up to the residual stream behind them: what predicts what the layer predicts says nothing."""
        return {place.layer for place in self.dictionaries if place.of_stream}

    @property
    def end(self) -> str:
        """The quantity of the last layer that the head reads: "o", or "e" where a later block follows."""
        return "e" if self.layers[-1].readout_block else "o"

    @property
    def read_as(self) -> int | None:
        """The layer that the model's own head reads out, see `Head.logits`; None: the output of a later block."""
        return self.layers[-1].index if self.end == "o" else None

    def places_of(self, rows: np.ndarray) -> MemoryPlaces:
        """Returns the memories that some rows of such arrays belong to."""
        offset = np.asarray(self.layer_offset)
        layer = np.searchsorted(offset, rows, side="right") - 1
        return MemoryPlaces(layer, rows - offset[layer])

    @property
    def experts(self) -> list[np.ndarray]:
        """The numbers of the memories of each expert among those of all layers, those of one layer after the other."""
        offsets = zip(self.layers, self.layer_offset)
        return [np.arange(first + own.start, first + own.stop) for layer, first in offsets for own in layer.experts]

    @property
    def source(self) -> Commit:
        """The commit of the hub that the model is read from, if it comes from there."""
        return Commit("model", self.checkpoint, self.revision, **{name: getattr(self, name) for name in OF_COMMIT})

    @property
    def identity(self) -> dict[str, str]:
        """The attributes that files made from this model carry."""
        return {
            "model": self.checkpoint,
            **({"model_revision": self.revision, "model_commit": self.commit} if self.commit else {}),
            **({"adapter": self.adapter, "adapter_commit": self.adapter_commit} if self.adapter else {}),
            **({"gguf": self.gguf} if self.gguf else {}),
            "model_hash": self.model_hash,
            "tokenizer_hash": self.tokenizer_hash,
            "dtype": self.dtype,
        }

    def overflow(self, what: str = "States") -> UserError:
        """Makes the message about numbers of the model that are not finite. `what`: which numbers."""
        told = f"{what} of {self.checkpoint} are not finite: the model overflows in {self.dtype}."
        return UserError(f"{told} Use model.dtype float32.")


_kind = cache(lambda: TypeAdapter(Anatomy))  # made once, and only if an anatomy is read


def write_anatomy(folder: Path, anatomy: Anatomy) -> None:
    """Writes `anatomy.json` into the folder of the model step."""
    (folder / ANATOMY_FILE).write_text(json.dumps(asdict(anatomy), indent=1))


def read_anatomy(folder: Path | str) -> Anatomy:
    """Reads `anatomy.json` from the folder of the model step, `results/<run>/model`.

    Raises:
        UserError: the folder holds no readable anatomy; run the model step again.
    """
    path = as_path(folder) / ANATOMY_FILE
    verify_sum(path)
    try:
        text = read_bytes(path)
        parse_json(text)  # refuses names that occur twice
        return _kind().validate_json(text, strict=True, extra="forbid")
    except (OSError, ValueError) as error:
        reason = ": ".join(problem_of(error)) if isinstance(error, ValidationError) else error
        raise UserError(f"{path} cannot be read ({reason}). Run `ffkv model` first, or again.") from error


def read_anatomy_to_run(folder: Path | str, trust_remote_code: bool) -> Anatomy:
    """Reads the anatomy of a model whose modules or tokenizer are about to run, as `read_anatomy`.

    `trust_remote_code`: whether the person who runs ffkv allows the checkpoint's own code, this time. No file of a run allows it.
    Raises UserError, too, if the model needs such code and the person does not allow it.
    """
    anatomy = read_anatomy(folder)
    if anatomy.trust_remote_code and not trust_remote_code:
        raise UserError(
            f"{as_path(folder) / ANATOMY_FILE} asks to run Python code that {anatomy.checkpoint} brings. No code is run because a"
            " file asks for it. If you have read that code and trust it, allow it each time: by the option --trust-remote-code,"
            " in Python by trust_remote_code=True, in your settings file by model.trust_remote_code: true."
        )
    return anatomy
