"""The head: everything that turns residual vectors into logits (the unembedding head, not an attention head).

`lens` says how states and changes of states are read, whatever they are read through. `head` is the lens that reads them as they are,
and the part of the model that it needs. `head_file` stores it. `topk` takes ranks, top tokens and probabilities from logits.
"""
