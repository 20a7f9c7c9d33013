"""Blind sheets, what people and machines say about keys, and how far they agree.

`draw` chooses keys, changes and controls, and deals them out. `sheets` stores a sheet, and apart from it the secret
key that says what each item is; `csv_sheets` writes and reads sheets for spreadsheets. `records` is what an annotator
said: one JSON line per annotation. `ratings` turns records, and what `ffkv annotate machine` left, into tables.
`agreement` has the statistics, `summaries` the tables of the report. `settings` has the options, `step` and `commands`
are `ffkv annotate`.
"""
