"""The head: residual vectors become logits."""
