"""Which architectures can be read: tiny models of every causal language model type of transformers, each put to the proof."""
