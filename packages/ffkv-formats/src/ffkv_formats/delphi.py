"""delphi's cache of activations: a folder per layer and sign, which `delphi.latents.LatentDataset` reads.

Layout: `delphi/latents/cache.py` and `loader.py` of EleutherAI/delphi. delphi takes a window without a stored
activation for one in which the memory does not fire, so every coefficient on every token of the text is here.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ffkv.base.errors import UserError
from ffkv.base.files.atomic import atomic
from ffkv.run.export.job import Format, Job, Unit, definitions, write_json
from ffkv.run.export.records import Record
from ffkv.run.export.selection import Group

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
    """Cuts sentences [sentence][token] into windows. Each begins a window, and the rest of its last one is padding.

    Returns the tokens, int64 [window, 32]; and window and place in it of each token of the sentences, one sentence
    behind the other [token, 2].
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
    """Returns the tensors of one file. Raises UserError if a coefficient is too large for float16.

    `values`: coefficients, times -1 for the negative side [latent, token]; `latents`: their numbers, counted from the
    first one of the file [latent]; `locations`: window and place of each token [token, 2]; `tokens`: [window, 32].
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
        Unit(f"latents/{hookpoint(group.layer, side)}", group.places, partial(_write, job, group, side))
        for side in _sides(job)
        for group in job.selection.groups()
    ]


def _sides(job: Job) -> tuple[str, ...]:
    """Both signs if any coefficient of the model can be negative."""
    return SIDES if any(layer.signed for layer in job.run.anatomy.layers) else SIDES[:1]


def _write(job: Job, group: Group, side: str, folder: Path, records: Iterable[Record]) -> None:
    folder.mkdir()
    corpus = job.run.corpus("train")
    padding = corpus.bos[-1] if corpus.bos else 0
    tokens, locations = windows([corpus.ids(int(number)) for number in job.selection.sample], padding)
    files = _files(job, group)
    for own, first, last in files:
        values = job.store.sample(own.places) * np.float32(1 if side == "positive" else -1)
        save_file(split(values, own.memories - first, locations, tokens), folder / f"{first}_{last}.safetensors")
    write_json(folder / "config.json", _cache_config(job, len(files)) | {"model_name": job.run.anatomy.checkpoint})


def _files(job: Job, group: Group) -> list[tuple[Group, int, int]]:
    """Returns the memories of each file, and the first and last latent of its name: together they leave no gap."""
    size = max(1, COEFFICIENTS // max(1, int(job.store.sample_start[-1])))
    own = [*job.selection.groups(size, group.places)]
    bounds = [0, *(int(each.memories[0]) for each in own[1:]), job.run.anatomy.layers[group.layer].memories]
    return [(each, first, last - 1) for each, first, last in zip(own, bounds, bounds[1:])]


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
    for group in job.selection.groups():
        for side in _sides(job):
            own = np.zeros(job.run.anatomy.layers[group.layer].memories, np.int64)
            for part, *_ in _files(job, group):
                values = job.store.sample(part.places)
                own[part.memories] = (values > 0 if side == "positive" else values < 0).sum(1)
            counts[hookpoint(group.layer, side)] = torch.from_numpy(own)
    # A file that torch opens itself holds the file's name, which is another one each time.
    path = folder / "log/hookpoint_firing_counts.pt"
    with atomic(path, summed=False) as temporary, temporary.open("wb") as file:
        torch.save(counts, file)
    settings = {
        "cache_cfg": _cache_config(job, max(len(_files(job, group)) for group in job.selection.groups())),
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
    definitions=definitions(__package__, "delphi", THRESHOLD=THRESHOLD, WINDOW=WINDOW),
)
