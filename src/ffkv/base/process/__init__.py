"""How a step runs, and how it ends.

`runtime` sets threads, memory allocation and device before torch is imported. `progress` shows how far a step is.
`remarks` keeps what a person should know of files that were read, and what libraries say of them.
`workers` runs a function in several processes, `apart` in one that may crash. `defect` is the last handler: what nobody foresaw becomes one
sentence. `recover` cleans up after a Snakemake that was killed: jobs, processes, unfinished files, the lock.
`commands` is `ffkv recover`.
"""
