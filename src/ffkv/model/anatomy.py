"""What is known of a model's feed-forward layers: found and proven once, then read from `model/anatomy.json`."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ffkv.errors import UserError

FILE = "anatomy.json"


@dataclass(frozen=True)
class Layer:
    """A feed-forward layer, by the names of its modules.

    index: from 0, in order of execution. block: the module whose input and output are the residual stream.
    write: the second matrix; what goes in is the memory coefficients m. readers: the matrices that read the FF input x.
    site: the module of the block whose input is the block output o = r + y; "" where the block returns o itself.
    scale: y = scale * (m V + b), the block's residual multiplier. memories: d_m, length of m.
    kind: "plain" f(x K), "gated" with two first matrices, "gated, fused" with one of double width.
    """

    index: int
    block: str
    write: str
    readers: list[str]
    site: str
    scale: float
    memories: int
    kind: str


@dataclass(frozen=True)
class Anatomy:
    """A proven model: what it is, how it is built, how exactly the decomposition holds.

    width: d. context: longest input in tokens. vocabulary: number of logits. returns: how many values a block returns,
    0 for a bare tensor. activation: name of the activation function in the model's config. errors: largest relative error
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
    returns: int
    layers: list[Layer]
    errors: dict[str, float]
    versions: dict[str, str]

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
        UserError: no such file, or not this version's.
    """
    try:
        stored = json.loads((Path(folder) / FILE).read_text())
        return Anatomy(**{**stored, "layers": [Layer(**layer) for layer in stored["layers"]]})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{Path(folder) / FILE} cannot be read ({error}). Run `ffkv model` first, or again.") from error
