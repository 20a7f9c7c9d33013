"""Feed-forward layers of causal language models, read as key-value memories (Geva et al., EMNLP 2021)."""

__version__ = "0.1.0"
