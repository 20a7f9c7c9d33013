"""Where the weights of a model lie: on one device, or spread over GPUs, the CPU's memory and the disk.

`spread` decides which part lies where. `resident` brings weights that are elsewhere to whoever reads them.
`precision` runs a half-precision model in float32, one block at a time.
"""
