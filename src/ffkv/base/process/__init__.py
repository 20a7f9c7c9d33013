"""How a step runs, and how it ends.

`runtime` sets threads, memory allocation and device before torch is imported. `progress` shows how far a step is.
`workers` runs a function in several processes. `defect` is the last handler: what nobody foresaw becomes one
sentence. `recover` cleans up after a Snakemake that was killed: jobs, processes, unfinished files, the lock.
`commands` is `ffkv recover`.
"""
