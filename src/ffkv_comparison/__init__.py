"""Several finished runs over each other: their curves, their differences, and the same memory in each of them.

`same_memories` compares memories, by number or by correlation. `step` measures it, the curves of all figures with their
differences, and the claims of the runs' reports; `comparison_file` stores all of it with the runs. `page` writes the report with `drawings`. `commands` is `ffkv comparison`.
"""

from ffkv.base.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
