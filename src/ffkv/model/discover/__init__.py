"""Finds the feed-forward layers of a model, and proves that they decompose into memories.

In this order: `probe_texts` chooses two texts, and measures which first token the model reads best. `find` finds what
writes into the residual stream. `calibrate` learns on the first text how each layer reaches it: `replay` runs single
blocks again with parts switched off, and finds where o = r + y holds and how y is scaled on the way. `calibrate` also
finds what feeds the second matrix and which factor is the gate. `prove` checks the identities on the second text, and
`lengths` that prefixes are the same in rows of other lengths.
"""
