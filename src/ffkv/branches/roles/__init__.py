"""What the weights of a memory alone say of it, by the rules of three papers (docs/roles.md).

`cosines` compares what a memory reads with what it writes, beside permuted memories, and names its type. `readout` asks which
directions the head ignores, and which one is that of frequent tokens. `examples` looks for the tokens of trigger examples at
both ends of values, and counts the signs of gates. `summaries` sums up by layer. `tables` describes the tables, `step` has the
function on files.
"""
