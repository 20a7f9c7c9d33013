"""The head: everything that turns residual vectors into logits (the unembedding head, not an attention head).

`emptied` is the model's own class without the contents of its blocks, `chain` a shorter form of it where plain
modules give the same logits. `head_file` stores either, `head` reads vectors out in bounded chunks, `topk` takes ranks,
top tokens and probabilities from logits.
"""
