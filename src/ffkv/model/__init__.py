"""Loads a checkpoint; finds, taps and proves its feed-forward layers; reads out residual vectors."""
