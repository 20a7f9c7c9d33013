"""Fairseq: language models with an adaptive softmax, the paper's own among them."""
