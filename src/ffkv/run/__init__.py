"""A finished run, read: as Python objects, traces, reports, exports.

Rooms, each on the one before it: `results` (a run and its memories), `trace` (one prompt through its model), `graph` (the
memories that make its prediction), `report` (the HTML page), `export` (files for other tools). `ask` takes a step of a branch
once more, and asks about a `behaviour`, which is what it found. `annotation_tables` describes what people and machines said about
a run. `commands` are `ffkv check`, `collect`, `collections`, `export`, `behaviour` and `report`.
"""
