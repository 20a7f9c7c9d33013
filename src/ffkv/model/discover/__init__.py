"""Finds the feed-forward layers of a model, and proves that they decompose into memories."""
