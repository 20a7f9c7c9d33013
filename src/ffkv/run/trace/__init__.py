"""Texts through the model of a finished run: predictions by layer, contributions, coefficients, memories switched off.

A trace is about one prompt: `settings` says what can be asked, `prompt` what the model reads, and which memories are off or
scaled. `states` runs it. `trace` reads r, y and o out, splits each layer's output into memories, makes the tables, connects the
strongest memories, puts it together as a `result`, also as text. docs/trace.md defines every number.

Many texts run in batches, in `coefficients`: memories on every token, and the predictions behind all tokens with and
without changes; and the logits of values.

`generate` writes text.
"""
