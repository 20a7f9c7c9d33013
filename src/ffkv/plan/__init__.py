"""What a run will take, before anything long starts: disk, memory, time.

`facts` knows the run without a trial, `trial` runs the workflow's own commands on a small copy of it, `work` says how
much more the run has to do. `step` puts the plan together, `table` prints it, `commands` is `ffkv plan`.
"""
