"""Several finished runs over each other: their curves, their differences, and the same memory in each of them.

`compared` holds the runs and what they have in common. `curves` gathers the curves of all figures and their
differences. `same_memories` compares memories by number (with `overlap`), `matching` by correlation. `behaviours`
gathers the behaviours that several runs have. `step` measures all of it and `comparison_file` stores it. `page` writes
the report with `drawings`, `summary` and `links`. `commands` is `ffkv comparison`.
"""
