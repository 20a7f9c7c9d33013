"""What the operating system says and does.

`disk`: whether folders can be written and disks have space. `memory`: how much this process may use. `signals`: how a
step ends in good order after SIGTERM or Ctrl-C.
"""
