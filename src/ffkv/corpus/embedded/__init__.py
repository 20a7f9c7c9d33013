"""The embedded model: a small GPT-2 that the workflow trains for the default run."""
