"""A finished run, read and checked. Everything that is asked of a run is asked here, and nothing of it is changed.

`run` is the run with its experts, `memory` one of its memories. They stand on `run_files` (each file, checked for what it
belongs to), `readings` (through which lens values and states are read), `indexes` (what is asked of all memories, read
once and kept) and `run_model` (model, head, tokenizer).

About memories: `memory_name`, `memory_columns`. What people keep beside a run: `collections` (lists and notes) and
`collect` (the same from Python). Questions: `search` (with `text_search`, `tokens`), `sought` (patterns on request, kept
beside the run), `depth`. Writing them for people: `text`.

`expected` reads the settings of a run, and lists the files that a finished one has; `check` compares the folder with it.
"""
