"""The Jacobian lens of a run as TransformerLens' `JacobianLens.load` and Neuronpedia take it: one file, `lens.pt`."""

from collections.abc import Iterable
from pathlib import Path

from ffkv.branches.translation.lens_file import write_lens
from ffkv.branches.translation.maps import read_map
from ffkv.run.export.job import Format, Job, Unit, definitions
from ffkv.run.export.records import Record

READING = "jacobian"


def _units(job: Job) -> list[Unit]:
    run = job.run.read_as(READING)
    fit = run.table("translation_fit")
    texts = int(fit[fit["reading"] == READING]["texts"].max())

    def write(path: Path, records: Iterable[Record]) -> None:
        matrices = {}
        for layer in range(len(run.anatomy.layers)):
            with run.files.open_maps(run.files.layer_group(layer)) as file:
                matrices[layer] = read_map(file, layer)[0].T
        write_lens(path, matrices, texts)

    return [Unit("lens.pt", range(0), write)]


FORMAT = Format(0, 0, _units, definitions(__package__, "jacobian-lens"))
