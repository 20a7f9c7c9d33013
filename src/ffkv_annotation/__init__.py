"""Blind sheets, what people and machines say about keys, and how far they agree.

`step` chooses keys, changes and controls, and deals them out. `sheets` stores a sheet, and apart from it the secret key that says
what each item is; it also writes and reads sheets for spreadsheets. `records` is what an annotator said: one JSON line per
annotation. `summaries` turns records, and what `ffkv annotate machine` left, into tables, with the statistics of agreement.
`settings` has the options, `commands` is `ffkv annotate`. The package ffkv-machines asks a language model.
"""

from ffkv.base.public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
