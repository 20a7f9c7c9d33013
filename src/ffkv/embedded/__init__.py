"""The default run's own corpus and model."""
