"""Language models of fairseq with an adaptive softmax, the paper's own among them, as models of transformers.

`reader` is what ffkv finds: it recognizes such a checkpoint, and turns its words into a tokenizer. `checkpoint` reads it without
running pickled code: it turns its args into a config, and puts its tensors into the classes of `modeling`.
"""
