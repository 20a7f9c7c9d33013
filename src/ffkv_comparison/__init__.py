"""Several finished runs over each other: their curves, their differences, and the same memory in each of them.

`curves` has the curves of all figures, with their differences. `same_memories` compares memories, by number or by
correlation. `step` measures all of it, with the claims of the runs' reports, and `comparison_file` stores it with the runs
and what they have in common. `page` writes the report with `drawings`. `commands` is `ffkv comparison`.
"""

from ffkv.base.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
