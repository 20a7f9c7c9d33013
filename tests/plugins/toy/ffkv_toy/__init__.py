"""A package beside ffkv: a branch, an export format, a command, a reader of checkpoints and a corpus."""
