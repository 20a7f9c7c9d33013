"""Whole files on disk: written under a temporary name, with checksums; HDF5 and tables.

Writing: `atomic` gives a file its final name only when it is whole, and `checksums` writes its sum beside it. `hdf5`
writes HDF5 into a `write_target`, `tables` writes CSV and parquet, `journal` appends JSON lines.

Describing: `datasets` has one description per dataset, `columns` one per table. `provenance` says to which model,
tokenizer and corpus a file belongs, and which versions made it.

Reading: each of these compares what it reads with its checksum. `lazy` reads piece by piece. `steady` notices that
somebody else writes a file meanwhile. `bounded` reads small files and JSON up to a limit. `fault` finds out who is to
blame for a failure: a file, a disk, or nobody. `looks` tells what the system denied to look up.
`spreadsheet` keeps texts from being run as formulas.
"""
