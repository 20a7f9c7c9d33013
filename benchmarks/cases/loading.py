"""Loading a model in a second job, beside reading the files of its checkpoint."""

import multiprocessing
from pathlib import Path
from typing import Any

from benchmarks.inputs import Shape, ids_of, make_corpora, prepare_model
from benchmarks.measure import Comparison, Measurement, Work, same_work
from ffkv.model.anatomy import read_anatomy
from ffkv.model.checkpoint.load import load

LARGE = Shape(8, 1536, 6144, 50257)
CONTENDERS = ("reading", "libraries", "second")


def second(scratch: Path, shape: list[int]) -> Work:
    """A job after the first one: loads the model and runs a batch of one sentence."""
    folder = prepare_model(scratch, shape)
    ids = ids_of(make_corpora(scratch, folder)[1], [0])
    with multiprocessing.get_context("spawn").Pool(1) as first_job:  # notes the hash of the weights
        first_job.apply(load_once, (str(folder),))

    def work() -> dict[str, Any]:
        model = load(folder, "cpu").model
        model(ids[:, :4])
        return {"weights": sum(weight.numel() * weight.element_size() for weight in model.parameters())}

    return work


def load_once(folder: str) -> None:
    """Loads the model of a model folder, and keeps nothing."""
    load(folder, "cpu")


def libraries(scratch: Path, shape: list[int]) -> Work:
    """A job that loads no model: the memory of the libraries."""
    folder = prepare_model(scratch, shape)
    make_corpora(scratch, folder)
    return lambda: None


def reading(scratch: Path, shape: list[int]) -> Work:
    """Reads the files of the checkpoint into memory, one after the other."""
    checkpoint = Path(read_anatomy(prepare_model(scratch, shape)).checkpoint)

    def work() -> None:
        for path in sorted(checkpoint.iterdir()):
            path.read_bytes()

    return work


def memory_ratio(measurements: dict[str, Measurement]) -> float:
    """Memory that loading adds to the libraries, divided by the bytes of the weights."""
    added = measurements["second"].peak - measurements["libraries"].peak
    return added / measurements["second"].extra["weights"]


COMPARISONS = [
    Comparison(
        "loading",
        str(LARGE),
        same_work(__name__, CONTENDERS, shape=LARGE),
        lambda measurements: measurements["second"].wall / measurements["reading"].wall,
        1.5,
        "times the time of reading the checkpoint's files, to the first batch of a second job",
        note="files in the system's cache; the hash of the weights is known",
    ),
    Comparison(
        "memory of loading",
        str(LARGE),
        same_work(__name__, CONTENDERS, shape=LARGE),
        memory_ratio,
        1.15,
        "times the bytes of the weights",
    ),
]
