"""What a run will cost, before anything long starts: tokens, operations, disk, memory, time.

`known` gathers facts without a trial: the `shape` of the model, the size of the `text`, what comes from the `hub`,
what the `devices` hold. `trial` runs the workflow's own commands on a small copy of the run, `growth` says with which
amounts each rule grows, `speed` measures the machine. `step` puts the plan together, `cluster` compares it with the
profile for SLURM, `table` prints it. `commands` is `ffkv plan`.
"""
