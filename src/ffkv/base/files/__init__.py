"""Whole files on disk: written under a temporary name, with checksums; HDF5 and tables.

Writing: `atomic` gives a file its final name only when it is whole, and `stored` writes its sum beside it. `hdf5`
writes HDF5, `tables` writes CSV and parquet, `journal` appends JSON lines.

Describing: `datasets` has one description per dataset, `columns` one per table. `stored` also says to which model,
tokenizer and corpus a file belongs, and which versions made it.

Reading: each of these compares what it reads with its checksum.

The road of one HDF5 file, from `ffkv.open(run)` or from what a step is given to its bytes:

1. `hdf5` opens it, refuses another kind, format or model, and files that lie elsewhere.
2. `lookup` says whether it is there, and no pipe.
3. `stored` compares a small one with its sum, and says to whom it belongs.
4. `datasets` compares each dataset with its description, and its numbers when they are read, be it at once or piece by piece.
5. `fault` is asked only if something fails; then `stored` reads the file again, and blames it if its sum does not fit.
"""
