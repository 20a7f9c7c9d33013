"""Language models of fairseq with an adaptive softmax, the paper's own among them, as models of transformers.

`folder` recognizes such a checkpoint. `checkpoint` reads it without running pickled code: `arguments` turns its args
into a `configuration`, `dictionary` its words into a tokenizer, `state` puts its tensors into the `modeling` class.
`adaptive` has the adaptive embeddings and the adaptive softmax.
"""
