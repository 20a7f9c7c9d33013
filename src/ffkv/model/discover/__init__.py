"""Finds the feed-forward layers of a model, and proves that they decompose into memories.

In this order: `probe_texts` chooses two texts. `find` finds what writes into the residual stream. `calibrate` learns
on the first text how each layer reaches it: `replay` runs single blocks again with parts switched off,
`residual_path` finds where o = r + y holds, `scaling` how y is scaled on the way, `first_matrices` what feeds the
second matrix and which factor is the gate. `prove` checks the identities on the second text, and
`lengths` that prefixes are the same in rows of other lengths.
`beginnings` measures which first token the model reads best.
"""
