"""What a run will take, before anything long starts: disk, memory, time.

`facts` knows the run without a trial, `trial` runs the workflow's own commands on a small copy of it. `step` says how much
more the run has to do, puts the plan together and prints it. `commands` is `ffkv plan`.
"""
