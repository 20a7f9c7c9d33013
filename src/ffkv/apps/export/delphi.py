"""delphi's cache of activations: a folder per layer and sign, which `delphi.latents.LatentDataset` reads.

Layout: `delphi/latents/cache.py` and `loader.py` of EleutherAI/delphi. delphi takes a window without a stored
    activation for one in
which the memory does not fire, so every coefficient on every token of the text is here.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ffkv.apps.export.job import Format, Job, Unit, write_json
from ffkv.apps.export.records import Record, groups
from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic

WINDOW = 32  # tokens of an example
THRESHOLD = 1e-5  # delphi keeps what is above it
LARGEST = float(np.finfo(np.float16).max)
COEFFICIENTS = 2**24  # of a file, those that are not kept included
SMALL = 2**16  # locations below it take two bytes
SIDES = ("positive", "negative")


def hookpoint(layer: int, side: str) -> str:
    """Returns the folder of a layer: "layers.3.mlp"; of its negative coefficients "layers.3.mlp.negative"."""
    return f"layers.{layer}.mlp" if side == "positive" else f"layers.{layer}.mlp.negative"


def windows(sentences: list[np.ndarray], padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts sentences into windows. A sentence begins a window, and the rest of its last window is padding.

    Args:
        sentences: token ids [sentence][token].
        padding: id of the padding.
    Returns:
        The tokens, int64 [window, 32]; and window and place in it of each token of the sentences, one sentence behind
        the other [token, 2].
    """
    counts = [-(-len(ids) // WINDOW) for ids in sentences]
    tokens = np.full((sum(counts), WINDOW), padding, np.int64)
    locations = []
    for first, ids in zip(np.cumsum([0, *counts]).tolist(), sentences):
        at = np.arange(len(ids))
        own = np.stack([first + at // WINDOW, at % WINDOW], axis=1)
        tokens[own[:, 0], own[:, 1]] = ids
        locations.append(own)
    return tokens, np.concatenate([np.zeros((0, 2), np.int64), *locations])


def split(values: np.ndarray, latents: np.ndarray, locations: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the tensors of one file.

    Args:
        values: coefficients, times -1 for the negative side [latent, token].
        latents: numbers of the latents, counted from the first one of the file [latent].
        locations: window and place of each token [token, 2].
        tokens: the text [window, 32].
    Raises:
        UserError: a coefficient is too large for float16.
    """
    if values.size and values.max() > LARGEST:
        raise UserError(
            f"A coefficient is {values.max():.6g}, and delphi keeps activations as float16, which ends at"
            f" {LARGEST:.0f}. Leave its memory out with --memories."
        )
    row, token = np.nonzero(values > THRESHOLD)
    places = np.column_stack([locations[token], latents[row]])
    kind = np.uint16 if max(len(tokens), int(latents[-1]) + 1) <= SMALL else np.uint32
    return {
        "locations": np.ascontiguousarray(places.astype(kind)),
        "activations": values[row, token].astype(np.float16),
        "tokens": tokens,
    }


def units(job: Job) -> list[Unit]:
    """Makes a folder per layer and sign: `latents/<hookpoint>/`."""
    return [
        Unit(f"latents/{hookpoint(int(job.selection.layer[places.start]), side)}", places, _writer(job, places, side))
        for side in _sides(job)
        for places in job.selection.layers()
    ]


def _sides(job: Job) -> tuple[str, ...]:
    """Returns both signs if any coefficient of the model can be negative."""
    return SIDES if any(layer.signed for layer in job.run.anatomy.layers) else SIDES[:1]


def _writer(job: Job, places: range, side: str) -> Callable[[Path, Iterable[Record]], None]:
    def write(folder: Path, records: Iterable[Record]) -> None:
        folder.mkdir()
        corpus = job.run.corpus("train")
        padding = corpus.bos[-1] if corpus.bos else 0
        tokens, locations = windows([corpus.ids(int(number)) for number in job.selection.sample], padding)
        files = _files(job, places)
        for own, (first, last) in files:
            values = job.store.sample(own) * np.float32(1 if side == "positive" else -1)
            latents = job.selection.memory[own.start : own.stop] - first
            save_file(split(values, latents, locations, tokens), folder / f"{first}_{last}.safetensors")
        write_json(folder / "config.json", _cache_config(job, len(files)) | {"model_name": job.run.anatomy.checkpoint})

    return write


def _files(job: Job, places: range) -> list[tuple[range, tuple[int, int]]]:
    """Returns the memories of each file, and the first and last latent of its name: together they leave no gap."""
    size = max(1, COEFFICIENTS // max(1, int(job.store.sample_start[-1])))
    own = [*groups(job.selection, places, size)]
    first = [int(job.selection.memory[group.start]) for group in own]
    end = job.run.anatomy.layers[int(job.selection.layer[places.start])].memories
    first[0] = 0
    return [(group, (a, b - 1)) for group, a, b in zip(own, first, [*first[1:], end])]


def _cache_config(job: Job, files: int) -> dict[str, Any]:
    return {
        "dataset_repo": job.run.settings.corpus.dataset,
        "dataset_split": "train",
        "dataset_name": "",
        "dataset_column": "text",
        "batch_size": 32,
        "cache_ctx_len": WINDOW,
        "n_tokens": int(job.store.sample_start[-1]),
        "n_splits": files,
    }


def finish(job: Job, folder: Path) -> None:
    """Writes `run_config.json` and `log/hookpoint_firing_counts.pt`."""
    import torch

    counts = {}
    for places in job.selection.layers():
        layer = int(job.selection.layer[places.start])
        for side in _sides(job):
            own = np.zeros(job.run.anatomy.layers[layer].memories, np.int64)
            for group, _ in _files(job, places):
                values = job.store.sample(group)
                own[job.selection.memory[group.start : group.stop]] = (
                    values > 0 if side == "positive" else values < 0
                ).sum(1)
            counts[hookpoint(layer, side)] = torch.from_numpy(own)
    # A file that torch opens itself holds the file's name, which is another one each time.
    path = folder / "log/hookpoint_firing_counts.pt"
    with atomic(path, summed=False) as temporary, temporary.open("wb") as file:
        torch.save(counts, file)
    largest = max(len(_files(job, places)) for places in job.selection.layers())
    settings = {
        "cache_cfg": _cache_config(job, largest),
        "constructor_cfg": {"example_ctx_len": WINDOW},
        "sampler_cfg": {},
        "model": job.run.anatomy.checkpoint,
        "sparse_model": job.set_name,
        "hookpoints": list(counts),
    }
    with atomic(folder / "run_config.json", summed=False) as temporary:
        write_json(temporary, settings)


FORMAT = Format(
    examples=20,
    sentences=2000,
    units=units,
    dense=True,
    finish=finish,
    definitions={
        "activations": f"memory coefficients m_i above {THRESHOLD:g}, as float16; in the hookpoints that end in"
        " `negative`, of -m_i",
        "tokens": f"windows of {WINDOW} tokens. A sentence begins a window; what follows its end is padding, which has"
        " no activation. Tokens in front of every sentence are not in it. A coefficient is that of its sentence in a"
        " context of its own, which may be longer than the window",
        "text": "the random sentences, and the sentences of the trigger examples of all exported memories",
        "hookpoint_firing_counts": "number of tokens with a positive coefficient, or a negative one; 0 for memories"
        " that are not exported",
    },
)
