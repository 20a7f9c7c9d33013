"""Which memories cause what a model does on a set of prompts.

Six steps, each in the module of its name: `encode` makes token ids of prompts (`prompt_file` reads them), says which cannot be
used, and puts them into two halves. `states` reads what memories do on each prompt: contributions, and a screen by one backward
pass. `choose` tests which memories differ (`contrast`), chooses candidates, and says how alike the sets of other prompts are. On
prompts whose memories are patched (`subjects`), `measure` measures exactly what patching each candidate does, and some others
(`missed`), and what patching many does, beside controls of equal length; of pairs also how much attention and memories of each
layer write (`writers`). `graph` has a few found that keep a share (`choosing`), and measures what is between them. `experts` asks
the routers of a model with experts, and measures what each expert does. `summarize` sums up.

A prompt is no independent draw: `encode` says which prompts are one draw, and tests, halves, what is measured first, and
intervals are all of such groups. `stored` is what later steps read of the first two. `words`, `tables` and `summary_tables`
describe the tables; `section` shows them in the report, and `told` has its words. docs/behaviours.md defines every number.
"""
