"""A finished run in the formats of other tools.

`selection` chooses memories and the sentences on which each is shown. `store` computes the coefficients of one pass
over these sentences into two files, and goes on after a kill. `records` is all that a format may show of a memory,
with `quantiles` (random sentences by strength) and `value_logits` (top and bottom tokens). Each format turns records
into files: `neuron_record`, `neuronpedia`, `saedashboard`, `delphi`, `transluce`, `circuit_tracer`, `parquet`. `job`
says what a format is given and gives back, `provenance` writes `ffkv-export.json`. `settings` lists the formats and has
the options, `step` and `commands` are `ffkv export`. `circuitsvis` gives arguments instead of files.

Each sentence runs once, for all memories that are shown on it. The coefficients lie in the folder `.ffkv-export` of
the export until its end, so memory does not grow with the number of tokens, but by about 40 bytes per memory and
sentence. The disk needs 4 bytes per memory and token. A file, or the folder of a layer, gets its name when it is
complete.
"""
