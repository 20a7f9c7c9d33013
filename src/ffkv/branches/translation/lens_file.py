"""Files of Jacobian lenses, as TransformerLens and Neuronpedia read and write them.

A file holds {"J": {layer: [d, d]}, "n_prompts": texts, "source_layers": [layer], "d_model": d}, written by `torch.save`. J is in
float16, by coordinate of o^L and of o^l. A stranger's file is read with `weights_only`, so that it runs no code.
"""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ffkv.base.errors import UserError
from ffkv.base.lookup import is_file


def read_lens(path: Path | str, layers: int, width: int) -> tuple[list[np.ndarray], int]:
    """Reads a published lens for a model of so many layers and dimensions. Only the last layer may be missing: its J is the identity.

    Returns J of each layer [layer][d, d] in float64, and the number of texts that it is the mean of.

    Raises:
        UserError: the file is missing, is no such lens, would run code, is of another model, or holds what is not finite.
    """
    if not is_file(path):
        raise UserError(f"There is no file {path}. Set translation.lens to the file of a Jacobian lens.")
    size, room = Path(path).stat().st_size, 8 * layers * width**2 + 2**20  # 8 bytes for each entry of J
    if size > room or _unpacked(path) > room:
        raise UserError(
            f"{path} is larger than a lens of {layers} layers and {width} dimensions can be. It is of another model."
        )
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError) as error:
        reason = "it holds more than numbers" if isinstance(error, pickle.UnpicklingError) else str(error)[:200]
        raise UserError(f"{path} cannot be read as a Jacobian lens: {reason}. No code of a file is run.") from error
    matrices = _matrices(path, held)
    wrong = [f"layer {layer} has {list(j.shape)}" for layer, j in matrices.items() if j.shape != (width, width)]
    if missing := sorted({*range(layers - 1)} - {*matrices}):
        wrong.append(f"it lacks the layers {', '.join(map(str, missing[:10]))}")
    if (last := max(matrices)) >= layers:
        wrong.append(f"it has a layer {last}")
    if wrong:
        raise UserError(
            f"{path} is of another model: {wrong[0]}, and this one has {layers} layers of {width} dimensions."
        )
    if bad := [layer for layer, j in matrices.items() if not bool(j.isfinite().all())]:
        raise UserError(f"{path} is not finite in layer {bad[0]}. A lens in float16 may have overflowed: fit it again.")
    identity = torch.eye(width)
    return [matrices.get(layer, identity).double().numpy() for layer in range(layers)], held["n_prompts"]


def _unpacked(path: Path | str) -> int:
    """The bytes that the file unpacks to; 0 if it is no archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(each.file_size for each in archive.infolist())
    except (zipfile.BadZipFile, OSError):
        return 0


def _matrices(path: Path | str, held: Any) -> dict[int, torch.Tensor]:
    """Returns J by layer of what a file holds. Raises UserError if it is no lens."""
    keys = {"J": dict, "n_prompts": int, "source_layers": list, "d_model": int}
    wrong = [name for name, kind in keys.items() if not isinstance(held, dict) or not isinstance(held.get(name), kind)]
    if not wrong:
        found = {layer: j for layer, j in held["J"].items() if type(layer) is int and isinstance(j, torch.Tensor)}
        listed = len(found) == len(held["J"]) > 0 and sorted(found) == sorted(held["source_layers"]) and min(found) >= 0
        if listed and all(j.is_floating_point() and j.layout == torch.strided for j in found.values()):
            return found
        wrong = ["J"]
    raise UserError(
        f"{path} is no Jacobian lens: {wrong[0]} is not as expected. A lens holds J, a matrix for each of source_layers, n_prompts"
        " and d_model."
    )


def write_lens(path: Path, matrices: dict[int, np.ndarray], texts: int) -> None:
    """Writes a lens: J by layer [d, d], the mean over `texts`. Raises UserError if an entry does not fit float16."""
    held = {layer: torch.from_numpy(np.ascontiguousarray(j)).to(torch.float16) for layer, j in matrices.items()}
    if bad := [layer for layer, j in held.items() if not bool(j.isfinite().all())]:
        raise UserError(f"J of layer {bad[0]} does not fit float16, in which lenses are published. No file is written.")
    width = len(next(iter(held.values())))
    content = io.BytesIO()  # torch tells of a full disk as of a defect, and writes the name of a path into the file
    torch.save({"J": held, "n_prompts": texts, "source_layers": sorted(held), "d_model": width}, content)
    path.write_bytes(content.getbuffer())
