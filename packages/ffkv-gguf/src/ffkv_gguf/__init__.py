"""Models in the GGUF form: a file holds the weights, the config and the tokenizer.

`gguf_file` reads a file once, compares its entries with the model that transformers makes from it, and makes the tokenizer
follow it. `reader` is what ffkv finds. `unpack` writes the model as a checkpoint of transformers, once for all later jobs of a run.
"""
