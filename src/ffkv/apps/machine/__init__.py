"""A language model explains keys, and its explanations are scored (docs/annotation-machine.md)."""
