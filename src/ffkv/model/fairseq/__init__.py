"""Language models of fairseq with an adaptive softmax, the paper's own among them, as models of transformers.

`dictionary` recognizes such a checkpoint, and turns its words into a tokenizer. `checkpoint` reads it without running
pickled code: `arguments` turns its args into a `configuration`, `state` puts its tensors into the `modeling` class.
`adaptive` has the adaptive embeddings and the adaptive softmax.
"""
