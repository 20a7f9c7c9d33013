"""Passes over the corpus: trigger examples and statistics of every key, activations of sampled prefixes."""
