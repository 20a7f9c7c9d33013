"""What is known of a model's feed-forward layers: found and proven once, then read from `model/anatomy.json`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from ffkv.errors import UserError
from ffkv.files.checksums import verify_sum

FILE = "anatomy.json"


@dataclass(frozen=True)
class Write:
    """What writes into the residual stream: a second matrix, or a bank of experts. It returns z = m V + b.

    module: its name. readers: the matrices that read the FF input x and feed it (of experts: the bank itself).
    kind: "plain" f(x K), "gated" with two first matrices, "gated, fused" with one of double width.
    gate: the reader whose output's sign is the gate's (of experts: the bank), "" where there is none; gate_part: which
    part of that output: "whole", "first half", "second half". memories: length of m. experts: how many stand side
    by side in m, 0 for a matrix. scale: what z is multiplied with before it is added, a number or one a dimension.
    weighted: the block multiplies z with a number of its own for each token (a gated shared expert); m carries it.
    """

    module: str
    readers: list[str]
    kind: str
    memories: int
    gate: str = ""
    gate_part: str = ""
    experts: int = 0
    scale: float | list[float] = 1.0
    weighted: bool = False


@dataclass(frozen=True)
class Layer:
    """A feed-forward layer, by the names of its modules.

    index: from 0, in order of execution. block: the module whose input and output are the residual stream. call: which run
    of the block in one pass, from 0 (models that repeat their blocks). writes: in order of execution; their memories stand
    one behind the other. site: the module of the block whose input is the block output o = r + y; "" where the block
    returns o itself. post_norm: the block ends with that module, and its output is read out through it.
    carrier: the module whose output, times `carrier_scale`, is y; "" where y is the sum of the scaled writes.
    carrier_kind: "sum"; "norm": it scales every token by a factor of its own; "linear": it maps the values.
    signed: coefficients can be negative. end: of the last layer only, the block whose output the model reads out, where that is
    not o: blocks without a feed-forward layer follow, or its own block does more; else "".
    """

    index: int
    block: str
    writes: list[Write]
    signed: bool
    call: int = 0
    site: str = ""
    post_norm: bool = False
    carrier: str = ""
    carrier_scale: float = 1.0
    carrier_kind: str = ""
    end: str = ""

    @property
    def memories(self) -> int:
        """d_m, the length of m."""
        return sum(write.memories for write in self.writes)

    @property
    def gated(self) -> bool:
        """Whether coefficients are products of a gate and another factor."""
        return any(write.gate for write in self.writes)

    @property
    def kind(self) -> str:
        """How the layer is built, for a person."""
        kinds = dict.fromkeys(
            f"{write.experts} experts, {write.kind}" if write.experts else write.kind for write in self.writes
        )
        after = {"norm": "norm after", "linear": "linear map after"}.get(self.carrier_kind)
        notes = [after, "post-norm block" if self.post_norm else None]
        return "; ".join([" + ".join(kinds), *filter(None, notes)])

    def unit(self, memory: int) -> str:
        """Where a memory of a mixture stands: "expert 2, unit 17", "shared, unit 3"; "" in a layer without experts."""
        if not any(write.experts for write in self.writes):
            return ""
        for write in self.writes:
            if memory < write.memories:
                units = write.memories // (write.experts or 1)
                return f"expert {memory // units}, unit {memory % units}" if write.experts else f"shared, unit {memory}"
            memory -= write.memories
        raise IndexError(memory)


class Shell(NamedTuple):
    """What must be known of a model to empty its blocks.

    architecture: its class. last_block: the block that runs last, with a feed-forward layer or not. returns: how many values
    it returns, 0 for a bare tensor.
    """

    architecture: str
    layers: list[Layer]
    last_block: str
    returns: int


@dataclass(frozen=True)
class Anatomy:
    """A proven model: what it is, how it is built, how exactly the decomposition holds.

    width: d. context: longest input in tokens. vocabulary: number of logits. last_block, returns: see
    `Shell`. activation: name of the activation function in the model's config. errors: largest relative error
    of each identity of the proof.
    """

    checkpoint: str
    revision: str
    dtype: str
    trust_remote_code: bool
    architecture: str
    activation: str
    parameters: int
    model_hash: str
    tokenizer_hash: str
    vocabulary: int
    context: int
    width: int
    last_block: str
    returns: int
    layers: list[Layer]
    errors: dict[str, float]
    versions: dict[str, str]

    @property
    def shell(self) -> Shell:
        """What the head needs."""
        return Shell(self.architecture, self.layers, self.last_block, self.returns)

    @property
    def layer_offset(self) -> list[int]:
        """First row of each layer's memories in flat arrays, and the end of the last."""
        offsets = [0]
        for layer in self.layers:
            offsets.append(offsets[-1] + layer.memories)
        return offsets

    @property
    def identity(self) -> dict[str, str]:
        """What files made from this model carry."""
        return {
            "model": self.checkpoint,
            "model_hash": self.model_hash,
            "tokenizer_hash": self.tokenizer_hash,
            "dtype": self.dtype,
        }


def write_anatomy(folder: Path, anatomy: Anatomy) -> None:
    """Writes `anatomy.json` into the model stage's folder."""
    (folder / FILE).write_text(json.dumps(asdict(anatomy), indent=1))


def read_anatomy(folder: Path) -> Anatomy:
    """Reads `anatomy.json` from the model stage's folder.

    Raises:
        UserError: no such file, not this version's, or damaged.
    """
    verify_sum(Path(folder) / FILE)
    try:
        stored = json.loads((Path(folder) / FILE).read_text())
        return Anatomy(**{**stored, "layers": [_layer(layer) for layer in stored["layers"]]})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{Path(folder) / FILE} cannot be read ({error}). Run `ffkv model` first, or again.") from error


def _layer(stored: dict) -> Layer:
    return Layer(**{**stored, "writes": [Write(**write) for write in stored["writes"]]})
