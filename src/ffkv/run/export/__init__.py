"""A finished run in the formats of other tools.

`selection` chooses memories and the sentences on which each is shown. `store` computes the coefficients of one pass
over these sentences into two files, and goes on after a kill. `records` is all that a format may show of a memory,
logits of values among it. Each format turns records into files: `parquet` is here, those of other tools are in
packages/ffkv-formats, and all are found by their entry points. `job` says what a format is given and gives back.
`settings` has the options. `step` writes the export and `ffkv-export.json`.

Each sentence runs once, for all memories that are shown on it. The coefficients lie in the folder `.ffkv-export` of the export
until its end, so memory does not grow with the number of tokens, but by about 40 bytes per memory and sentence. The disk needs 4
bytes per memory and token. A file, or the folder of a layer, gets its name when it is complete.
"""
