"""A language model behind a chat endpoint explains keys, and its explanations are scored (docs/annotation-machine.md)."""
