"""An export format: a file with the names of the memories of each layer."""

from ffkv.run.export.job import Format, Job, Unit, write_json


def units(job: Job) -> list[Unit]:
    """Makes `<layer>.json`, a list of names."""
    return [
        Unit(
            f"{own.layer}.json",
            own.places,
            lambda path, records: write_json(path, [f"L{record.layer}.{record.memory}" for record in records]),
        )
        for own in job.selection.groups()
    ]


FORMAT = Format(examples=1, sentences=1, units=units, definitions={"names": "the names of the memories"})
