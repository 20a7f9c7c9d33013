"""Which architectures ffkv can read: the proof on a tiny model of every causal language model type of transformers."""
