"""One prompt through the model of a finished run: predictions by layer, contributions of memories, memories switched
off.

`settings` has the options. `prompt` says what the model reads, `changes` which memories are off or scaled. `states`
runs it. Of each of the `layers`, `predictions` reads r, y and o out, and `contributions` splits the output into
memories, with `value_logits` of some of them. `step` puts it together as a `result`, `text` prints it, `commands` is
`ffkv trace`. `coefficients` computes memories on every token of sentences of the corpus. docs/trace.md defines every
number.
"""
