"""Which architectures ffkv can read: the proof on a tiny model of every causal language model type of transformers.

`tiny` builds a model of a type with random weights: `sizes.toml` has the fields that are sizes, `exceptions.toml`
those whose names do not tell, `variants.toml` other ways to wire a type. `coverage` proves each of them and makes the
rows of docs/architectures.csv. `python -m tools.architectures` shows the table, or with --prove makes it anew.
"""
