"""One prompt through the model of a finished run: predictions by layer, contributions, memories switched off.

`settings` says what can be asked, `prompt` what the model reads, and which memories are off or scaled. `states` runs
it, `layers` reads r, y and o out, splits each layer's output into memories, and makes the tables. `step` puts it
together as a `result`, `text` prints it, `commands` is `ffkv trace`. `coefficients` computes memories on every token of
sentences of the corpus, and the logits of values. docs/trace.md defines every number.
"""
