"""How a step runs.

`runtime` sets threads, memory allocation and device before torch is imported. `progress` shows how far a step is.
`libraries` turns what libraries say into remarks, and puts something of ffkv in the place of what they use.
`workers` runs a function in forks: several at a time, or one that may crash.
"""
