"""A finished run, read: as Python objects, traces, reports, comparisons.

Rooms, each on the one before it: `results` (a run and its memories), `trace` (one prompt through its model), `graph` (the memories
that make its prediction), `report` (the HTML page), `comparison` (several runs). `annotation_tables` describes what people and machines
said about a run.
"""
