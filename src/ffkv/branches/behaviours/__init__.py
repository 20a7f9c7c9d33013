"""Which memories cause what a model does on a set of prompts.

`prompt_file` reads the prompts, `encode` makes token ids of them and says which cannot be used. `states` reads what
memories do on each prompt (`states_file`): contributions, and a screen by one backward pass. `contrast` tests which memories differ
between the prompts of pairs, `stability` how alike the sets of other prompts are; `choose` does both and chooses candidates.
`effects` measures exactly what patching each candidate does, `sets` what patching many does, both beside controls of equal
length; `measure` does both on all prompts. `subject` is one prompt
whose memories are patched, `smallest` chooses a few that keep a share, `graph` does it for all prompts and measures what is between
them. `summaries` sums up. `words`, `tables` and `graph_tables` describe the tables, `step` has the functions on files. docs/behaviours.md
defines every number.
"""
